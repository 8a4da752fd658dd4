"""Rows are walked in log space where something needs what float64 cannot hold, and while learning only if tokens do."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.inference import Chain, score
from trellis.inference.recursion import walk

from .. import reference

STATES, TIME = 3, 6


def sharp_chain(late, *, learning, dtype=torch.float32):
    """One row. From state 0 the others are reached with exp(−800) alone; tokens but the last are best explained by it.

    The last token is `late` nats less probable in state 0 than in state 1.
    """
    log_transition_SS = torch.full((STATES, STATES), -800.0, dtype=dtype).fill_diagonal_(0.0)
    log_emission_BTS = torch.full((1, TIME, STATES), -1.0, dtype=dtype)
    log_emission_BTS[:, -1] = torch.tensor([-late, 0.0, -late - 1.0])
    log_start_S = torch.tensor([0.0, -900.0, -900.0], dtype=dtype)
    problem = log_start_S.double(), log_transition_SS.double(), log_emission_BTS[0].double()
    tensors = [tensor.requires_grad_() for tensor in (log_start_S, log_transition_SS, log_emission_BTS)]
    return Chain.dense(*tensors)._replace(learning=learning), tensors, problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_learning_lets_go_of_beliefs_that_no_token_needs(dtype):
    for learning in (True, False):
        chain, _, problem = sharp_chain(20.0, learning=learning, dtype=dtype)
        with torch.no_grad():
            done = walk(chain, *chain.columns())
        assert bool(done.rescued) is not learning
        assert (done.again is None) is (learning or dtype == torch.float64), "nor is it walked in wider numbers"
        assert_close(done.log_prob_TB[:, 0].double(), reference.filter(*problem).log_prob_T, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("late", [700.0, 790.0, 1500.0])
def test_learning_keeps_beliefs_that_a_later_token_needs(late):
    chain, _, problem = sharp_chain(late, learning=True)
    with torch.no_grad():
        done = walk(chain, *chain.columns())
    assert done.rescued
    assert_close(done.log_prob_TB[:, 0].double(), reference.filter(*problem).log_prob_T, rtol=1e-6, atol=1e-6)


@given(st.sampled_from([1.0, 30.0, 100.0, 300.0, 1000.0]), st.integers(0, 10_000))
@settings(max_examples=40)
def test_what_is_learnt_is_the_same_as_in_log_space(scale, seed):
    generator, found = torch.Generator().manual_seed(seed), []
    start_S, transition_SS, emission_SV = (
        torch.randn(shape, generator=generator) * scale for shape in ((4,), (4, 4), (4, 5))
    )
    ids_BT = torch.randint(5, (3, 8), generator=generator)
    for learning, dtype in ((True, torch.float32), (False, torch.float64)):
        logits = [
            tensor.detach().to(dtype, copy=True).requires_grad_() for tensor in (start_S, transition_SS, emission_SV)
        ]
        log_start_S, log_transition_SS, log_emission_SV = (tensor.log_softmax(-1) for tensor in logits)
        chain = Chain.dense(log_start_S, log_transition_SS, log_emission_SV.T[ids_BT])
        log_prob_BT, _ = score(chain._replace(learning=learning))
        log_prob_BT.sum().backward()
        found.append([log_prob_BT.detach(), *(tensor.grad for tensor in logits)])
    log_probs, *gradients = zip(*found, strict=True)
    assert_close(log_probs[0].double(), log_probs[1], rtol=1e-5, atol=1e-5 + 3e-6 * scale)
    for ours, exact in gradients:
        assert_close(ours.double(), exact, rtol=1e-2, atol=1e-3 * (1.0 + math.sqrt(scale)))


def unexpected_chain(better, *, dtype):
    """One row of 40 tokens, of 20 nats each in state 0, where it begins; the other two explain them `better`.

    That is on average: each of these explains every other token best of all. They are reached with exp(−800) alone, so
    that all that is lost would have led to about exp(40 · better − 800) of the rest.
    """
    time = 40
    log_transition_SS = torch.full((STATES, STATES), -800.0, dtype=dtype).fill_diagonal_(0.0)
    log_emission_BTS = torch.zeros(1, time, STATES, dtype=dtype)
    log_emission_BTS[..., 0] = -20.0
    log_emission_BTS[:, ::2, 1] = log_emission_BTS[:, 1::2, 2] = 2 * better - 40.0
    log_start_S = torch.tensor([0.0, -900.0, -900.0], dtype=dtype)
    problem = log_start_S.double(), log_transition_SS.double(), log_emission_BTS[0].double()
    tensors = [tensor.requires_grad_() for tensor in (log_start_S, log_transition_SS, log_emission_BTS)]
    return Chain.dense(*tensors)._replace(learning=True), tensors, problem


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize(("better", "rescued"), [(0.0, False), (10.0, False), (19.9, True)])
def test_an_improbable_row_is_not_one_that_needs_what_it_lost(better, rescued, dtype):
    chain, tensors, problem = unexpected_chain(better, dtype=dtype)
    with torch.no_grad():
        done = walk(chain, *chain.columns())
    assert bool(done.rescued) is rescued
    expected = reference.filter(*problem).log_prob_T
    assert_close(done.log_prob_TB[:, 0].double(), expected, rtol=1e-6, atol=1e-6)
    score(chain)[0].sum().backward()
    assert_close(tensors[2].grad[0].double(), reference.smooth(*problem), rtol=1e-5, atol=1e-6)
