import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close
from torch.utils._python_dispatch import TorchDispatchMode

from trellis import ops
from trellis.errors import TrellisError
from trellis.inference import BlockPairs, Chain, Dense, Transition, filter, score, smooth, transitions
from trellis.inference.chain import NOT_BEGUN

from .. import reference
from .blocked_models import (
    EXAMPLES,
    KINDS,
    BlockedHmm,
    Case,
    a_large_case,
    cases,
    random_blocked_hmm,
    soiled,
    spread,
    spread_steps,
)
from .models import counts, dense_counts, ragged, random_belief, random_hmm, random_log_emission, rows_of
from .questions import every_answer

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
    inputs = [log_start, log_transition, log_emission] + ([] if belief is None else [belief.clamp_min(1e-3)])
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


# Chains of every kind


@given(cases())
@settings(max_examples=EXAMPLES)
def test_log_probs_and_beliefs_of_every_kind_are_those_of_the_dense_model(case):
    states, truth = len(case.hmm.log_start_S), filter(case.dense())
    assert not truth.log_prob_BT.isnan().any()
    for kind, chain in case.chains():
        found = filter(chain)
        assert_close(found.log_prob_BT, truth.log_prob_BT, **EXACT, msg=kind)
        assert_close(spread(states, found.states_BTS, found.belief_BTS), truth.belief_BTS, **EXACT, msg=kind)
        assert_close(found.state, truth.state, **EXACT, msg=kind)
        log_prob_BT, state_BS = score(chain)
        assert torch.equal(log_prob_BT, found.log_prob_BT), kind
        assert torch.equal(state_BS, found.state), kind


@given(cases())
@settings(max_examples=EXAMPLES)
def test_likelihoods_posteriors_and_counts_of_every_kind_are_sums_over_all_paths(case):
    every = [reference.enumerate_paths(*row) for row in case.rows()]
    steps_SS = torch.zeros_like(case.hmm.log_transition_SS)
    for truth in every:
        steps_SS += truth.pairs().sum(0) if truth.paths_NT.shape[1] else 0.0
    for kind, chain in case.chains():
        found = smooth(chain)
        posterior_BTS = spread(len(case.hmm.log_start_S), found.states_BTS, found.posterior_BTS)
        first_BS, columns_NS, *by_tensors = counts(chain)
        seen_NS = torch.zeros_like(columns_NS)
        seen_NS.index_add_(0, chain.index_BT.flatten(), found.posterior_BTS.flatten(0, 1))
        assert_close(columns_NS, seen_NS, **EXACT, msg=kind)
        assert_close(first_BS, found.posterior_BTS[:, 0], **EXACT, msg=kind)
        for b, truth in enumerate(every):
            length = truth.paths_NT.shape[1]
            assert_close(found.log_prob_BT[b].sum(), truth.log_likelihood(), **EXACT, msg=kind)
            assert not posterior_BTS[b, length:].any(), kind
            if length:
                assert_close(posterior_BTS[b, :length], truth.posterior(), **EXACT, msg=kind)
        if kind == "blocks":
            (into_PJK,) = by_tensors
            count_PJK = into_PJK * chain.transition.into_PJK
            assert_close(spread_steps(case, chain, count_PJK), steps_SS, **EXACT)
        if kind == "dense":
            assert_close(by_tensors[0], steps_SS, **EXACT)


def loss_of(log_prob_BT, final_BS, generator):
    """Every token and every number of the final beliefs with a weight of its own."""
    weight_BT = torch.randn(log_prob_BT.shape, generator=generator, dtype=log_prob_BT.dtype)
    weight_BS = torch.randn(final_BS.shape, generator=generator, dtype=final_BS.dtype)
    return (log_prob_BT * weight_BT).sum() + (final_BS * weight_BS).sum()


def with_leaves(case):
    """The case of the distributions that some logits make, these logits, and a carried belief."""
    leaves = [x.clone().requires_grad_() for x in case.hmm[:3]]
    leaves += [] if case.belief_BS is None else [case.belief_BS.clone().requires_grad_()]
    logs = [leaf.log_softmax(-1) for leaf in leaves[:2]] + [leaves[2].log_softmax(0)]
    belief_BS = leaves[3] if len(leaves) > 3 else None
    return case._replace(hmm=BlockedHmm(*logs, *case.hmm[3:]), belief_BS=belief_BS), leaves


