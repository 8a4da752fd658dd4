import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from trellis.errors import TrellisError
from trellis.inference import forward, log_probs, reference, smooth

from .models import ragged, random_belief, random_hmm, random_log_emission, rows_of


def reference_log_probs(model):
    """Each row's log-probabilities and final belief, by the reference, padded with zeros."""
    filtered = [reference.filter(*row) for row in rows_of(*model)]
    time = model[2].shape[1]
    log_prob = [torch.nn.functional.pad(f.log_prob_T, (0, time - len(f.log_prob_T))) for f in filtered]
    return torch.stack(log_prob), [f.log_belief_TS[-1:].exp() for f in filtered]


@given(ragged())
def test_log_probs_and_beliefs_are_the_reference(model):
    found = forward(*model)
    truth_BT, finals = reference_log_probs(model)
    assert_close(found.log_prob_BT, truth_BT, rtol=1e-9, atol=1e-12)
    for b, (row, final) in enumerate(zip(rows_of(*model), finals, strict=True)):
        log_belief_TS = reference.filter(*row).log_belief_TS
        assert_close(found.belief_BTS[b, : len(log_belief_TS)], log_belief_TS.exp(), rtol=1e-9, atol=1e-12)
        assert not found.belief_BTS[b, len(log_belief_TS) :].any()
        if len(final):
            assert_close(found.final_BS[b], final[0], rtol=1e-9, atol=1e-12)


@given(ragged())
def test_likelihood_and_posteriors_are_sums_over_all_paths(model):
    found = smooth(*model)
    pairs = torch.zeros_like(found.transition_SS)
    for b, row in enumerate(rows_of(*model)):
        every = reference.enumerate_paths(*row)
        assert_close(found.log_prob_BT[b].sum(), every.log_likelihood())
        if every.log_likelihood() > -math.inf and len(row[2]):
            assert_close(found.posterior_BTS[b, : len(row[2])], every.posterior(), rtol=1e-9, atol=1e-12)
        else:
            assert not found.posterior_BTS[b].any()
        counts = reference.expected_counts(*row)
        pairs += counts.transition
    assert_close(found.transition_SS, pairs, rtol=1e-9, atol=1e-12)


@given(ragged(), st.integers(0, 100))
def test_every_gradient_is_that_of_autograd_through_the_reference(model, seed):
    """With a weight of its own on each token and on each number of the final belief."""
    log_start, log_transition, log_emission, lengths, belief = model
    lengths = lengths.clamp_min(1)
    log_emission = log_emission.masked_fill(log_emission.isnan(), 0.0)
    weight = torch.rand(log_emission.shape[:2], dtype=torch.float64, generator=torch.Generator().manual_seed(seed))
    weight_final = torch.randn(len(log_emission), log_emission.shape[2], dtype=torch.float64)
    inputs = [log_start, log_transition, log_emission] + ([] if belief is None else [belief.clamp_min(1e-3)])
    inputs = [x.clone().requires_grad_() for x in inputs]
    log_prob, final = log_probs(*inputs[:3], lengths, *inputs[3:])
    if not log_prob.isfinite().all():
        return  # an impossible row has no gradient to compare
    loss = (log_prob * weight).sum() + (final * weight_final).sum()
    truth = 0.0
    for b, row in enumerate(rows_of(*inputs[:3], lengths, inputs[3] if len(inputs) > 3 else None)):
        filtered = reference.filter(*row)
        truth = truth + (filtered.log_prob_T * weight[b, : lengths[b]]).sum()
        truth = truth + (filtered.log_belief_TS[-1].exp() * weight_final[b]).sum()
    assert_close(loss, truth)
    grads = torch.autograd.grad(loss, inputs, allow_unused=True)
    truths = torch.autograd.grad(truth, inputs, allow_unused=True, materialize_grads=True)
    for found, wanted in zip(grads, truths, strict=True):
        assert_close(found, wanted.nan_to_num(0.0), rtol=1e-8, atol=1e-10)


def test_float32_gradients_of_a_large_ragged_batch():
    model = (*random_hmm(64, seed=3, zeros=0.2), random_log_emission(7, 40, 64, seed=3))
    lengths = torch.tensor([40, 1, 17, 40, 2, 39, 23])
    inputs = [x.float().requires_grad_() for x in model]
    log_probs(*inputs, lengths)[0].sum().backward()
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
    clean, soiled = smooth(start, transition, log_emission, lengths), smooth(start, transition, dirty, lengths)
    for a, b in zip(clean, soiled, strict=True):
        assert torch.equal(a, b)


def test_ten_thousand_tokens_agree_with_float64_to_five_digits():
    start, transition = random_hmm(24, seed=7, zeros=0.1)
    log_emission = 3 * random_log_emission(2, 10_000, 24, seed=7)
    found = forward(start.float(), transition.float(), log_emission.float())
    for b in range(2):
        truth = reference.log_likelihood(start, transition, log_emission[b])
        assert_close(found.log_prob_BT[b].double().sum(), truth, rtol=1e-5, atol=0)


