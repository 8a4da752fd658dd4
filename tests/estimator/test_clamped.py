"""States that are given at some places, in every question: against all paths that agree with them."""

import itertools
from collections import Counter

import numpy as np
import pytest

from trellis import CategoricalHMM, TrellisError

from .peers import given, ours, tables

X, LENGTHS = np.array([0, 2, 1, 1, 0, 2]), [4, 2]
LABELS = np.array([-1, 1, -1, -1, 0, -1])
STATES = 3


def agreeing(model, symbols, labels):
    """Every path that agrees with the labels, with p(path, symbols)."""
    start, transition, emission = model.startprob_, model.transmat_, model.emissionprob_
    for path in itertools.product(range(STATES), repeat=len(symbols)):
        if all(label in (-1, state) for label, state in zip(labels, path, strict=True)):
            steps = np.prod([transition[pair] for pair in itertools.pairwise(path)])
            yield path, start[path[0]] * steps * np.prod(emission[list(path), symbols])


def pieces():
    at = 0
    for length in LENGTHS:
        yield slice(at, at + length)
        at += length


@pytest.mark.parametrize("dtype", ["float64", "float32"])
def test_every_question_is_about_paths_that_agree(dtype):
    model, near = ours(0, STATES, 3, dtype=dtype), 1e-9 if dtype == "float64" else 1e-4
    scores = model.score_sequences(X, LENGTHS, labels=LABELS)
    posterior = model.predict_proba(X, LENGTHS, labels=LABELS)
    best, states = model.decode(X, LENGTHS, labels=LABELS)
    marginal, most = model.decode(X, LENGTHS, "map", labels=LABELS)
    next_symbol = model.predict_next_proba(X, LENGTHS, labels=LABELS)[:, 0]
    total = 0.0
    for number, part in enumerate(pieces()):
        paths = list(agreeing(model, X[part], LABELS[part]))
        weight = sum(p for _, p in paths)
        assert scores[number] == pytest.approx(np.log(weight), abs=near)
        for place in range(part.stop - part.start):
            want = [sum(p for path, p in paths if path[place] == state) / weight for state in range(STATES)]
            np.testing.assert_allclose(posterior[part][place], want, atol=near)
        path, chance = max(paths, key=lambda pair: pair[1])
        assert states[part].tolist() == list(path)
        total += np.log(chance)
        after = sum(p * model.transmat_[path[-1]] for path, p in paths) / weight
        np.testing.assert_allclose(next_symbol[number], after @ model.emissionprob_, atol=near)
    assert best == pytest.approx(total, abs=near)
    assert model.score(X, LENGTHS, labels=LABELS) == pytest.approx(scores.sum())
    assert marginal == pytest.approx(posterior.max(1).sum())
    assert most.tolist() == posterior.argmax(1).tolist()
    assert model.predict(X, LENGTHS, labels=LABELS).tolist() == states.tolist()
    assert model.predict_next(X, LENGTHS, labels=LABELS)[:, 0].tolist() == next_symbol.argmax(1).tolist()


def test_no_label_at_all_is_no_restriction():
    model, nothing = ours(1, STATES, 3), np.full(6, -1)
    np.testing.assert_allclose(model.score_sequences(X, LENGTHS, labels=nothing), model.score_sequences(X, LENGTHS))
    assert model.predict(X, LENGTHS, labels=nothing).tolist() == model.predict(X, LENGTHS).tolist()


def test_states_that_cannot_be_make_their_sequence_impossible():
    start, _, emission = tables(0, STATES, 3)
    model = given(CategoricalHMM(STATES, init_params=""), start, np.eye(STATES), emission)
    labels = np.array([0, -1, -1, 1, 2, -1])
    assert np.isneginf(model.score_sequences(X, LENGTHS, labels=labels)).tolist() == [True, False]
    assert model.predict(X, LENGTHS, labels=labels).tolist() == [-1] * 4 + [2, 2]
    assert (model.predict_proba(X, LENGTHS, labels=labels)[:4] == 0).all()
    with pytest.raises(TrellisError, match="no sequence has the states of labels"):
        model.sample(4, random_state=0, labels=labels[:4])


def test_a_symbol_never_seen_may_have_a_known_state():
    model = ours(2, STATES, 3, unseen="missing")
    scores = model.score_sequences(np.array([0, 9, 1]), labels=[-1, 2, -1])
    start, transition, emission = model.startprob_, model.transmat_, model.emissionprob_
    want = (start * emission[:, 0] @ transition)[2] * (transition[2] @ emission[:, 1])
    assert scores[0] == pytest.approx(np.log(want))


def test_samples_are_drawn_from_all_sequences_with_these_states():
    model, labels, draws = ours(3, STATES, 2), np.array([-1, 1]), 300
    found = Counter()
    random = np.random.RandomState(0)
    for _ in range(draws):
        symbols, states = model.sample(2, random, labels=labels)
        assert symbols.shape == (2, 1)
        found[tuple(states.tolist()), tuple(symbols[:, 0].tolist())] += 1
    weights = {
        (path, symbols): p
        for symbols in itertools.product(range(2), repeat=2)
        for path, p in agreeing(model, list(symbols), labels)
    }
    total = sum(weights.values())
    assert set(found) <= set(weights)
    for one, weight in weights.items():
        want = weight / total
        assert found[one] / draws == pytest.approx(want, abs=5 * (want * (1 - want) / draws) ** 0.5 + 1e-3)


def test_a_seed_draws_the_same_and_currstate_is_the_first():
    model, labels = ours(3, STATES, 2), np.array([-1, -1, -1, 2, -1])
    first, again = (model.sample(5, 7, labels=labels) for _ in "ab")
    assert all((a == b).all() for a, b in zip(first, again, strict=True))
    for state in range(STATES):
        states = model.sample(5, 0, state, labels=labels)[1]
        assert (states[0], states[3]) == (state, 2)
    with pytest.raises(TrellisError, match="currstate=1 and the first of labels, 0, are two states"):
        model.sample(2, 0, 1, labels=[0, -1])


@pytest.mark.parametrize("labels", [[0, 1], [0, 0, 0, 0, 0, 3], [0.5] * 6, [-2] * 6])
def test_labels_that_do_not_fit_are_refused(labels):
    with pytest.raises(TrellisError, match="labels"):
        ours(0, STATES, 3).score(X, LENGTHS, labels=labels)