@given(cases(zeros=False, soil=False), st.integers(0, 100))
@settings(max_examples=EXAMPLES)
def test_gradients_by_the_dense_parameters_are_the_same_by_every_kind(case, seed):
    """By the logits behind start, transition and emission, and by a carried belief, wherever slices overlap."""
    case, leaves = with_leaves(case)
    kwargs = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}  # all share the softmax
    truth = loss_of(*score(case.dense()), torch.Generator().manual_seed(seed))
    wanted = torch.autograd.grad(truth, leaves, **kwargs)
    for kind, chain in case.chains():
        ours = loss_of(*score(chain), torch.Generator().manual_seed(seed))
        assert_close(ours, truth, **EXACT, msg=kind)
        for place, (found, grad) in enumerate(zip(torch.autograd.grad(ours, leaves, **kwargs), wanted, strict=True)):
            if place != 1 or chain.transition.tensors:  # what names no tensors learns nothing of steps
                assert_close(found, grad, rtol=1e-8, atol=1e-10, msg=kind)


@pytest.mark.parametrize("lengths", [None, [3, 0, 1, 2]])
def test_gradients_of_blocks_are_finite_differences(lengths):
    tokens_BT = torch.tensor([[0, 1, 2], [3, 4, 0], [1, 1, 1], [2, 0, 4]])
    case = Case(random_blocked_hmm(2, 2, 5, seed=4), tokens_BT, None if lengths is None else torch.tensor(lengths))
    chain = case.blocks()._replace(carry=lambda final_BK: final_BK)

    def asked(log_first_BK, into_PJK, log_columns_NK):
        transition = BlockPairs(into_PJK, chain.transition.pair_BT, chain.transition.log_into)
        return score(chain._replace(log_first_BS=log_first_BK, transition=transition, log_columns_NS=log_columns_NK))

    inputs = chain.log_first_BS, chain.transition.into_PJK, chain.log_columns_NS
    assert torch.autograd.gradcheck(asked, [x.detach().clone().requires_grad_() for x in inputs])


@pytest.mark.parametrize("native", [True, False])
def test_float32_of_a_large_ragged_batch_where_pairs_come_again_and_again(native):
    case, states = a_large_case(), 32
    assert case.blocks().transition.into_PJK.shape[0] <= 16
    truth = [reference.expected_counts(*row) for row in case.rows()]
    steps_SS = sum(count.transition for count in truth)
    single = case._replace(hmm=case.hmm.to(torch.float32))
    for kind, chain in single.chains():
        with ops.using(ops.status().level if native else None):
            found, gradients = smooth(chain), counts(chain)
        for b, count in enumerate(truth):
            length = len(count.log_prob_T)
            assert_close(found.log_prob_BT[b, :length].double(), count.log_prob_T, rtol=1e-5, atol=1e-5, msg=kind)
            posterior_TS = spread(states, found.states_BTS, found.posterior_BTS)[b, :length].double()
            assert_close(posterior_TS, count.posterior_TS, rtol=1e-4, atol=1e-5, msg=kind)
        if kind == "blocks":
            count_SS = spread_steps(single, chain, gradients[2] * chain.transition.into_PJK)
            assert_close(count_SS.double(), steps_SS, rtol=1e-4, atol=1e-4)
        for mine, double in zip(gradients, counts(case.chain(kind)), strict=True):
            assert_close(mine.double(), double, rtol=1e-3, atol=1e-4, msg=kind)


