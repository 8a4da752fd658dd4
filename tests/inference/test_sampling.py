import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from trellis.inference import Chain, sample_posterior, sampling

from .. import reference
from .blocked_models import (
    EXAMPLES,
    KINDS,
    Case,
    an_improbable_beginning,
    an_improbable_case,
    cases,
    improbable_cases,
    random_blocked_hmm,
)
from .frequencies import assert_frequencies, code, seeded
from .models import ragged, random_belief, random_hmm, random_log_emission, rows_of

T = torch.tensor


@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_whole_paths_come_as_often_as_their_posterior(zeros):
    """Every path's frequency, so posteriors and pairs of neighbours with it."""
    start, transition = random_hmm(3, seed=2, zeros=zeros)
    log_emission_BTS, lengths_B = random_log_emission(3, 4, 3, seed=2, zeros=zeros / 2), T([4, 2, 1])
    log_emission_BTS[0, 1] = 0.0
    model = (start, transition, log_emission_BTS, lengths_B, random_belief(3, 3, seed=2))
    states_BNT = sample_posterior(Chain.dense(*model), 20_000, seeded())
    for states_NT, row in zip(states_BNT, rows_of(*model), strict=True):
        length = len(row[2])
        assert (states_NT[:, length:] == -1).all()
        truth = reference.enumerate_paths(*row)
        assert_frequencies(code(states_NT[:, :length], 3), truth.weights())


def test_neighbouring_states_come_as_often_as_in_a_large_model():
    start, transition = random_hmm(12, seed=3)
    log_emission_BTS = random_log_emission(1, 30, 12, seed=3)
    states_NT = sample_posterior(Chain.dense(start, transition, log_emission_BTS), 5_000, seeded())[0]
    counts = reference.expected_counts(start, transition, log_emission_BTS[0])
    for t in (0, 14, 29):
        frequency_S = torch.bincount(states_NT[:, t], minlength=12) / 5_000
        assert_close(frequency_S.double(), counts.posterior_TS[t], rtol=0, atol=0.03)
    pairs = torch.bincount((states_NT[:, :-1] * 12 + states_NT[:, 1:]).flatten(), minlength=144) / 5_000
    assert_close(pairs.double().view(12, 12), counts.transition, rtol=0, atol=0.1)


@given(ragged())
def test_every_draw_is_a_possible_path(model):
    states_BNT = sample_posterior(Chain.dense(*model), 4, seeded())
    for states_NT, row in zip(states_BNT, rows_of(*model), strict=True):
        truth, length = reference.enumerate_paths(*row), len(row[2])
        if truth.log_likelihood() == -torch.inf:
            assert (states_NT == -1).all()
        else:
            assert (truth.log_joint_N[code(states_NT[:, :length], len(row[0]))] > -torch.inf).all()
            assert (states_NT[:, length:] == -1).all()


def test_chunks_are_the_same_distribution(monkeypatch):
    monkeypatch.setattr(sampling, "CHUNK", 3 * 700)
    start, transition = random_hmm(3, seed=4)
    log_emission_BTS = random_log_emission(1, 3, 3, seed=4)
    states_BNT = sample_posterior(Chain.dense(start, transition, log_emission_BTS), 5_000, seeded())
    truth = reference.enumerate_paths(start, transition, log_emission_BTS[0])
    assert_frequencies(code(states_BNT[0], 3), truth.weights())


def test_paths_through_beliefs_below_float32_are_drawn_too():
    """After two tokens state 1 is e⁻¹²⁰ likely, and the third token can come from nowhere else."""
    start, transition = T([0.5, 0.3, 0.2]).log(), T([[0.5, 0.0, 0.5], [0.0, 1.0, 0.0], [0.5, 0.0, 0.5]]).log()
    log_emission_BTS = T([[[0.0, -60.0, 0.0], [0.0, -60.0, 0.0], [-torch.inf, -1.0, -torch.inf]]])
    states_BNT = sample_posterior(Chain.dense(start, transition, log_emission_BTS), 10, seeded())
    assert (states_BNT == 1).all()


