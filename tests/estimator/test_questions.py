import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from sklearn.exceptions import NotFittedError

from trellis import CategoricalHMM

from .peers import both, data, ours

CASES = st.tuples(
    st.integers(0, 1000), st.integers(1, 5), st.integers(2, 6), st.lists(st.integers(1, 12), min_size=1, max_size=5)
)


def joint(model, X, path, lengths):
    """log p(path, X)."""
    log_prob, cuts = np.log(model.emissionprob_[path, X[:, 0]]).sum(), np.cumsum(lengths)[:-1]
    for states in np.split(path, cuts):
        log_prob += np.log(model.startprob_[states[0]]) + np.log(model.transmat_[states[:-1], states[1:]]).sum()
    return log_prob


@settings(max_examples=60)
@given(CASES)
def test_answers_are_hmmlearns(case):
    seed, states, symbols, lengths = case
    mine, theirs = both(seed, states, symbols)
    X = data(seed, symbols, lengths)
    assert mine.score(X, lengths) == pytest.approx(theirs.score(X, lengths), abs=1e-6)
    for ours_, theirs_ in zip(mine.score_samples(X, lengths), theirs.score_samples(X, lengths), strict=True):
        np.testing.assert_allclose(ours_, theirs_, atol=1e-6)
    best, path = mine.decode(X, lengths)
    assert best == pytest.approx(theirs.decode(X, lengths)[0], abs=1e-6)
    assert joint(mine, X, path, lengths) == pytest.approx(best, abs=1e-6)  # of two paths alike, theirs may be another
    assert mine.predict(X, lengths).tolist() == path.tolist()
    total, path = mine.decode(X, lengths, "map")
    assert total == pytest.approx(theirs.decode(X, lengths, "map")[0], abs=1e-6)
    assert path.tolist() == mine.predict_proba(X, lengths).argmax(1).tolist()
    assert mine.aic(X, lengths) == pytest.approx(theirs.aic(X, lengths), abs=1e-6)
    assert mine.bic(X, lengths) == pytest.approx(theirs.bic(X, lengths), abs=1e-6)


@settings(max_examples=60)
@given(CASES)
def test_each_sequence_scores_what_it_scores_alone(case):
    seed, states, symbols, lengths = case
    mine, theirs = both(seed, states, symbols)
    X = data(seed, symbols, lengths)
    alone = [theirs.score(part) for part in np.split(X, np.cumsum(lengths)[:-1])]
    np.testing.assert_allclose(mine.score_sequences(X, lengths), alone, atol=1e-6)
    assert mine.score_sequences(X[:, 0], lengths).tolist() == mine.score_sequences(X, lengths).tolist()


def test_the_next_symbols_are_those_that_scores_say():
    model, X, lengths = ours(3, 3, 4), data(3, 4, [3, 5]), [3, 5]
    found = model.predict_next_proba(X, lengths, n_steps=2)
    assert found.shape == (2, 2, 4)
    for sequence, x in enumerate(np.split(X[:, 0], [3])):
        before = model.score(x)
        joint = np.exp([[model.score([*x, v, w]) - before for w in range(4)] for v in range(4)])
        np.testing.assert_allclose(found[sequence], [joint.sum(1), joint.sum(0)], atol=1e-10)
    assert model.predict_next(X, lengths, 2).tolist() == found.argmax(2).tolist()
    with pytest.raises(ValueError, match="n_steps=0"):
        model.predict_next(X, lengths, 0)


def test_an_unseen_symbol_is_an_error_or_summed_over():
    model = ours(4, 3, 3)
    with pytest.raises(ValueError, match=r"X holds the symbol 7, but the model knows 0 to 2"):
        model.score([0, 7, 1])
    model.set_params(unseen="missing")
    summed = np.logaddexp.reduce([model.score([0, v, 1]) for v in range(3)])
    assert model.score([0, 7, 1]) == pytest.approx(summed)
    assert model.predict_proba([0, 7, 1]).sum(1) == pytest.approx(1.0)
    assert len(model.predict([0, 7, 1])) == 3
    assert model.score([0, 2, 1]) == ours(4, 3, 3).score([0, 2, 1])
    with pytest.raises(ValueError, match="unseen='maybe'"):
        model.set_params(unseen="maybe").score([0])


def test_a_symbol_that_no_state_emits_makes_a_sequence_impossible_or_is_summed_over():
    model = ours(4, 2, 3)
    model.emissionprob_ = np.array([[0.5, 0.5, 0.0], [0.2, 0.8, 0.0]])
    X, lengths = [0, 1, 0, 2, 1], [2, 3]
    scores = model.score_sequences(X, lengths)
    assert np.isfinite(scores[0])
    assert scores[1] == -np.inf
    assert model.score(X, lengths) == -np.inf
    assert model.predict_proba(X, lengths).sum(1).tolist() == pytest.approx([1, 1, 0, 0, 0])
    log_prob, states = model.decode(X, lengths)
    assert log_prob == -np.inf
    assert states[2:].tolist() == [-1, -1, -1]
    model.set_params(unseen="missing")
    assert np.isfinite(model.score(X, lengths))