def test_a_stream_in_chunks_is_the_stream_whole():
    start, transition = random_hmm(6, seed=8)
    log_emission = random_log_emission(2, 50, 6, seed=8)
    whole = forward(start, transition, log_emission)
    belief, parts = None, []
    for chunk in log_emission.split(7, dim=1):
        found = forward(start, transition, chunk, belief_BS=belief)
        belief = found.final_BS
        parts.append(found.log_prob_BT)
    assert_close(torch.cat(parts, 1), whole.log_prob_BT)
    assert_close(belief, whole.final_BS)


def test_an_impossible_token_is_minus_infinity_from_there_on_and_spoils_no_neighbour():
    start, transition = (x.float() for x in random_hmm(5, seed=9))
    log_emission = random_log_emission(3, 6, 5, seed=9).float()
    alone = forward(start, transition, log_emission)
    log_emission[1, 2] = -math.inf
    found = forward(start, transition, log_emission)
    assert torch.equal(found.log_prob_BT[1] == -math.inf, torch.arange(6) >= 2)
    assert torch.equal(found.log_prob_BT[::2], alone.log_prob_BT[::2])
    inputs = [x.clone().requires_grad_() for x in (start, transition, log_emission)]
    log_probs(*inputs)[0].sum().backward()
    assert all(x.grad.isfinite().all() for x in inputs)


@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
def test_what_underflows_in_float32_is_done_again_exactly(surprise):
    """Two states that hardly ever switch, and a token that only the unlikely one explains."""
    start = torch.tensor([0.0, -surprise])
    transition = torch.tensor([[0.0, -surprise], [-surprise, 0.0]])
    log_emission = torch.zeros(2, 5, 2)
    log_emission[0, 2:4, 0] = -math.inf
    inputs = [x.clone().requires_grad_() for x in (start, transition, log_emission)]
    log_prob, final = log_probs(*inputs)
    (2.0 * log_prob.sum()).backward()
    rows = list(rows_of(start, transition, log_emission, torch.tensor([5, 5]), None))
    counts = [reference.expected_counts(*row) for row in rows]
    for b in range(2):
        assert_close(log_prob[b].double(), counts[b].log_prob_T, rtol=1e-5, atol=1e-6)
        assert_close(inputs[2].grad[b].double(), 2 * counts[b].posterior_TS, rtol=1e-4, atol=1e-6)
    assert_close(inputs[0].grad.double(), 2 * (counts[0].start_S + counts[1].start_S), rtol=1e-4, atol=1e-6)
    assert_close(inputs[1].grad.double(), 2 * (counts[0].transition + counts[1].transition))
    assert_close(final[0], reference.filter(*rows[0]).log_belief_TS[-1].exp().float())


def test_a_rescued_row_refuses_weights_that_differ_by_token():
    transition = torch.tensor([[0.0, -200.0], [-200.0, 0.0]], requires_grad=True)
    log_emission = torch.zeros(1, 2, 2)
    log_emission[0, 1, 0] = -math.inf
    log_prob, _ = log_probs(torch.tensor([0.0, -math.inf]), transition, log_emission)
    with pytest.raises(TrellisError, match="weigh whole sequences"):
        (log_prob * torch.tensor([1.0, 2.0])).sum().backward()


def test_messages_of_states_without_belief_stay_finite():
    """A state that is never reached explains the whole text a million times better than the one that is."""
    start = torch.tensor([0.0, -math.inf])
    transition = torch.tensor([[0.0, -math.inf], [-math.inf, 0.0]], requires_grad=True)
    log_emission = torch.tensor([-14.0, 0.0]).expand(1, 30, 2).clone().requires_grad_()
    log_probs(start, transition, log_emission)[0].sum().backward()
    assert_close(transition.grad, torch.tensor([[29.0, 0.0], [0.0, 0.0]]))
    assert_close(log_emission.grad, torch.tensor([1.0, 0.0]).expand(1, 30, 2))


def test_one_state_scores_its_emissions():
    log_emission = random_log_emission(2, 4, 1, seed=1).float()
    found = smooth(torch.zeros(1), torch.zeros(1, 1), log_emission)
    assert_close(found.log_prob_BT, log_emission[..., 0])
    assert_close(found.transition_SS, torch.tensor([[6.0]]))