def test_a_seed_repeats_its_draws():
    start, transition = random_hmm(5, seed=5)
    log_emission_BTS = random_log_emission(2, 6, 5, seed=5)
    first, second = (sample_posterior(Chain.dense(start, transition, log_emission_BTS), 7, seeded(8)) for _ in "ab")
    assert torch.equal(first, second)


def test_no_rows():
    start, transition = random_hmm(3, seed=10, dtype=torch.float32)
    assert sample_posterior(Chain.dense(start, transition, torch.empty(0, 4, 3)), 2).shape == (0, 2, 4)


def test_there_must_be_samples():
    with pytest.raises(ValueError, match="cannot be 0: give 1 or more"):
        sample_posterior(Chain.dense(*random_hmm(3, seed=1), random_log_emission(1, 2, 3, seed=1)), 0)


# Chains of every kind


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("overlapping", [False, True])
@pytest.mark.parametrize("zeros", [0.0, 0.3])
def test_paths_of_every_kind_come_as_often_as_their_posterior_in_the_dense_model(zeros, overlapping, kind):
    hmm = random_blocked_hmm(2, 3, 6, seed=2, zeros=zeros, overlapping=overlapping)
    case = Case(hmm, T([[0, 4, 2], [3, 1, 0], [5, 0, 0], [1, 1, 0]]), T([3, 3, 1, 2]), random_belief(4, 6, seed=2))
    states_BNT = sample_posterior(case.chain(kind), 20_000, seeded())
    for states_NT, row in zip(states_BNT, case.rows(), strict=True):
        length, truth = len(row[2]), reference.enumerate_paths(*row)
        assert truth.log_likelihood() > -torch.inf
        assert (states_NT[:, length:] == -1).all()
        assert_frequencies(code(states_NT[:, :length], 6), truth.weights())


@pytest.mark.parametrize("kind", ["dense", "in pieces", "streamed"])
def test_paths_through_missing_and_labelled_tokens_come_as_often_as_their_posterior(kind):
    hmm = random_blocked_hmm(2, 2, 6, seed=3)
    missing_BT = T([[False, True, False], [True, True, False], [True, False, False]])
    labels_BT = T([[-1, -1, -1], [-1, 2, -1], [-1, -1, -1]])
    tokens_BT, lengths_B = T([[0, 4, 2], [3, 1, 5], [5, 0, 0]]), T([3, 3, 1])
    case = Case(hmm, tokens_BT, lengths_B, missing_BT=missing_BT, labels_BT=labels_BT)
    for states_NT, row in zip(sample_posterior(case.chain(kind), 20_000, seeded()), case.rows(), strict=True):
        assert_frequencies(code(states_NT[:, : len(row[2])], 4), reference.enumerate_paths(*row).weights())


def check_draws(case):
    """Every draw is a possible path; an impossible row has none."""
    rows = [(reference.enumerate_paths(*row), len(row[2])) for row in case.rows()]
    for kind, chain in case.chains():
        for states_NT, (truth, length) in zip(sample_posterior(chain, 4, seeded()), rows, strict=True):
            if truth.log_likelihood() == -torch.inf:
                assert (states_NT == -1).all(), kind
            else:
                drawn_N = code(states_NT[:, :length], truth.states)
                assert (truth.log_joint_N[drawn_N] > -torch.inf).all(), kind
                assert (states_NT[:, length:] == -1).all(), kind


@given(cases())
@settings(max_examples=EXAMPLES)
def test_every_draw_of_every_kind_is_a_possible_path(case):
    check_draws(case)


@given(cases(labelled=True))
@settings(max_examples=EXAMPLES)
def test_every_draw_agrees_with_the_labels(case):
    check_draws(case)


@given(improbable_cases())
@settings(max_examples=EXAMPLES)
def test_every_draw_from_what_float32_cannot_hold_is_a_possible_path(case):
    check_draws(case)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
@pytest.mark.parametrize("make", [an_improbable_case, an_improbable_beginning])
def test_draws_take_steps_that_float32_has_no_probability_for(make, surprise, kind):
    case = make(surprise)
    states_BNT = sample_posterior(case.chain(kind), 5_000, seeded())
    for states_NT, row in zip(states_BNT, case.rows(), strict=True):
        assert_frequencies(code(states_NT[:, : len(row[2])], 4), reference.enumerate_paths(*row).weights())
