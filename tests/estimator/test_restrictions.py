"""Forbidden, required and tied transitions: the M step against a general optimiser, EM against its promise."""

import numpy as np
import pytest
from hypothesis import assume, given, settings
from hypothesis import strategies as st
from scipy.optimize import minimize

from trellis import CategoricalHMM, TrellisError
from trellis.estimator.restrictions import Restrictions, tied

from .peers import data

S = 3
LEAVING = [[1, 1, 0], [1, 0, 0], [1, 1, 1]]  # state 1 must go to 0


def objective(weight, table):
    there = weight > 0
    return float((weight[there] * np.log(np.maximum(table[there], 1e-300))).sum())


def slow(weight, allowed, ties, start):
    """The same optimum by a general method for constrained problems, one variable an entry."""
    members = [np.flatnonzero(ties.ravel() == group) for group in np.unique(ties[ties >= 0])]
    equal = [
        {"type": "eq", "fun": lambda x, a=group[0], b=other: x[a] - x[b]} for group in members for other in group[1:]
    ]
    sums = [{"type": "eq", "fun": lambda x, i=i: x.reshape(S, S)[i].sum() - 1} for i in range(S)]
    bounds = [(1e-9, 1) if may else (0, 0) for may in allowed.ravel()]
    found = minimize(
        lambda x: -objective(weight, x.reshape(S, S)) / weight.sum(), start.ravel(), bounds=bounds,
        constraints=equal + sums, method="SLSQP", options={"ftol": 1e-15, "maxiter": 1000},
    )  # fmt: skip
    return found.x.reshape(S, S)


def possible(allowed, ties):
    try:
        return Restrictions.of(allowed, ties, S)
    except TrellisError:
        return None


@given(st.integers(0, 10**6))
@settings(max_examples=40)
def test_the_m_step_is_the_optimum_of_a_general_method(seed):
    rng = np.random.default_rng(seed)
    allowed = rng.random((S, S)) < 0.8
    ties = np.where(allowed & (rng.random((S, S)) < 0.6), rng.integers(2, size=(S, S)), -1)
    restrictions = possible(allowed, ties)
    assume(restrictions is not None)
    start = restrictions.drawn(rng.dirichlet(np.ones(S), S))
    weight = np.where(allowed, rng.gamma(1.0, 10.0, (S, S)), 0.0)
    found = tied(weight, start, ties)
    keeps(found, allowed, ties)
    best = slow(weight, allowed, ties, start)
    gain = (objective(weight, found) - objective(weight, best)) / weight.sum()
    assert gain > -1e-7  # the general method may stop short of the optimum
    if gain < 1e-9:
        np.testing.assert_allclose(found, best, atol=1e-3)


def keeps(table, allowed, ties):
    np.testing.assert_allclose(table.sum(1), 1, atol=1e-10)
    assert (table >= 0).all()
    assert (table[~allowed] == 0).all()
    for group in np.unique(ties[ties >= 0]):
        assert len(set(table[ties == group].tolist())) == 1  # to the bit


def test_without_ties_rows_are_shares_of_counts():
    weight = np.array([[1.0, 2.0, 0.0], [3.0, 4.0, 3.0], [0.0, 0.0, 0.0]])
    old = np.array([[0.4, 0.5, 0.1], [0.2, 0.3, 0.5], [0.7, 0.2, 0.1]])
    found = tied(weight, old, np.full((S, S), -1))
    np.testing.assert_allclose(found, [[1 / 3, 2 / 3, 0], [0.3, 0.4, 0.3], [0.7, 0.2, 0.1]], atol=1e-12)


def test_states_that_stay_alike_share_pooled_counts():
    """One probability of staying: θ = staying / all, and the rest by what each state did else."""
    weight = np.array([[10.0, 1.0, 3.0], [5.0, 2.0, 5.0], [0.0, 4.0, 8.0]])
    ties = np.where(np.eye(S, dtype=bool), 0, -1)
    found = tied(weight, np.full((S, S), 1 / 3), ties)
    stay = np.trace(weight) / weight.sum()
    np.testing.assert_allclose(np.diag(found), stay, atol=1e-12)
    np.testing.assert_allclose(found[0, 1:], (1 - stay) * np.array([0.25, 0.75]), atol=1e-12)
    np.testing.assert_allclose(found[1, [0, 2]], (1 - stay) * np.array([0.5, 0.5]), atol=1e-12)


