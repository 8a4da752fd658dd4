"""Likelihood, filtering and smoothing of chains of tables: the reference, its gradients, and what is hostile."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from trellis import ops
from trellis.errors import TrellisError
from trellis.inference import Chain, Dense, filter, score, smooth

from .. import reference
from .models import dense_counts, ragged, random_belief, random_hmm, random_log_emission, rows_of

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def reference_log_probs(model):
    """Each row's log-probabilities and final belief, by the reference, padded with zeros."""
    filtered = [reference.filter(*row) for row in rows_of(*model)]
    time = model[2].shape[1]
    log_prob = [torch.nn.functional.pad(f.log_prob_T, (0, time - len(f.log_prob_T))) for f in filtered]
    return torch.stack(log_prob), [f.log_belief_TS[-1:].exp() for f in filtered]


@given(ragged())
def test_log_probs_and_beliefs_are_the_reference(model):
    found = filter(Chain.dense(*model))
    truth_BT, finals = reference_log_probs(model)
    assert_close(found.log_prob_BT, truth_BT, **EXACT)
    assert_close(score(Chain.dense(*model))[0], truth_BT, **EXACT)
    for b, (row, final) in enumerate(zip(rows_of(*model), finals, strict=True)):
        log_belief_TS = reference.filter(*row).log_belief_TS
        assert_close(found.belief_BTS[b, : len(log_belief_TS)], log_belief_TS.exp(), **EXACT)
        assert not found.belief_BTS[b, len(log_belief_TS) :].any()
        if len(final):
            assert_close(found.state[b], final[0], **EXACT)


@given(ragged())
def test_likelihood_and_posteriors_are_sums_over_all_paths(model):
    found, (_, transition_SS) = smooth(Chain.dense(*model)), dense_counts(*model)
    pairs = torch.zeros_like(transition_SS)
    for b, row in enumerate(rows_of(*model)):
        every = reference.enumerate_paths(*row)
        assert_close(found.log_prob_BT[b].sum(), every.log_likelihood())
        if every.log_likelihood() > -math.inf and len(row[2]):
            assert_close(found.posterior_BTS[b, : len(row[2])], every.posterior(), **EXACT)
        else:
            assert not found.posterior_BTS[b].any()
        pairs += reference.expected_counts(*row).transition
    assert_close(transition_SS, pairs, **EXACT)


