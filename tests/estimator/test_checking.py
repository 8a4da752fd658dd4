import numpy as np
import pytest

from trellis import CategoricalHMM, TrellisError

from .peers import ours

X = np.array([[0], [1], [2], [1]])

BAD_X = [
    ([0.5, 1.0], "X holds floats"),
    ([0.0, 1.0], "astype"),
    ([True, False], "X holds truth values"),
    ([0, -3], "X holds -3"),
    ([[0, 1], [2]], "X is a ragged list"),
    ([], "X has 0 sample"),
    ([0, 0, 0], "X holds one symbol only, 0"),
    ([0.0, np.nan], "X holds NaN"),
    ([0.0, np.inf], "X holds NaN or infinity"),
    ([0, "a"], "X holds strings"),
    (np.array([0, "a"], dtype=object), "X holds objects"),
    ([0, None], "X holds objects"),
    ([1 + 2j], "Complex data"),
    (np.zeros((2, 3), int), r"X has shape \(2, 3\)"),
    (np.zeros((2, 1, 1), int), r"X has shape \(2, 1, 1\)"),
    (5, r"X has shape \(\)"),
    ([0, 2**70], "X holds numbers beyond 64 bits"),
    (np.array([0, 2**64 - 1], dtype=np.uint64), "X holds numbers beyond 64 bits"),
    ([0, 10**12], "X holds symbols up to 1000000000000, too many"),
]


@pytest.mark.parametrize(("bad", "said"), BAD_X, ids=lambda value: value if isinstance(value, str) else "")
def test_x_that_holds_no_symbols_is_refused_in_a_sentence(bad, said):
    with pytest.raises(ValueError, match=said) as caught:
        CategoricalHMM(2).fit(bad)
    assert isinstance(caught.value, TrellisError)
    assert "\n" not in str(caught.value)
    assert str(caught.value).endswith(".")


def test_sparse_arrays_are_refused():
    sparse = pytest.importorskip("scipy.sparse")
    with pytest.raises(ValueError, match="X is sparse"):
        CategoricalHMM(2).fit(sparse.csr_array(X))


BAD_LENGTHS = [
    ([3], "lengths add up to 3 but X has 4 rows"),
    ([2, 3], "lengths add up to 5"),
    ([4, 0], "lengths holds 0 for sequence 1"),
    ([5, -1], "lengths holds -1 for sequence 1"),
    ([2.0, 2.0], "lengths holds floats"),
    ([[2, 2]], r"lengths has shape \(1, 2\)"),
    (4, r"lengths has shape \(\)"),
    (["a"], "lengths holds strings"),
]


@pytest.mark.parametrize(("bad", "said"), BAD_LENGTHS, ids=lambda value: value if isinstance(value, str) else "")
@pytest.mark.parametrize("method", ["fit", "partial_fit", "score", "decode", "predict_proba", "predict_next"])
def test_lengths_that_do_not_fit_are_refused_everywhere(method, bad, said):
    with pytest.raises(ValueError, match=said):
        getattr(ours(0, 2, 3), method)(X, bad)


@pytest.mark.parametrize(
    ("bad", "said"),
    [
        ([0, 1, 2, 0], "labels holds 2"),
        ([0, -2, 0, 0], "labels holds -2"),
        ([0, 1], r"labels has shape \(2,\)"),
        ([0.0, 1.0, 0.0, 1.0], "labels holds floats"),
    ],
)
def test_labels_that_do_not_fit_are_refused(bad, said):
    with pytest.raises(ValueError, match=said):
        CategoricalHMM(2).fit(X, labels=bad)


@pytest.mark.parametrize(
    ("settings", "said"),
    [
        ({"n_components": 0}, "n_components=0"),
        ({"n_components": 2.0}, "n_components=2.0"),
        ({"n_iter": -1}, "n_iter=-1"),
        ({"n_init": 0}, "n_init=0"),
        ({"params": "stx"}, "params='stx'"),
        ({"init_params": None}, "init_params=None"),
        ({"dtype": "float16"}, "dtype='float16'"),
        ({"unseen": "maybe"}, "unseen='maybe'"),
        ({"algorithm": "best"}, "algorithm='best'"),
        ({"tol": "small"}, "tol='small'"),
        ({"tol": np.nan}, "tol=nan"),
        ({"random_state": "seed"}, "'seed' cannot be used to seed"),
        ({"n_features": 2}, "n_features=2 ends at 1"),
        ({"n_features": 0}, "n_features=0"),
        ({"startprob_prior": [1.0, 2.0, 3.0]}, "startprob_prior does not fit"),
        ({"transmat_prior": -1.0}, "transmat_prior holds negative"),
        ({"emissionprob_prior": "a"}, "emissionprob_prior does not fit"),
    ],
)
def test_settings_that_are_not_possible_are_refused_by_fit(settings, said):
    with pytest.raises(ValueError, match=said):
        CategoricalHMM(**{"n_components": 2, **settings}).fit(X)


@pytest.mark.parametrize(
    ("name", "table", "said"),
    [
        ("startprob_", [0.5, 0.6], "startprob_ must sum to one, but row 0 sums to 1.1"),
        ("startprob_", [1.0], r"startprob_ has shape \(1,\)"),
        ("transmat_", [[1.0, 0.0], [0.5, 0.4]], "transmat_ must sum to one, but row 1 sums to 0.9"),
        ("transmat_", [[1.5, -0.5], [0.5, 0.5]], "transmat_ holds negative"),
        ("emissionprob_", [[np.nan, 1.0, 0.0], [0.5, 0.5, 0.0]], "emissionprob_ holds negative numbers or NaN"),
        ("emissionprob_", "text", "emissionprob_ is no array of numbers"),
    ],
)
@pytest.mark.parametrize("method", ["fit", "score"])
def test_tables_that_were_set_wrongly_are_refused(method, name, table, said):
    model = ours(0, 2, 3)
    setattr(model, name, table)
    with pytest.raises(ValueError, match=said):
        getattr(model, method)(X)


def test_one_symbol_is_enough_where_others_are_known_to_be_possible():
    model = CategoricalHMM(2, n_features=3, emissionprob_prior=2.0, random_state=0).fit([1, 1, 1])
    assert model.emissionprob_.shape == (2, 3)
    assert (model.emissionprob_ > 0).all()


def test_objects_that_are_whole_numbers_are_taken():
    assert ours(0, 2, 3).score(X.astype(object)) == ours(0, 2, 3).score(X)
