import math

import pytest
import torch
from hypothesis import given
from torch.testing import assert_close

from trellis.inference import reference
from trellis.inference.entropy import blocked_entropy, posterior_entropy

from .blocked_models import a_large_case, an_improbable_case, blocked_cases
from .models import ragged, random_belief, random_hmm, random_log_emission, rows_of


@given(ragged())
def test_entropy_is_the_entropy_over_all_paths(model):
    entropy_B = posterior_entropy(*model)
    for entropy, row in zip(entropy_B, rows_of(*model), strict=True):
        assert_close(entropy, reference.enumerate_paths(*row).entropy())


def test_large_models_agree_with_the_reference():
    start, transition = random_hmm(50, seed=0, zeros=0.3)
    log_emission_BTS, lengths_B = random_log_emission(3, 30, 50, seed=0, zeros=0.2), torch.tensor([30, 12, 1])
    model = (start, transition, log_emission_BTS, lengths_B, random_belief(3, 50, seed=0))
    truth = torch.stack([reference.posterior_entropy(*row) for row in rows_of(*model)])
    assert_close(posterior_entropy(*model), truth)
    assert_close(posterior_entropy(*(x.float() for x in model[:3]), lengths_B, model[4]), truth, rtol=1e-5, atol=0)


def test_nothing_known_is_the_entropy_of_the_chain():
    """All tokens missing and all steps uniform: every path is as good as any other."""
    uniform = torch.full((4, 4), -math.log(4.0))
    entropy_B = posterior_entropy(uniform[0], uniform, torch.zeros(1, 9, 4))
    assert_close(entropy_B, torch.tensor([9 * math.log(4.0)], dtype=torch.float64))


def test_tokens_beyond_float64_fall_back_to_log_space():
    start, transition = random_hmm(4, seed=1, zeros=0.5)
    log_emission_BTS = 500.0 * random_log_emission(2, 12, 4, seed=1)
    truth = torch.stack([reference.posterior_entropy(start, transition, row) for row in log_emission_BTS])
    assert truth.isfinite().all()
    assert_close(posterior_entropy(start, transition, log_emission_BTS), truth)


@given(blocked_cases())
def test_blocked_entropy_is_the_entropy_over_all_paths_of_the_dense_model(case):
    for entropy, row in zip(blocked_entropy(case.blocks()), case.rows(), strict=True):
        assert_close(entropy, reference.enumerate_paths(*row).entropy())


def test_blocked_entropy_is_the_dense_entropy():
    case = a_large_case()
    truth = posterior_entropy(*case.dense())
    assert_close(blocked_entropy(case.blocks()), truth)
    single = case._replace(hmm=case.hmm.to(torch.float32)).blocks()
    assert_close(blocked_entropy(single), truth, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
def test_blocked_entropy_counts_steps_that_float32_has_no_probability_for(surprise):
    case = an_improbable_case(surprise)
    truth = torch.stack([reference.posterior_entropy(*row) for row in case.rows()])
    assert (truth[::2] > 0.1).all()
    assert_close(blocked_entropy(case.blocks()), truth, rtol=1e-5, atol=1e-9)