@pytest.mark.parametrize("kind", KINDS)
def test_padding_that_names_columns_and_pairs_full_of_nan_changes_nothing(kind):
    clean = a_large_case(seed=1).chain(kind)
    dirty = soiled(clean)
    assert dirty.log_columns_NS.isnan().any()
    for ours, theirs in zip(every_answer(dirty), every_answer(clean), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(counts(dirty), counts(clean), strict=True):
        # sums of as many zeros more or less
        assert_close(ours[: len(theirs)], theirs, rtol=1e-13, atol=1e-15)
        assert not ours[len(theirs) :].any()


@pytest.mark.parametrize("kind", KINDS)
def test_each_row_is_answered_as_if_alone(kind):
    case = a_large_case(seed=2)
    together = smooth(case.chain(kind))
    for b, length in enumerate(case.lengths_B.tolist()):
        if length:
            alone = smooth(Case(case.hmm, case.tokens_BT[b : b + 1, :length]).chain(kind))
            assert_close(together.log_prob_BT[b, :length], alone.log_prob_BT[0])
            assert_close(together.posterior_BTS[b, :length], alone.posterior_BTS[0])
            assert_close(together.state[b], alone.state[0])


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("overlapping", [False, True])
def test_a_text_in_pieces_is_the_text_whole(kind, chunk, overlapping):
    """A piece begins with what the belief that the last one ended with says of the block it begins in."""
    hmm = random_blocked_hmm(3, 4, 20, seed=8, overlapping=overlapping)
    tokens_BT = torch.randint(20, (2, 40), generator=torch.Generator().manual_seed(8))
    whole = filter(Case(hmm, tokens_BT).chain(kind))
    belief_BS, parts = None, []
    for piece_BT in tokens_BT.split(chunk, dim=1):
        found = filter(Case(hmm, piece_BT, None, belief_BS).chain(kind))
        belief_BS = found.state
        parts.append(found.log_prob_BT)
    assert_close(torch.cat(parts, 1), whole.log_prob_BT, **EXACT)
    assert_close(found.state, whole.state, **EXACT)


@pytest.mark.parametrize("kind", KINDS)
def test_an_impossible_word_is_minus_infinity_from_there_on_and_spoils_no_neighbour(kind):
    hmm = random_blocked_hmm(2, 3, 6, seed=9).to(torch.float32)
    hmm.log_word_VS[5] = -math.inf
    tokens_BT = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 5, 4, 0], [4, 3, 2, 1, 0]])
    chain = Case(hmm, tokens_BT).chain(kind)
    alone, found = filter(Case(hmm, tokens_BT[::2]).chain(kind)), filter(chain)
    assert torch.equal(found.log_prob_BT[1] == -math.inf, torch.arange(5) >= 2)
    assert torch.equal(found.log_prob_BT[::2], alone.log_prob_BT)
    assert all(grad.isfinite().all() for grad in counts(chain, torch.ones(3, 5)))
    assert not smooth(chain).posterior_BTS[1].any()
    if kind == "dense":
        assert_close(counts(chain)[2].sum(), torch.tensor(8.0))
    if kind == "blocks":
        assert_close((counts(chain)[2] * chain.transition.into_PJK).sum(), torch.tensor(8.0))


@pytest.mark.parametrize("kind", KINDS)
def test_rows_of_one_token_need_no_pairs(kind):
    hmm = random_blocked_hmm(3, 2, 5, seed=3, zeros=0.3)
    case = Case(hmm, torch.tensor([[1, 0], [4, 0], [2, 0]]), torch.tensor([1, 1, 0]))
    chain = case.chain(kind)
    assert kind != "blocks" or len(chain.transition.into_PJK) == 0
    truth = filter(case.dense())
    assert_close(every_answer(chain)[0], truth.log_prob_BT)
    for gradient in counts(chain, torch.ones(3, 2, dtype=torch.float64)):
        assert gradient.isfinite().all()
    hmm.log_word_VS[1] = -800.0 + hmm.log_word_VS[1]
    assert_close(filter(case.chain(kind)).log_prob_BT, filter(case.dense()).log_prob_BT)


@pytest.mark.parametrize("kind", KINDS)
def test_no_rows_and_no_tokens_of_any_kind(kind):
    hmm = random_blocked_hmm(2, 3, 5, seed=3)
    none = Case(hmm, torch.empty(0, 4, dtype=torch.int64)).chain(kind)
    width = none.shape[2]
    found = filter(none)
    assert [tuple(x.shape) for x in (*found[:2], found.state)] == [(0, 4), (0, 4, width), (0, 6)]
    assert every_answer(none)
    some = Case(hmm, torch.zeros(2, 1, dtype=torch.int64), torch.tensor([0, 0])).chain(kind)
    list_BT = None if some.list_BT is None else some.list_BT[:, :0]
    empty = some._replace(index_BT=some.index_BT[:, :0], list_BT=list_BT)
    assert (filter(empty).state == NOT_BEGUN).all()
    assert filter(empty).state.shape == (2, 6)
    assert smooth(empty).posterior_BTS.shape == (2, 0, width)
    assert not any(gradient.any() for gradient in counts(empty))
    for answer in every_answer(empty):
        assert len(answer) == 2


