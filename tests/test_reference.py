import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from . import reference
from .inference.models import random_belief, random_hmm, random_log_emission


@st.composite
def tiny(draw):
    """One sequence under a model small enough to enumerate, with zeros, missing tokens and beliefs."""
    states, time = draw(st.integers(1, 3)), draw(st.integers(1, 5))
    seed, zeros = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.0, 0.3, 0.6]))
    log_emission_TS = random_log_emission(1, time, states, seed, zeros)[0]
    missing = draw(st.lists(st.integers(0, time - 1), max_size=2))
    log_emission_TS[missing] = 0.0
    log_belief_S = random_belief(1, states, seed, zeros)[0].log() if draw(st.booleans()) else None
    return *random_hmm(states, seed, zeros), log_emission_TS, log_belief_S


@given(tiny())
def test_log_likelihood_is_the_sum_over_paths(model):
    assert_close(reference.log_likelihood(*model), reference.enumerate_paths(*model).log_likelihood())


@given(tiny())
def test_token_log_probs_are_ratios_of_prefix_likelihoods(model):
    start, transition, log_emission_TS, belief = model
    log_prob_T = reference.filter(*model).log_prob_T
    for t in range(1, len(log_emission_TS) + 1):
        prefix = reference.enumerate_paths(start, transition, log_emission_TS[:t], belief).log_likelihood()
        assert_close(log_prob_T[:t].sum(), prefix)
        if prefix == -torch.inf:
            assert (log_prob_T[t - 1 :] == -torch.inf).all()
            break


@given(tiny())
def test_beliefs_are_posteriors_of_prefixes(model):
    start, transition, log_emission_TS, belief = model
    log_belief_TS = reference.filter(*model).log_belief_TS
    for t in range(1, len(log_emission_TS) + 1):
        truth = reference.enumerate_paths(start, transition, log_emission_TS[:t], belief).posterior()[-1]
        assert_close(log_belief_TS[t - 1].exp(), truth)


@given(tiny())
def test_counts_are_sums_over_paths(model):
    _, transition, log_emission_TS, belief = model
    counts = reference.expected_counts(*model)
    truth = reference.enumerate_paths(*model)
    assert_close(counts.posterior_TS, truth.posterior())
    assert_close(reference.smooth(*model), truth.posterior())
    if belief is None:
        assert_close(counts.start_S, truth.posterior()[0])
        assert_close(counts.transition, truth.pairs().sum(0))
    else:
        # The belief is the start of the same sequence with one unseen token before it.
        unseen = torch.cat([torch.zeros_like(log_emission_TS[:1]), log_emission_TS])
        truth = reference.enumerate_paths(belief, transition, unseen)
        assert not counts.start_S.any()
        assert_close(counts.transition, truth.pairs().sum(0))


@given(tiny(), st.integers(1, 6))
def test_best_paths_are_the_best_of_all(model, k):
    best, truth = reference.k_best(*model[:3], k, model[3]), reference.enumerate_paths(*model).best(k)
    assert [path.log_prob for path in best] == pytest.approx([path.log_prob for path in truth])
    assert len({path.states for path in best}) == len(best)
    first = reference.viterbi(*model)
    assert first == (best[0] if best else (-math.inf, ()))


@given(tiny())
def test_entropy_is_the_entropy_over_paths(model):
    assert_close(reference.posterior_entropy(*model), reference.enumerate_paths(*model).entropy())


@given(tiny())
def test_gradients_are_expected_counts(model):
    start, transition, log_emission_TS, belief = model
    leaves = [x.clone().requires_grad_() for x in (start, transition, log_emission_TS)]
    total = reference.log_likelihood(*leaves, belief)
    if total == -torch.inf:
        return
    total.backward()
    counts = reference.expected_counts(*model)
    for leaf, count in zip(leaves, (counts.start_S, counts.transition, counts.posterior_TS), strict=True):
        assert_close(torch.zeros_like(leaf) if leaf.grad is None else leaf.grad, count)


def test_next_state_is_one_step_of_the_chain():
    log_start_S, log_transition_SS = random_hmm(4, seed=0, zeros=0.4)
    predicted_S = reference.next_state(log_start_S, log_transition_SS).exp()
    assert_close(predicted_S, log_start_S.exp() @ log_transition_SS.exp())


def test_an_impossible_token_makes_the_rest_impossible():
    log_start_S, log_transition_SS = random_hmm(3, seed=1)
    log_emission_TS = random_log_emission(1, 5, 3, seed=1)[0]
    log_emission_TS[2] = -torch.inf
    filtered = reference.filter(log_start_S, log_transition_SS, log_emission_TS)
    assert filtered.log_prob_T.isfinite().tolist() == [True, True, False, False, False]
    assert not filtered.log_prob_T.isnan().any()
    assert (filtered.log_belief_TS[2:] == -torch.inf).all()
    counts = reference.expected_counts(log_start_S, log_transition_SS, log_emission_TS)
    assert not any(x.any() for x in counts[1:])
    assert reference.posterior_entropy(log_start_S, log_transition_SS, log_emission_TS) == -torch.inf


def test_no_tokens_have_probability_one():
    log_start_S, log_transition_SS = random_hmm(3, seed=2)
    nothing = (log_start_S, log_transition_SS, torch.empty(0, 3))
    assert reference.log_likelihood(*nothing) == 0
    assert reference.posterior_entropy(*nothing) == 0
    assert reference.viterbi(*nothing) == (0.0, ())
    assert reference.expected_counts(*nothing).posterior_TS.shape == (0, 3)


def test_emissions_far_below_float32_are_no_matter():
    """This is what the reference is for in production: the scaled recursion cannot hold such a spread."""
    log_start_S, log_transition_SS = random_hmm(5, seed=3)
    log_emission_TS = 2000.0 * random_log_emission(1, 40, 5, seed=3)[0]
    counts = reference.expected_counts(log_start_S, log_transition_SS, log_emission_TS)
    assert counts.log_prob_T.isfinite().all()
    assert_close(counts.posterior_TS.sum(1), torch.ones(40, dtype=torch.float64))
    assert_close(counts.transition.sum(), torch.tensor(39.0, dtype=torch.float64))