@given(ragged(), st.integers(0, 100))
def test_every_gradient_is_that_of_autograd_through_the_reference(model, seed):
    """With a weight of its own on each token and on each number of the final belief."""
    log_start, log_transition, log_emission, lengths, belief = model
    lengths = lengths.clamp_min(1)
    log_emission = log_emission.masked_fill(log_emission.isnan(), 0.0)
    weight = torch.rand(log_emission.shape[:2], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weight_final = torch.randn(len(log_emission), log_emission.shape[2], dtype=torch.float64)
    inputs = [log_start, log_transition, log_emission]
    if belief is not None:
        inputs.append(belief.clamp_min(1e-3) / belief.clamp_min(1e-3).sum(1, keepdim=True))
    inputs = [x.clone().requires_grad_() for x in inputs]
    log_prob, final = score(Chain.dense(*inputs[:3], lengths, *inputs[3:]))
    if not log_prob.isfinite().all():
        return  # an impossible row has no gradient to compare
    loss = (log_prob * weight).sum() + (final * weight_final).sum()
    truth = 0.0
    for b, row in enumerate(rows_of(*inputs[:3], lengths, inputs[3] if len(inputs) > 3 else None)):
        filtered = reference.filter(*row)
        truth = truth + (filtered.log_prob_T * weight[b, : lengths[b]]).sum()
        truth = truth + (filtered.log_belief_TS[-1].exp() * weight_final[b]).sum()
    assert_close(loss, truth)
    grads = torch.autograd.grad(loss, inputs, allow_unused=True, materialize_grads=True)
    truths = torch.autograd.grad(truth, inputs, allow_unused=True, materialize_grads=True)
    for found, wanted in zip(grads, truths, strict=True):
        assert_close(found, wanted.nan_to_num(0.0), rtol=1e-8, atol=1e-10)


def test_float32_gradients_of_a_large_ragged_batch():
    model = (*random_hmm(64, seed=3, zeros=0.2), random_log_emission(7, 40, 64, seed=3))
    lengths = torch.tensor([40, 1, 17, 40, 2, 39, 23])
    inputs = [x.float().requires_grad_() for x in model]
    score(Chain.dense(*inputs, lengths))[0].sum().backward()
    counts = [reference.expected_counts(*row) for row in rows_of(*model, lengths, None)]
    assert_close(inputs[0].grad.double(), sum(c.start_S for c in counts), rtol=1e-4, atol=1e-6)
    assert_close(inputs[1].grad.double(), sum(c.transition for c in counts), rtol=1e-4, atol=1e-6)
    for b, c in enumerate(counts):
        assert_close(inputs[2].grad[b, : lengths[b]].double(), c.posterior_TS, rtol=1e-4, atol=1e-6)
        assert not inputs[2].grad[b, lengths[b] :].any()


def test_padding_full_of_nan_changes_no_bit():
    start, transition = (x.float() for x in random_hmm(9, seed=5))
    log_emission = random_log_emission(4, 12, 9, seed=5).float()
    lengths = torch.tensor([12, 3, 1, 8])
    dirty = log_emission.clone()
    dirty[torch.arange(12) >= lengths[:, None]] = math.nan
    clean, soiled = ((start, transition, x, lengths) for x in (log_emission, dirty))
    for a, b in zip(smooth(Chain.dense(*clean)), smooth(Chain.dense(*soiled)), strict=True):
        assert torch.equal(a, b)
    for a, b in zip(dense_counts(*clean), dense_counts(*soiled), strict=True):
        assert torch.equal(a, b)


def test_ten_thousand_tokens_agree_with_float64_to_five_digits():
    start, transition = random_hmm(24, seed=7, zeros=0.1)
    log_emission = 3 * random_log_emission(2, 10_000, 24, seed=7)
    found = filter(Chain.dense(start.float(), transition.float(), log_emission.float()))
    for b in range(2):
        truth = reference.log_likelihood(start, transition, log_emission[b])
        assert_close(found.log_prob_BT[b].double().sum(), truth, rtol=1e-5, atol=0)


def test_a_stream_in_chunks_is_the_stream_whole():
    start, transition = random_hmm(6, seed=8)
    log_emission = random_log_emission(2, 50, 6, seed=8)
    whole = filter(Chain.dense(start, transition, log_emission))
    belief, parts = None, []
    for chunk in log_emission.split(7, dim=1):
        found = filter(Chain.dense(start, transition, chunk, belief_BS=belief))
        belief = found.state
        parts.append(found.log_prob_BT)
    assert_close(torch.cat(parts, 1), whole.log_prob_BT)
    assert_close(belief, whole.state)


def test_an_impossible_token_is_minus_infinity_from_there_on_and_spoils_no_neighbour():
    start, transition = (x.float() for x in random_hmm(5, seed=9))
    log_emission = random_log_emission(3, 6, 5, seed=9).float()
    alone = filter(Chain.dense(start, transition, log_emission))
    log_emission[1, 2] = -math.inf
    found = filter(Chain.dense(start, transition, log_emission))
    assert torch.equal(found.log_prob_BT[1] == -math.inf, torch.arange(6) >= 2)
    assert torch.equal(found.log_prob_BT[::2], alone.log_prob_BT[::2])
    inputs = [x.clone().requires_grad_() for x in (start, transition, log_emission)]
    score(Chain.dense(*inputs))[0].sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)


def test_messages_of_states_without_belief_stay_finite():
    """A state that is never reached explains the whole text a million times better than the one that is."""
    start = torch.tensor([0.0, -math.inf])
    transition = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], requires_grad=True)
    log_emission = torch.tensor([-14.0, 0.0]).expand(1, 30, 2).clone().requires_grad_()
    score(Chain.dense(start, transition, log_emission))[0].sum().backward()
    assert_close(transition.grad, torch.tensor([[29.0, 0.0], [0.0, 0.0]]))
    assert_close(log_emission.grad, torch.tensor([1.0, 0.0]).expand(1, 30, 2))


def test_no_rounding_makes_a_posterior_negative():
    """A state that the next token all but rules out has a posterior of about one less one."""
    start, transition = random_hmm(16, seed=1, zeros=0.6)
    log_emission = random_log_emission(6, 60, 16, seed=1, zeros=0.5)
    start[0], transition[:, 0], log_emission[..., 0] = -1.0, -1.0, -20.0  # so that every row is possible
    found = smooth(Chain.dense(start.float(), transition.log_softmax(-1).float(), log_emission.float()))
    assert found.log_prob_BT.isfinite().all()
    assert (found.posterior_BTS >= 0).all()


def test_one_state_scores_its_emissions():
    log_emission = random_log_emission(2, 4, 1, seed=1).float()
    model = torch.zeros(1), torch.zeros(1, 1), log_emission
    assert_close(smooth(Chain.dense(*model)).log_prob_BT, log_emission[..., 0])
    assert_close(dense_counts(*model)[1], torch.tensor([[6.0]]))


@pytest.mark.parametrize("native", [True, False])
def test_memory_does_not_hold_time_times_states_squared(native):
    """The largest tensor that autograd keeps is batch × time × states."""
    batch, time, states = 2, 64, 96
    inputs = [x.float().requires_grad_() for x in random_hmm(states, seed=2)]
    log_emission = random_log_emission(batch, time, states, seed=2).float().requires_grad_()
    with ops.using(ops.status().level if native else None), _LargestTensor() as largest:
        score(Chain.dense(*inputs, log_emission))[0].sum().backward()
    assert largest.numbers == max(batch * time * states, states * states)