def test_rows_that_are_tied_whole_are_one_row():
    weight = np.array([[10.0, 1.0, 3.0], [5.0, 2.0, 5.0], [0.0, 4.0, 8.0]])
    found = tied(weight, np.full((S, S), 1 / 3), np.tile(np.arange(S), (S, 1)))
    np.testing.assert_allclose(found, np.tile(weight.sum(0) / weight.sum(), (S, 1)), atol=1e-12)


def test_a_row_that_was_never_left_stays_but_for_what_is_tied():
    weight = np.array([[8.0, 2.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 0.0]])
    old = np.array([[0.5, 0.5, 0.0], [0.5, 0.2, 0.3], [0.1, 0.2, 0.7]])
    ties = np.full((S, S), -1)
    ties[0, 0] = ties[1, 0] = 4
    found = tied(weight, old, ties)
    np.testing.assert_allclose(found, [[0.8, 0.2, 0], [0.8, 0.08, 0.12], [0.1, 0.2, 0.7]], atol=1e-9)


def test_a_row_that_was_never_left_still_limits_what_it_shares():
    """State 1 has the shared probability twice, so it is a half at most, whatever state 0 would like."""
    weight = np.array([[9.0, 1.0, 0.0], [0.0, 0.0, 0.0], [0.0, 0.0, 1.0]])
    old = np.array([[0.3, 0.7, 0.0], [0.3, 0.3, 0.4], [0.0, 0.0, 1.0]])
    ties = np.full((S, S), -1)
    ties[0, 0] = ties[1, 0] = ties[1, 1] = 0
    found = tied(weight, old, ties)
    np.testing.assert_allclose(found[0], [0.5, 0.5, 0], atol=1e-6)
    keeps(found, old > 0, ties)


@pytest.mark.parametrize("scale", [1e-8, 1.0, 1e8])
def test_the_scale_of_counts_does_not_matter(scale):
    weight = np.random.default_rng(0).gamma(1.0, 1.0, (S, S))
    ties = np.array([[0, 1, -1], [1, 0, -1], [0, -1, 1]])
    np.testing.assert_allclose(
        tied(scale * weight, np.full((S, S), 1 / 3), ties), tied(weight, np.full((S, S), 1 / 3), ties), atol=1e-10
    )


ALLOWED = np.array([[1, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 0]], dtype=bool)
TIES = np.array([[0, -1, -1, -1], [-1, 0, -1, -1], [-1, -1, 0, -1], [-1, -1, -1, -1]])


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("prior", [1.0, 1.5])
def test_em_never_loses_and_keeps_every_restriction(seed, prior):
    """A ring that is left only forwards, with one probability of staying, and a state that must go on at once."""
    model = CategoricalHMM(
        4, random_state=seed, n_iter=30, tol=-np.inf, transmat_prior=prior, transmat_allowed=ALLOWED, transmat_ties=TIES
    )
    X = data(seed, 5, [60, 40, 5])
    model.fit(X, [60, 40, 5])
    keeps(model.transmat_, ALLOWED, TIES)
    assert model.transmat_[3, 0] == 1
    gains = np.diff(model.monitor_.history)
    if prior == 1.0:
        assert (gains > -1e-8).all()
        assert model.monitor_.history[-1] > model.monitor_.history[0] + 1
    before = model.transmat_
    model.partial_fit(X[:60], [60])
    keeps(model.transmat_, ALLOWED, TIES)
    assert not np.allclose(before, model.transmat_)


def test_where_em_ends_no_small_step_within_the_ties_is_better():
    """Numerical: along directions that keep rows' sums and ties, the likelihood falls from the tables found."""
    other = ~np.eye(3, dtype=bool)
    true = CategoricalHMM(3)
    moves = np.array([[0, 0.2, 0.1], [0.1, 0, 0.2], [0.2, 0.1, 0]])
    true.startprob_, true.transmat_ = np.full(3, 1 / 3), np.where(other, moves, 0.7)
    true.emissionprob_ = np.where(other, 0.05, 0.9)
    X, _ = true.sample(400, random_state=0)
    ties = np.where(other, -1, 0)
    model = CategoricalHMM(3, init_params="st", params="st", random_state=0, n_iter=2000, tol=1e-12, transmat_ties=ties)
    model.emissionprob_ = true.emissionprob_
    model.fit(X)
    best, found, rng = model.score(X), model.transmat_, np.random.default_rng(0)
    assert found.min() > 0.01
    stay = found[0, 0]
    for step in (-1e-2, 1e-2):
        model.transmat_ = np.where(other, found * (1 - stay - step) / (1 - stay), stay + step)
        assert model.score(X) < best - 1e-6
    for _ in range(10):
        move = np.where(other, rng.normal(size=(3, 3)), 0.0)
        move -= other * move.sum(1, keepdims=True) / 2
        model.transmat_ = found + 3e-3 * move
        assert model.score(X) < best