def test_memory_does_not_hold_time_times_states_squared():
    """The largest tensor that autograd keeps is batch × time × states."""
    batch, time, states = 2, 64, 96
    inputs = [x.float().requires_grad_() for x in random_hmm(states, seed=2)]
    log_emission = random_log_emission(batch, time, states, seed=2).float().requires_grad_()
    with _LargestTensor() as largest:
        log_probs(*inputs, log_emission)[0].sum().backward()
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
    carried = forward(start, transition, log_emission, belief_BS=belief)
    for b in range(3):
        afresh = forward((belief[b] @ transition.exp()).log(), transition, log_emission[b : b + 1])
        assert_close(carried.log_prob_BT[b], afresh.log_prob_BT[0])


def test_a_table_of_distinct_columns_is_the_emissions_it_stands_for():
    """Words repeat: values are those of every token's own column, gradients their sums a word."""
    start, transition = random_hmm(5, seed=13, zeros=0.2)
    columns_NS = random_log_emission(1, 4, 5, seed=13)[0]
    index_BT = torch.tensor([[0, 3, 3, 0], [2, 2, 0, 0], [1, 0, 3, 2]])
    lengths_B, weight_BT = torch.tensor([4, 2, 3]), torch.rand(3, 4, dtype=torch.float64)
    table, whole = columns_NS.clone().requires_grad_(), columns_NS[index_BT].requires_grad_()
    by_table, _ = log_probs(start, transition, table, lengths_B, None, index_BT)
    by_token, _ = log_probs(start, transition, whole, lengths_B)
    assert torch.equal(by_table, by_token)
    (by_table * weight_BT).sum().backward()
    (by_token * weight_BT).sum().backward()
    summed = torch.zeros_like(columns_NS).index_add_(0, index_BT.flatten(), whole.grad.flatten(0, 1))
    assert_close(table.grad, summed)


def test_a_state_without_belief_that_explains_all_but_one_token_makes_no_nan():
    """Its message overflows, and meets a likelihood of zero."""
    likelihood_TS = torch.tensor([[1e-15, 1, 1], [1e-15, 0, 1], [1e-15, 1, 1], [1e-15, 1, 1], [1e-15, 1, 1]])
    model = (torch.tensor([1.0, 0, 0]).log(), torch.eye(3).log(), likelihood_TS.log()[None])
    found, truth = smooth(*model), reference.expected_counts(model[0], model[1], model[2][0])
    assert_close(found.start_S.double(), truth.start_S)
    assert_close(found.transition_SS.double(), truth.transition)
    assert_close(found.posterior_BTS[0].double(), truth.posterior_TS)


def test_no_tokens_are_no_tokens():
    found = smooth(*random_hmm(3, seed=1), torch.empty(2, 0, 3, dtype=torch.float64), None, random_belief(2, 3, seed=1))
    assert found.log_prob_BT.shape == (2, 0)
    assert not found.transition_SS.any()
    assert_close(found.final_BS, random_belief(2, 3, seed=1))


def test_a_length_beyond_the_row_is_refused():
    with pytest.raises(TrellisError, match="a length of 5 is more than the 4 tokens"):
        forward(*random_hmm(3, seed=1), random_log_emission(2, 4, 3, seed=1), torch.tensor([4, 5]))


def test_gradients_that_would_be_wrong_are_refused():
    """Second derivatives, and those of an improbable row through its beliefs."""
    start, transition = random_hmm(3, seed=1)
    log_prob, _ = log_probs(start.requires_grad_(), transition, random_log_emission(1, 4, 3, seed=1))
    (grad,) = torch.autograd.grad(log_prob.sum(), start, create_graph=True, retain_graph=True)
    assert not grad.requires_grad
    (grad,) = torch.autograd.grad((log_prob * log_prob).sum(), start, create_graph=True)
    with pytest.raises(RuntimeError, match="once_differentiable"):
        grad.sum().backward()
    steps = torch.tensor([[0.0, -200.0], [-200.0, 0.0]])
    log_emission = torch.tensor([[[0.0, 0.0], [-math.inf, 0.0]]])
    belief = torch.tensor([[1.0, 0.0]], requires_grad=True)
    with pytest.raises(TrellisError, match="detach the state"):
        log_probs(torch.zeros(2), steps, log_emission, belief_BS=belief)[0].sum().backward()
    _, final = log_probs(torch.zeros(2), steps.requires_grad_(), log_emission, belief_BS=belief.detach())
    with pytest.raises(TrellisError, match="detach the state"):
        final[0, 0].backward()


@pytest.mark.parametrize("carried", [False, True])
def test_gradients_pass_through_rows_without_tokens(carried):
    """Such a row ends with what it began with, and so does its gradient."""
    start, transition = (x.requires_grad_() for x in random_hmm(3, seed=2))
    log_emission, lengths = random_log_emission(3, 4, 3, seed=2).requires_grad_(), torch.tensor([2, 0, 4])
    inputs = [start, transition, log_emission, *([random_belief(3, 3, seed=2).requires_grad_()] if carried else [])]
    assert torch.autograd.gradcheck(lambda *x: log_probs(*x[:3], lengths, *x[3:]), inputs)
