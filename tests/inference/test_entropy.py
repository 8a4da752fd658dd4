import math

import pytest
import torch
from hypothesis import given, settings
from torch.testing import assert_close

from trellis.inference import Chain, entropy

from .. import reference
from .blocked_models import (
    EXAMPLES,
    KINDS,
    BlockedHmm,
    Case,
    a_large_case,
    an_improbable_beginning,
    an_improbable_case,
    cases,
    improbable_cases,
)
from .models import ragged, random_belief, random_hmm, random_log_emission, rows_of


@given(ragged())
def test_entropy_is_the_entropy_over_all_paths(model):
    for found, row in zip(entropy(Chain.dense(*model)), rows_of(*model), strict=True):
        assert_close(found, reference.enumerate_paths(*row).entropy())


def test_large_models_agree_with_the_reference():
    start, transition = random_hmm(50, seed=0, zeros=0.3)
    log_emission_BTS, lengths_B = random_log_emission(3, 30, 50, seed=0, zeros=0.2), torch.tensor([30, 12, 1])
    model = (start, transition, log_emission_BTS, lengths_B, random_belief(3, 50, seed=0))
    truth = torch.stack([reference.posterior_entropy(*row) for row in rows_of(*model)])
    assert_close(entropy(Chain.dense(*model)), truth)
    single = Chain.dense(*(x.float() for x in model[:3]), lengths_B, model[4].float())
    assert_close(entropy(single), truth, rtol=1e-5, atol=0)


def test_nothing_known_is_the_entropy_of_the_chain():
    """All tokens missing and all steps uniform: every path is as good as any other."""
    uniform = torch.full((4, 4), -math.log(4.0))
    entropy_B = entropy(Chain.dense(uniform[0], uniform, torch.zeros(1, 9, 4)))
    assert_close(entropy_B, torch.tensor([9 * math.log(4.0)], dtype=torch.float64))


def test_tokens_beyond_float64_fall_back_to_log_space():
    start, transition = random_hmm(4, seed=1, zeros=0.5)
    log_emission_BTS = 500.0 * random_log_emission(2, 12, 4, seed=1)
    truth = torch.stack([reference.posterior_entropy(start, transition, row) for row in log_emission_BTS])
    assert truth.isfinite().all()
    assert_close(entropy(Chain.dense(start, transition, log_emission_BTS)), truth)


# Chains of every kind


@given(cases())
@settings(max_examples=EXAMPLES)
def test_entropies_of_every_kind_are_those_over_all_paths_of_the_dense_model(case):
    truth = torch.stack([reference.enumerate_paths(*row).entropy() for row in case.rows()])
    for kind, chain in case.chains():
        assert_close(entropy(chain), truth, msg=kind)


@given(cases(labelled=True))
@settings(max_examples=EXAMPLES)
def test_entropies_of_labelled_rows_are_over_the_paths_that_agree(case):
    truth = torch.stack([reference.enumerate_paths(*row).entropy() for row in case.rows()])
    for kind, chain in case.chains():
        assert_close(entropy(chain), truth, msg=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_entropies_of_every_kind_are_the_dense_ones(kind):
    case = a_large_case()
    truth = entropy(case.dense())
    assert_close(entropy(case.chain(kind)), truth)
    single = case._replace(hmm=case.hmm.to(torch.float32)).chain(kind)
    assert_close(entropy(single), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
@pytest.mark.parametrize("make", [an_improbable_case, an_improbable_beginning])
def test_entropies_count_steps_that_float32_has_no_probability_for(make, surprise, kind):
    case = make(surprise)
    truth = torch.stack([reference.posterior_entropy(*row) for row in case.rows()])
    assert make is an_improbable_beginning or (truth[::2] > 0.1).all()
    assert_close(entropy(case.chain(kind)), truth, rtol=1e-5, atol=1e-9)


@given(improbable_cases())
@settings(max_examples=EXAMPLES)
def test_entropies_of_what_float32_cannot_hold_are_those_over_all_paths(case):
    truth = torch.stack([reference.enumerate_paths(*row).entropy() for row in case.rows()])
    for kind, chain in case.chains():
        assert_close(entropy(chain), truth, rtol=1e-5, atol=1e-6, msg=kind)


def test_a_first_step_that_float32_has_no_probability_for_is_counted_though_others_are_possible():
    """The row may begin with the first state, but then it is less probable still."""
    log_transition_SS = torch.tensor([[0.0, -100.0, -100.5], [-300.0, 0.0, -1.0], [-300.0, -1.0, 0.0]])
    log_emission_BTS = torch.tensor([[[0.0, 0.0, 0.0], [-300.0, 0.0, 0.0]]])
    chain = Chain.dense(torch.zeros(3), log_transition_SS, log_emission_BTS, belief_BS=torch.tensor([[1.0, 0.0, 0.0]]))
    log_belief_S = torch.tensor([0.0, -torch.inf, -torch.inf])
    truth = reference.enumerate_paths(torch.zeros(3), log_transition_SS, log_emission_BTS[0], log_belief_S).entropy()
    assert_close(entropy(chain)[0], truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("kind", KINDS)
def test_a_step_that_float32_has_no_probability_for_is_counted_though_others_are_possible(kind):
    log_transition_SS = torch.tensor([[0.0, -100.0, -100.5], [-300.0, 0.0, -1.0], [-300.0, -1.0, 0.0]])
    log_word_VS = torch.tensor([[0.0, -torch.inf, -torch.inf], [-300.0, 0.0, 0.0]])
    hmm = BlockedHmm(torch.zeros(3), log_transition_SS, log_word_VS, torch.tensor([[0, 1, 2]]), torch.tensor([0, 0]))
    case = Case(hmm, torch.tensor([[0, 1]]))
    truth = torch.tensor([-100.0, -100.5], dtype=torch.float64).softmax(0)
    assert_close(entropy(case.chain(kind))[0], torch.special.entr(truth).sum(), rtol=1e-5, atol=1e-6)