def test_tables_that_were_set_begin_there():
    model = CategoricalHMM(4, random_state=0, n_iter=5, init_params="se", transmat_allowed=ALLOWED, transmat_ties=TIES)
    model.transmat_ = np.array([[0.6, 0.4, 0, 0], [0, 0.6, 0.4, 0], [0, 0, 0.6, 0.4], [1, 0, 0, 0]])
    model.fit(data(0, 5, [60]))
    keeps(model.transmat_, ALLOWED, TIES)


def test_transitions_that_do_not_learn_stay():
    start = np.array([[0.6, 0.4, 0, 0], [0, 0.6, 0.4, 0], [0, 0, 0.6, 0.4], [1, 0, 0, 0]])
    model = CategoricalHMM(4, n_iter=3, init_params="se", params="se", transmat_ties=TIES, random_state=0)
    model.transmat_ = start
    assert (model.fit(data(0, 5, [60])).transmat_ == start).all()


@pytest.mark.parametrize(
    ("allowed", "ties", "want"),
    [(None, None, 6), (np.tri(3, dtype=bool), None, 3), (None, np.where(np.eye(3) > 0, 0, -1), 4),
     (None, np.tile(np.arange(3), (3, 1)), 2), (np.eye(3, dtype=int), None, 0)],
)  # fmt: skip
def test_restrictions_leave_fewer_numbers_to_choose(allowed, ties, want):
    assert Restrictions.of(allowed, ties, 3).free_numbers(3) == want
    model = CategoricalHMM(3, random_state=0, transmat_allowed=allowed, transmat_ties=ties)
    X = data(0, 4, [50])
    model.fit(X)
    assert model.aic(X) == pytest.approx(-2 * model.score(X) + 2 * (2 + want + 9))


@pytest.mark.parametrize(
    ("given_", "said"),
    [
        ({"transmat_allowed": np.ones((2, 3), dtype=bool)}, "true or false for each of 3 × 3 transitions"),
        ({"transmat_allowed": np.full((3, 3), 0.5)}, "true or false for each of 3 × 3 transitions"),
        ({"transmat_allowed": np.full((3, 3), 2)}, "true or false for each of 3 × 3 transitions"),
        ({"transmat_allowed": [[1, 1, 1], [0, 0, 0], [1, 1, 1]]}, "lets state 1 go nowhere"),
        ({"transmat_ties": [[0, 1], [1, 0]]}, r"has shape \(2, 2\)"),
        ({"transmat_ties": np.full((3, 3), -2)}, "holds -2: number the groups from 0"),
        ({"transmat_ties": np.full((3, 3), 0.5)}, "transmat_ties holds floats where whole numbers belong"),
        ({"transmat_allowed": np.eye(3, dtype=bool), "transmat_ties": np.zeros((3, 3), dtype=int)},
         "0 for the transition 0 → 1, which transmat_allowed forbids"),
        ({"transmat_allowed": LEAVING, "transmat_ties": [[0, -1, -1], [0, -1, -1], [-1, -1, -1]]},
         "transmat_ties cannot hold"),  # state 1 must go to 0, so state 0 would have to stay, and not go to 1
        ({"transmat_allowed": LEAVING, "transmat_ties": [[0, 0, -1], [0, -1, -1], [-1, -1, -1]]},
         "transmat_ties cannot hold"),  # a half in state 0, one in state 1
    ],
)  # fmt: skip
def test_what_cannot_be_is_refused_in_a_sentence(given_, said):
    with pytest.raises(TrellisError, match=said):
        CategoricalHMM(3, **given_).fit(data(0, 3, [20]))


def test_tables_that_were_set_against_the_restrictions_are_refused():
    model = CategoricalHMM(2, init_params="se", transmat_allowed=[[1, 1], [0, 1]])
    model.transmat_ = np.full((2, 2), 0.5)
    with pytest.raises(
        TrellisError, match=r"transmat_ has 0\.5 for the transition 1 → 0, which transmat_allowed forbids"
    ):
        model.fit(data(0, 3, [20]))
    model = CategoricalHMM(2, init_params="se", transmat_ties=[[0, -1], [-1, 0]])
    model.transmat_ = np.array([[0.5, 0.5], [0.3, 0.7]])
    with pytest.raises(TrellisError, match=r"transmat_ has 0\.5 and 0\.7 where transmat_ties holds 0"):
        model.fit(data(0, 3, [20]))
