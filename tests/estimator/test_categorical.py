import pickle
import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.base import clone

from trellis import CategoricalHMM, TrellisError, ops
from trellis.estimator import ConvergenceMonitor

from .peers import both, data, ours, tables

NAMES = ("startprob_", "transmat_", "emissionprob_")


def assert_same(mine, theirs, atol=1e-6):
    for name in NAMES:
        ours_, theirs_ = getattr(mine, name), getattr(theirs, name)
        known = theirs_.sum(-1) > 0  # hmmlearn leaves zeros where a state was never left; we leave the row as it was
        np.testing.assert_allclose(ours_[known], theirs_[known], atol=atol, err_msg=name)
        np.testing.assert_allclose(ours_.sum(-1), 1.0)


@st.composite
def prior(draw, *shape):
    if draw(st.booleans()):
        return draw(st.sampled_from([1.0, 1.3, 4.0]))
    return 1.0 + np.random.RandomState(draw(st.integers(0, 99))).rand(*shape)


@st.composite
def problems(draw):
    states, symbols = draw(st.integers(1, 5)), draw(st.integers(2, 6))
    given_settings = {
        "startprob_prior": draw(prior(states)),
        "transmat_prior": draw(prior(states, states)),
        "emissionprob_prior": draw(prior(states, symbols)),
        "n_iter": draw(st.integers(0, 8)),
        "tol": draw(st.sampled_from([-np.inf, 1e-9, 1.0])),
        "params": draw(st.sampled_from(["ste", "ste", "st", "e", ""])),
        "implementation": draw(st.sampled_from(["log", "scaling"])),
    }
    lengths = draw(st.lists(st.integers(1, 15), min_size=1, max_size=6))
    return draw(st.integers(0, 1000)), states, symbols, lengths, given_settings


@settings(max_examples=60)
@given(problems())
def test_learning_is_hmmlearns(problem):
    seed, states, symbols, lengths, given_settings = problem
    mine, theirs = both(seed, states, symbols, **given_settings)
    X = data(seed, symbols, lengths)
    mine.fit(X, lengths)
    theirs.fit(X, lengths)
    assert_same(mine, theirs)
    assert mine.monitor_.iter == theirs.monitor_.iter
    np.testing.assert_allclose(list(mine.monitor_.history), list(theirs.monitor_.history), atol=1e-6)
    assert mine.monitor_.converged == theirs.monitor_.converged


@pytest.mark.parametrize("weight", [0.6, 1.0, 2.5])
def test_many_steps_on_long_sequences_end_where_hmmlearns_do(weight):
    mine, theirs = both(1, 6, 9, emissionprob_prior=weight, transmat_prior=weight, n_iter=30, tol=-np.inf)
    lengths = [90, 3, 80, *[60] * 12]
    X = data(1, 9, lengths)
    assert_same(mine.fit(X, lengths), theirs.fit(X, lengths))
    assert mine.score(X, lengths) == pytest.approx(theirs.score(X, lengths), abs=1e-6)


def test_one_long_sequence_learns_what_it_learns_in_hmmlearn():
    mine, theirs = both(11, 20, 7, n_iter=6, tol=-np.inf)
    X = data(11, 7, [12_000])
    assert_same(mine.fit(X), theirs.fit(X))
    np.testing.assert_allclose(list(mine.monitor_.history), list(theirs.monitor_.history), atol=1e-6)


def test_without_native_kernels_it_learns_the_same():
    mine, theirs = both(11, 6, 7, n_iter=3, tol=-np.inf)
    X = data(11, 7, [1_500, 40, 40])
    with ops.using(None):
        assert_same(mine.fit(X, [1_500, 40, 40]), theirs.fit(X, [1_500, 40, 40]))
        assert mine.decode(X)[0] == pytest.approx(theirs.decode(X)[0], abs=1e-6)


def test_float32_ends_close_by():
    mine, theirs = both(2, 8, 12, n_iter=5, tol=-np.inf)
    X = data(2, 12, [300] * 4)
    mine.set_params(dtype="float32").fit(X, [300] * 4)
    assert_same(mine, theirs.fit(X, [300] * 4), atol=1e-4)
    assert mine.transmat_.dtype == np.float64


