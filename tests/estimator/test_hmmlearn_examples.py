"""What hmmlearn's README, tutorial and gallery do with symbols, run with its class and with ours in its place."""

import pickle

import numpy as np
import pytest

import trellis

hmmlearn = pytest.importorskip("hmmlearn.hmm")
BOTH = (trellis.CategoricalHMM, hmmlearn.CategoricalHMM)
EITHER = pytest.mark.parametrize("CategoricalHMM", BOTH, ids=["trellis", "hmmlearn"])


def casino(CategoricalHMM):
    """A fair die, and one that shows six three times of four, changed now and then: nothing is learned."""
    model = CategoricalHMM(n_components=2, random_state=99)
    model.startprob_ = np.array([1.0, 0.0])
    model.transmat_ = np.array([[0.95, 0.05], [0.1, 0.9]])
    model.emissionprob_ = np.array([[1 / 6] * 6, [1 / 20] * 5 + [3 / 4]])
    return model


def test_rolls_of_a_dishonest_casino_are_the_same():
    (rolls, dice), (theirs, their_dice) = (casino(which).sample(3_000) for which in BOTH)
    assert rolls.shape == theirs.shape == (3_000, 1)
    assert (rolls == theirs).all()
    assert (dice == their_dice).all()


@EITHER
def test_a_dishonest_casino_is_found_out(CategoricalHMM):
    rolls, dice = casino(CategoricalHMM).sample(8_000)
    X_train, X_validate = rolls[:4_000], rolls[4_000:]
    best_score = best_model = None
    random = np.random.RandomState(13)
    for seed in range(4):
        model = CategoricalHMM(n_components=2, random_state=seed, init_params="se", n_iter=60)
        model.transmat_ = np.array([random.dirichlet([0.9, 0.1]), random.dirichlet([0.1, 0.9])])
        model.fit(X_train)
        score = model.score(X_validate)
        if best_score is None or score > best_score:
            best_model, best_score = model, score
    states = best_model.predict(rolls)
    assert max(np.mean(states == dice), np.mean(states != dice)) > 0.75
    loaded = best_model.emissionprob_[:, 5].argmax()
    assert best_model.emissionprob_[loaded, 5] == pytest.approx(0.75, abs=0.1)
    assert best_model.transmat_[loaded, loaded] == pytest.approx(0.9, abs=0.1)


def test_several_sequences_are_learned_from_by_their_lengths():
    X1, X2 = [[0], [1], [1], [0]], [[2], [1], [0], [1], [2], [2]]
    X, lengths = np.concatenate([X1, X2]), [len(X1), len(X2)]
    models = []
    for CategoricalHMM in BOTH:
        model = CategoricalHMM(n_components=2, n_iter=5, init_params="")
        model.startprob_, model.transmat_ = np.array([0.6, 0.4]), np.array([[0.7, 0.3], [0.4, 0.6]])
        model.emissionprob_ = np.array([[0.1, 0.4, 0.5], [0.6, 0.3, 0.1]])
        models.append(model.fit(X, lengths))
    mine, theirs = models
    for name in ("startprob_", "transmat_", "emissionprob_"):
        np.testing.assert_allclose(getattr(mine, name), getattr(theirs, name), atol=1e-6)
    assert mine.score(X, lengths) == pytest.approx(theirs.score(X, lengths), abs=1e-6)
    assert mine.predict(X, lengths).tolist() == theirs.predict(X, lengths).tolist()
    np.testing.assert_allclose(mine.predict_proba(X, lengths), theirs.predict_proba(X, lengths), atol=1e-6)


@EITHER
def test_a_table_can_be_fixed_while_others_learn(CategoricalHMM):
    X, _ = casino(CategoricalHMM).sample(300)
    model = CategoricalHMM(n_components=2, init_params="e", params="te", random_state=1, n_iter=4)
    model.startprob_ = np.array([0.25, 0.75])
    model.transmat_ = np.array([[0.5, 0.5], [0.5, 0.5]])
    model.fit(X)
    assert model.startprob_.tolist() == [0.25, 0.75]
    assert abs(model.emissionprob_ - 1 / 6).max() > 0.01


@EITHER
def test_the_monitor_tells_whether_it_converged(CategoricalHMM):
    X, _ = casino(CategoricalHMM).sample(500)
    model = CategoricalHMM(n_components=2, random_state=3, n_iter=200, tol=0.5).fit(X)
    assert model.monitor_.converged
    assert 2 <= model.monitor_.iter < 200
    history = list(model.monitor_.history)
    assert history[-1] - history[-2] < 0.5 <= history[-2] - history[-3]
    assert (np.diff(history) > 0).all()


@EITHER
def test_a_monitor_of_hmmlearns_own_kind_may_be_given(CategoricalHMM):
    from hmmlearn.base import ConvergenceMonitor

    class Threshold(ConvergenceMonitor):
        @property
        def converged(self):
            return self.iter == self.n_iter or (self.history and self.history[-1] >= -600.0)

    X, _ = casino(CategoricalHMM).sample(350)
    model = CategoricalHMM(n_components=2, random_state=3, n_iter=40)
    model.monitor_ = Threshold(model.monitor_.tol, model.monitor_.n_iter, model.monitor_.verbose)
    model.fit(X)
    assert isinstance(model.monitor_, Threshold)
    assert model.monitor_.history[-1] >= -600.0
    assert model.monitor_.iter < 40


@EITHER
def test_a_model_is_saved_and_loaded(CategoricalHMM, tmp_path):
    X, _ = casino(CategoricalHMM).sample(200)
    model = CategoricalHMM(n_components=2, random_state=0).fit(X)
    (tmp_path / "model.pkl").write_bytes(pickle.dumps(model))
    again = pickle.loads((tmp_path / "model.pkl").read_bytes())
    assert (again.predict(X) == model.predict(X)).all()


@EITHER
def test_samples_go_on_from_where_they_ended(CategoricalHMM):
    model = casino(CategoricalHMM)
    X, Z = model.sample(n_samples=10)
    more, states = model.sample(n_samples=10, currstate=Z[-1])
    assert states[0] == Z[-1]
    assert X.shape == more.shape == (10, 1)


def test_the_number_of_states_is_chosen_by_aic_and_bic():
    X, _ = casino(trellis.CategoricalHMM).sample(400)
    for states in (1, 2, 3):
        mine, theirs = (which(states, n_iter=3, init_params="", tol=-np.inf) for which in BOTH)
        for model in (mine, theirs):
            random = np.random.RandomState(states)
            model.startprob_, model.transmat_ = np.full(states, 1 / states), random.dirichlet(np.ones(states), states)
            model.emissionprob_ = random.dirichlet(np.ones(6), states)
            model.fit(X)
        assert mine.aic(X) == pytest.approx(theirs.aic(X), abs=1e-5)
        assert mine.bic(X) == pytest.approx(theirs.bic(X), abs=1e-5)


def test_decoding_says_how_probable_the_path_is():
    X, _ = casino(trellis.CategoricalHMM).sample(100)
    for algorithm in ("viterbi", "map"):
        mine, theirs = (casino(which).decode(X, algorithm=algorithm) for which in BOTH)
        assert mine[0] == pytest.approx(theirs[0], abs=1e-6)
        assert (mine[1] == theirs[1]).all()
    for mine, theirs in zip(*(casino(which).score_samples(X) for which in BOTH), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