def test_a_chain_without_a_carry_ends_with_the_belief_after_its_last_token():
    case = a_large_case()
    plain, found = case.blocks()._replace(carry=Chain._field_defaults["carry"]), filter(case.blocks())
    state_BK, last_B = filter(plain).state, case.lengths_B - 1
    assert torch.equal(state_BK, torch.where(last_B[:, None] < 0, 0.0, found.belief_BTS[torch.arange(7), last_B]))
    assert torch.equal(score(plain)[1], state_BK)


def test_a_single_block_is_the_dense_model():
    """Then all steps share one pair, and the counts are those of the dense matrix."""
    hmm = random_blocked_hmm(1, 5, 6, seed=6, zeros=0.2)
    case = Case(hmm, torch.randint(6, (3, 9), generator=torch.Generator().manual_seed(1)), torch.tensor([9, 4, 6]))
    chain = case.blocks()
    assert len(chain.transition.into_PJK) == 1
    _, transition_SS = dense_counts(*hmm[:2], hmm.log_words()[case.tokens_BT], case.lengths_B)
    assert_close(spread_steps(case, chain, counts(chain)[2] * chain.transition.into_PJK), transition_SS)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("numbers", [1, 40, 300])
def test_matrices_are_crossed_in_however_many_pieces(kind, numbers, monkeypatch):
    case = a_large_case(seed=3)
    case = case._replace(tokens_BT=case.tokens_BT[:, :12], lengths_B=case.lengths_B.clamp_max(12))
    if kind != "blocks":
        missing_BT = torch.rand(case.tokens_BT.shape, generator=torch.Generator().manual_seed(3)) < 0.3
        case = case._replace(missing_BT=missing_BT)
    wanted = every_answer(case.chain(kind))
    monkeypatch.setattr(transitions, "FROM_AT_ONCE", 5)
    monkeypatch.setattr(transitions, "NUMBERS_AT_ONCE", numbers)
    monkeypatch.setattr(transitions, "PAIRS_AT_ONCE", 1)
    for ours, theirs in zip(every_answer(case.chain(kind)), wanted, strict=True):
        assert_close(ours, theirs)


# Given states


@given(cases(labelled=True, soil=False))
@settings(max_examples=EXAMPLES)
def test_scores_of_labelled_rows_are_sums_over_the_paths_that_agree(case):
    """`rows` has no paths but these."""
    for b, row in enumerate(case.rows()):
        every = reference.enumerate_paths(*row[:2], row[2].nan_to_num(0.0, neginf=-math.inf))
        given_T = case.labels_BT[b, : len(row[2])]
        agree_N = ((every.paths_NT == given_T) | (given_T < 0)).all(1)
        assert not every.log_joint_N[~agree_N].exp().any()
    truth = [reference.filter(*row).log_prob_T for row in case.rows()]
    for kind, chain in case.chains():
        log_prob_BT, state_BS = score(chain)
        for b, log_prob_T in enumerate(truth):
            assert_close(log_prob_BT[b, : len(log_prob_T)], log_prob_T, **EXACT, msg=kind)
            assert not log_prob_BT[b, len(log_prob_T) :].any(), kind
        assert_close(state_BS, filter(case.dense()).state, **EXACT, msg=kind)


@given(cases(labelled=True))
@settings(max_examples=EXAMPLES)
def test_beliefs_and_posteriors_of_labelled_rows_are_one_where_labelled(case):
    truth = [reference.smooth(*row) for row in case.rows()]
    for kind, chain in case.chains():
        found = smooth(chain)
        posterior_BTS = spread(len(case.hmm.log_start_S), found.states_BTS, found.posterior_BTS)
        for b, posterior_TS in enumerate(truth):
            assert_close(posterior_BTS[b, : len(posterior_TS)], posterior_TS, **EXACT, msg=kind)
        possible_B = found.log_prob_BT.sum(1) > -math.inf
        here = case.inside() & (case.labels_BT >= 0) & possible_B[:, None]
        at_label = posterior_BTS.gather(2, case.labels_BT.clamp_min(0)[..., None]).squeeze(-1)[here]
        assert_close(at_label, torch.ones_like(at_label), **EXACT, msg=kind)