def test_forbidden_starts_and_transitions_stay_forbidden():
    mine, theirs = both(3, 3, 4, n_iter=5, tol=-np.inf, transmat_prior=2.0, startprob_prior=2.0)
    for model in (mine, theirs):
        model.startprob_ = np.array([1.0, 0.0, 0.0])
        model.transmat_ = np.array([[0.5, 0.5, 0.0], [0.0, 0.5, 0.5], [0.0, 0.0, 1.0]])
    X = data(3, 4, [30, 20])
    assert_same(mine.fit(X, [30, 20]), theirs.fit(X, [30, 20]))
    assert (np.tril(mine.transmat_, -1) == 0).all()
    assert mine.transmat_[0, 2] == 0
    assert mine.startprob_.tolist() == [1.0, 0.0, 0.0]


def test_states_that_are_all_given_are_counted():
    X, labels = np.array([0, 1, 1, 2, 0, 1]), np.array([0, 0, 1, 1, 0, 1])
    model = CategoricalHMM(2, n_iter=3, random_state=0).fit(X, [4, 2], labels=labels)
    np.testing.assert_allclose(model.startprob_, [1.0, 0.0])
    np.testing.assert_allclose(model.transmat_, [[1 / 3, 2 / 3], [0.0, 1.0]])
    np.testing.assert_allclose(model.emissionprob_, [[2 / 3, 1 / 3, 0.0], [0.0, 2 / 3, 1 / 3]])


def test_labels_of_minus_one_change_nothing_and_a_few_fix_the_names_of_states():
    X = data(4, 4, [60])
    learned = [ours(4, 2, 4, n_iter=4).fit(X, labels=labels) for labels in (None, np.full(60, -1))]
    assert_same(*learned, atol=1e-12)
    drawn, states = ours(4, 2, 6).sample(1000, random_state=0)
    labels = np.where(np.arange(1000) % 4 == 0, states, -1)
    model = CategoricalHMM(2, n_features=6, n_iter=20, random_state=3).fit(drawn, [50] * 20, labels=labels)
    np.testing.assert_allclose(model.emissionprob_, tables(4, 2, 6)[2], atol=0.1)


def theirs_counts(model, X, lengths):
    model._check()
    stats, _ = model._do_estep(X, lengths)
    return [stats[name] for name in ("start", "trans", "obs")]


def test_partial_fit_is_a_step_of_fit_and_then_moves_the_mean_counts():
    mine, theirs = both(5, 3, 4)
    first, second = data(5, 4, [20, 10]), data(6, 4, [12])
    mine.partial_fit(first, [20, 10])
    mean = [count / 30 for count in theirs_counts(theirs, first, [20, 10])]
    theirs.set_params(n_iter=1).fit(first, [20, 10])
    assert_same(mine, theirs)
    counts = theirs_counts(theirs, second, [12])
    mean = [old + 2**-0.7 * (new / 12 - old) for old, new in zip(mean, counts, strict=True)]
    mine.partial_fit(second)
    for name, table in zip(NAMES, mean, strict=True):
        np.testing.assert_allclose(getattr(mine, name), table / table.sum(-1, keepdims=True), atol=1e-9)
    assert mine.monitor_.iter == 2


def test_partial_fit_goes_on_from_fit_and_knows_its_symbols():
    model = ours(5, 3, 4, n_iter=2).fit(data(5, 4, [50]))
    before = model.transmat_
    model.partial_fit(data(6, 4, [50]))
    assert 0 < abs(model.transmat_ - before).max() < 0.5
    with pytest.raises(ValueError, match="n_features=4 ends at 3"):
        model.partial_fit([0, 4])


def test_the_best_of_several_beginnings_is_kept():
    X = data(7, 5, [40])
    alone = [CategoricalHMM(4, n_iter=10, random_state=random).fit(X) for random in [np.random.RandomState(0)] * 6]
    together = CategoricalHMM(4, n_iter=10, random_state=0, n_init=6).fit(X)
    ends = [model.monitor_.history[-1] for model in alone]
    assert together.monitor_.history[-1] == pytest.approx(max(ends))
    assert max(ends) > min(ends)