class _LargestTensor(TorchDispatchMode):
    """Notes the size of the largest tensor any operation makes."""

    numbers = 0

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        out = func(*args, **(kwargs or {}))
        for tensor in out if isinstance(out, tuple | list) else (out,):
            if isinstance(tensor, torch.Tensor):
                self.numbers = max(self.numbers, tensor.untyped_storage().nbytes() // tensor.element_size())
        return out


def test_belief_in_is_one_push_before_the_first_token():
    start, transition = random_hmm(4, seed=11)
    log_emission, belief = random_log_emission(3, 5, 4, seed=11), random_belief(3, 4, seed=11)
    carried = filter(Chain.dense(start, transition, log_emission, belief_BS=belief))
    for b in range(3):
        afresh = filter(Chain.dense((belief[b] @ transition.exp()).log(), transition, log_emission[b : b + 1]))
        assert_close(carried.log_prob_BT[b], afresh.log_prob_BT[0])


def test_a_table_of_distinct_columns_is_the_emissions_it_stands_for():
    """Words repeat: values are those of every token's own column, gradients their sums a word."""
    start, transition = random_hmm(5, seed=13, zeros=0.2)
    columns_NS = random_log_emission(1, 4, 5, seed=13)[0]
    index_BT = torch.tensor([[0, 3, 3, 0], [2, 2, 0, 0], [1, 0, 3, 2]])
    lengths_B, weight_BT = torch.tensor([4, 2, 3]), torch.rand(3, 4, dtype=torch.float64)
    table, whole = columns_NS.clone().requires_grad_(), columns_NS[index_BT].requires_grad_()
    by_table, _ = score(Chain.dense(start, transition, table, lengths_B, None, index_BT))
    by_token, _ = score(Chain.dense(start, transition, whole, lengths_B))
    assert torch.equal(by_table, by_token)
    (by_table * weight_BT).sum().backward()
    (by_token * weight_BT).sum().backward()
    summed = torch.zeros_like(columns_NS).index_add_(0, index_BT.flatten(), whole.grad.flatten(0, 1))
    assert_close(table.grad, summed)


def test_a_state_without_belief_that_explains_all_but_one_token_makes_no_nan():
    """Its message overflows, and meets a likelihood of zero."""
    likelihood_TS = torch.tensor([[1e-15, 1, 1], [1e-15, 0, 1], [1e-15, 1, 1], [1e-15, 1, 1], [1e-15, 1, 1]])
    model = (torch.tensor([1.0, 0, 0]).log(), torch.eye(3).log(), likelihood_TS.log()[None])
    found, truth = smooth(Chain.dense(*model)), reference.expected_counts(model[0], model[1], model[2][0])
    start_S, transition_SS = dense_counts(*model)
    assert_close(start_S.double(), truth.start_S)
    assert_close(transition_SS.double(), truth.transition)
    assert_close(found.posterior_BTS[0].double(), truth.posterior_TS)


def test_no_tokens_are_no_tokens():
    model = *random_hmm(3, seed=1), torch.empty(2, 0, 3, dtype=torch.float64), None, random_belief(2, 3, seed=1)
    found = smooth(Chain.dense(*model))
    assert found.log_prob_BT.shape == (2, 0)
    assert not dense_counts(*model)[1].any()
    assert_close(found.state, random_belief(2, 3, seed=1))


def test_a_length_beyond_the_row_is_refused():
    with pytest.raises(TrellisError, match="a length of 5 is more than the 4 tokens"):
        filter(Chain.dense(*random_hmm(3, seed=1), random_log_emission(2, 4, 3, seed=1), torch.tensor([4, 5])))


def test_there_are_no_second_derivatives():
    start, transition = random_hmm(3, seed=1)
    log_prob, _ = score(Chain.dense(start.requires_grad_(), transition, random_log_emission(1, 4, 3, seed=1)))
    (grad,) = torch.autograd.grad(log_prob.sum(), start, create_graph=True, retain_graph=True)
    assert not grad.requires_grad
    (grad,) = torch.autograd.grad((log_prob * log_prob).sum(), start, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()


@pytest.mark.parametrize("carried", [False, True])
def test_gradients_pass_through_rows_without_tokens(carried):
    """Such a row ends with what it began with, and so does its gradient."""
    start, transition = (x.requires_grad_() for x in random_hmm(3, seed=2))
    log_emission, lengths = random_log_emission(3, 4, 3, seed=2).requires_grad_(), torch.tensor([2, 0, 4])
    inputs = [start, transition, log_emission, *([random_belief(3, 3, seed=2).requires_grad_()] if carried else [])]
    assert torch.autograd.gradcheck(lambda *x: score(Chain.dense(*x[:3], lengths, *x[3:])), inputs)


def test_a_dense_transition_made_ready_before_is_the_same():
    start, transition = random_hmm(4, seed=12)
    chain = Chain.dense(start, transition, random_log_emission(2, 5, 4, seed=12))
    ready = chain._replace(transition=Dense(transition, transition.exp()))
    assert torch.equal(filter(ready).log_prob_BT, filter(chain).log_prob_BT)