@given(cases(zeros=False, labelled=True, soil=False))
@settings(max_examples=EXAMPLES)
def test_gradients_of_labelled_rows_are_those_of_autograd_through_the_reference(case):
    case, leaves = with_leaves(case)
    truth = torch.stack([reference.log_likelihood(*row) for row in case.rows()]).sum() + 0.0 * leaves[0].sum()
    kwargs = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}
    wanted = torch.autograd.grad(truth, leaves, **kwargs)
    for kind, chain in case.chains():
        ours = score(chain)[0].sum() + 0.0 * leaves[0].sum()  # there may be no tokens
        assert_close(ours, truth, **EXACT, msg=kind)
        for place, (found, grad) in enumerate(zip(torch.autograd.grad(ours, leaves, **kwargs), wanted, strict=True)):
            if place != 1 or chain.transition.tensors:
                assert_close(found, grad, rtol=1e-8, atol=1e-10, msg=kind)


@given(cases(labelled=True, missing=False), st.integers(0, 100))
@settings(max_examples=EXAMPLES)
def test_the_fully_labelled_shortcut_is_the_walk(case, seed):
    """Values, states and gradients, also of impossible rows and next to padding full of NaN."""
    states_BTK = case.hmm.states_MK[case.hmm.block_V[case.tokens_BT]]
    labels_BT = torch.where(case.labels_BT < 0, states_BTK[..., -1], case.labels_BT).masked_fill(~case.inside(), -1)
    case = case._replace(labels_BT=labels_BT)
    weight_BT = torch.randn(case.tokens_BT.shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    for kind in ("dense", "blocks"):
        chain = case.chain(kind)
        ours, gradients = score(chain), counts(chain, weight_BT)
        with pytest.MonkeyPatch.context() as patch:
            patch.setattr(type(chain.transition), "log_at", Transition.log_at)
            walked, truths = score(chain), counts(chain, weight_BT)
        for mine, true in zip((*ours, *gradients), (*walked, *truths), strict=True):
            assert_close(mine, true, **EXACT, msg=kind)


@pytest.mark.parametrize("kind", ["dense", "blocks"])
def test_the_fully_labelled_shortcut_is_taken(kind, monkeypatch):
    case = a_large_case()
    case = case._replace(labels_BT=case.hmm.states_MK[case.hmm.block_V[case.tokens_BT]][..., 3])
    case.hmm.log_transition_SS.clamp_min_(-5.0)
    case.hmm.log_start_S.clamp_min_(-5.0)
    case.hmm.log_word_VS.clamp_min_(-5.0)
    chain = case.chain(kind)
    monkeypatch.setattr("trellis.inference.forward.walk", None)
    assert score(chain)[0].isfinite().all()
    with pytest.raises(TypeError):
        score(chain._replace(labels_BT=chain.labels_BT.masked_fill(chain.labels_BT == chain.labels_BT[0, 1], -1)))


def test_usage_and_the_most_probable_states_are_of_the_whole_model():
    case = a_large_case(seed=4)
    truth = smooth(case.dense())
    for kind, chain in case.chains():
        found = smooth(chain)
        assert_close(found.usage(32), truth.posterior_BTS.sum((0, 1)), **EXACT, msg=kind)
        assert found.usage(32).dtype == torch.float64
        probability_BT, state_BT = found.most_probable()
        assert_close(probability_BT, truth.posterior_BTS.amax(-1), **EXACT, msg=kind)
        inside_BT = case.inside() & (probability_BT > 0)
        assert torch.equal(state_BT[inside_BT], truth.posterior_BTS.argmax(-1)[inside_BT]), kind


def test_a_dense_transition_made_ready_before_is_the_same():
    start, transition = random_hmm(4, seed=12)
    chain = Chain.dense(start, transition, random_log_emission(2, 5, 4, seed=12))
    ready = chain._replace(transition=Dense(transition, transition.exp()))
    assert torch.equal(filter(ready).log_prob_BT, filter(chain).log_prob_BT)