def test_the_same_seed_learns_the_same_and_another_does_not():
    X = data(8, 5, [60])
    one, two, other = (CategoricalHMM(3, random_state=seed).fit(X) for seed in (1, 1, 2))
    assert_same(one, two, atol=0)
    assert abs(one.transmat_ - other.transmat_).max() > 1e-3


def test_tables_that_were_set_are_not_overwritten_in_silence():
    model = ours(0, 2, 3)
    model.set_params(init_params="t")
    with pytest.warns(UserWarning, match="transmat_ was set but begins at random"):
        model.fit(data(0, 3, [20]))
    model.fit(data(0, 3, [20]))  # what it learned itself is no surprise


def test_a_monitor_of_ones_own_decides_when_to_stop():
    class Three(ConvergenceMonitor):
        @property
        def converged(self):
            return self.iter == 3

    model = ours(0, 3, 4, n_iter=50, tol=-1.0)
    assert model.monitor_.iter == 0
    model.monitor_ = Three(model.monitor_.tol, model.monitor_.n_iter)
    X = data(0, 4, [40])
    assert model.fit(X).monitor_.iter == 3
    assert isinstance(model.fit(X).monitor_, Three)


def test_verbose_prints_each_step(capsys):
    ours(0, 2, 3, n_iter=3, tol=-np.inf, verbose=True).fit(data(0, 3, [20]))
    assert len(capsys.readouterr().err.splitlines()) == 3


def test_thousands_of_states_learn():
    X, lengths = data(9, 50, [20, 13, 20]), [20, 13, 20]
    model = CategoricalHMM(2048, n_iter=2, random_state=0).fit(X, lengths)
    assert model.transmat_.shape == (2048, 2048)
    assert model.monitor_.history[1] > model.monitor_.history[0]
    assert len(model.predict(X, lengths)) == 53


def test_a_clone_has_the_settings_and_a_pickle_everything():
    model = ours(1, 3, 4, tol=0.5, n_init=2).fit(data(1, 4, [30]))
    fresh = clone(model)
    assert fresh.get_params() == model.get_params()
    assert not hasattr(fresh, "transmat_")
    again = pickle.loads(pickle.dumps(model))
    assert again.score([0, 1, 2]) == model.score([0, 1, 2])
    assert again.monitor_.history == model.monitor_.history


def test_hmmlearns_models_go_in_and_out():
    _, theirs = both(2, 3, 4, tol=0.5, algorithm="map")
    X = data(2, 4, [30])
    mine = CategoricalHMM.from_hmmlearn(theirs.fit(X))
    assert mine.get_params()["tol"] == 0.5
    assert mine.score(X) == pytest.approx(theirs.score(X), abs=1e-6)
    back = mine.to_hmmlearn()
    assert back.predict(X).tolist() == theirs.predict(X).tolist() == mine.predict(X).tolist()
    assert back.get_params()["algorithm"] == "map"
    assert not hasattr(CategoricalHMM(3).to_hmmlearn(), "transmat_")
    mine.transmat_[0] = 1 / 3
    assert abs(theirs.transmat_[0] - 1 / 3).max() > 0.01


def run(code):
    return subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout


def test_without_scikit_learn_the_rest_works_and_this_says_what_to_install():
    said = run(
        "import sys; sys.modules['sklearn'] = None\n"
        "import trellis; trellis.HMM\n"
        "try: trellis.CategoricalHMM\n"
        "except trellis.TrellisError as error: print(error)"
    )
    assert said.strip() == "CategoricalHMM needs scikit-learn: run pip install 'trellis-lm[sklearn]'."


def test_the_rest_does_not_load_scikit_learn():
    assert run("import sys, trellis; trellis.HMM; print('sklearn' in sys.modules)").strip() == "False"


def test_without_hmmlearn_its_models_are_not_made(monkeypatch):
    monkeypatch.setitem(sys.modules, "hmmlearn.hmm", None)
    with pytest.raises(TrellisError, match="pip install hmmlearn"):
        ours(0, 2, 3).to_hmmlearn()