def test_samples_have_the_models_frequencies():
    model = ours(5, 2, 3)
    X, states = model.sample(6_000, random_state=0)
    assert X.shape == (6_000, 1)
    assert states.shape == (6_000,)
    moved = np.zeros((2, 2))
    np.add.at(moved, (states[:-1], states[1:]), 1)
    np.testing.assert_allclose(moved / moved.sum(1, keepdims=True), model.transmat_, atol=0.04)
    emitted = np.zeros((2, 3))
    np.add.at(emitted, (states, X[:, 0]), 1)
    np.testing.assert_allclose(emitted / emitted.sum(1, keepdims=True), model.emissionprob_, atol=0.04)


def test_samples_repeat_with_their_seed_and_begin_where_asked():
    model = ours(5, 4, 3, random_state=1)
    assert model.sample(9)[0].tolist() == model.sample(9)[0].tolist()
    assert model.sample(9, random_state=2)[0].tolist() != model.sample(9)[0].tolist()
    generator = np.random.RandomState(0)
    assert model.sample(30, generator)[0].tolist() != model.sample(30, generator)[0].tolist()
    assert {model.sample(1, seed, currstate=3)[1][0] for seed in range(9)} == {3}
    with pytest.raises(ValueError, match="currstate=4"):
        model.sample(1, currstate=4)
    with pytest.raises(ValueError, match="n_samples=0"):
        model.sample(0)


def test_a_model_without_tables_says_that_it_is_not_fitted():
    for question in (lambda m: m.score([0]), lambda m: m.predict([0]), lambda m: m.sample(), lambda m: m.to_model()):
        with pytest.raises(NotFittedError):
            question(CategoricalHMM(2))


def test_an_algorithm_that_is_not_known_is_refused():
    with pytest.raises(ValueError, match="algorithm='best'"):
        ours(0, 2, 3).decode([0, 1], algorithm="best")


def test_the_model_behind_it_answers_the_same():
    model = ours(6, 3, 4)
    X = data(6, 4, [7])
    hmm = model.to_model()
    ids = torch.from_numpy(X.T)
    assert float(hmm.score(ids)[0].detach().sum()) == pytest.approx(model.score(X))
    best = hmm.k_best(ids, 3)
    assert float(best.log_prob_BK[0, 0]) == pytest.approx(model.decode(X)[0])


def test_the_stationary_distribution_is_hmmlearns():
    mine, theirs = both(3, 5, 4)
    np.testing.assert_allclose(mine.get_stationary_distribution(), theirs.get_stationary_distribution(), atol=1e-10)
    mine.transmat_ = np.roll(np.eye(5), 1, 1)
    np.testing.assert_allclose(mine.get_stationary_distribution(), 0.2)
    mine.transmat_ = np.array([[0.5, 0.5, 0, 0, 0]] + [[0, 1.0, 0, 0, 0]] * 4)  # in the end, all are there
    np.testing.assert_allclose(mine.get_stationary_distribution(), [0, 1, 0, 0, 0], atol=1e-12)


def test_a_sequence_that_float64_cannot_hold_has_a_score():
    model = ours(0, 2, 2)
    model.startprob_, model.emissionprob_ = np.array([1.0, 0.0]), np.eye(2)
    model.transmat_ = np.array([[1.0, 1e-300], [1e-300, 1.0]])
    scores = model.score_sequences([0, 0, 0, 1, 0], [2, 3])
    np.testing.assert_allclose(scores, [0.0, 2 * np.log(1e-300)], atol=1e-12)
    assert model.decode([0, 0, 0, 1, 0], [2, 3])[1].tolist() == [0, 0, 0, 1, 0]


def test_a_long_sequence_scores_and_decodes_as_in_hmmlearn():
    mine, theirs = both(8, 12, 6)
    X = data(8, 6, [9_000, 700])
    assert mine.score(X, [9_000, 700]) == pytest.approx(theirs.score(X, [9_000, 700]), abs=1e-6)
    found, wanted = (model.decode(X, [9_000, 700]) for model in (mine, theirs))
    assert found[0] == pytest.approx(wanted[0], abs=1e-6)
    # The same steps in another order are as probable, so paths may differ.
    assert joint(mine, X, found[1], [9_000, 700]) == pytest.approx(wanted[0], abs=1e-6)
    mine.set_params(unseen="missing")
    X[5_000] = 77
    assert np.isfinite(mine.score(X, [9_000, 700]))
