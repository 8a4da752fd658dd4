import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.inference import (
    Blocks,
    blocked_entropy,
    blocked_forward,
    blocked_k_best,
    blocked_log_probs,
    blocked_sample_posterior,
    blocked_smooth,
    blocked_viterbi,
    forward,
    log_probs,
    reference,
    smooth,
)

from .blocked_models import (
    BlockedHmm,
    Case,
    a_large_case,
    an_improbable_case,
    blocked_cases,
    random_blocked_hmm,
)

EXACT = {"rtol": 1e-9, "atol": 1e-12}


def every_answer(blocks):
    """All that can be asked of a batch, but for the gradients."""
    seeded = torch.Generator().manual_seed(0)
    return (
        *blocked_forward(blocks),
        *blocked_smooth(blocks)[:3],
        *blocked_viterbi(blocks),
        *blocked_k_best(blocks, 3),
        blocked_sample_posterior(blocks, 4, seeded),
        blocked_entropy(blocks),
    )


def gradients(blocks, weight_BT=None):
    """Gradients of the summed, or weighted, log-probabilities by what they depend on."""
    inputs = [x.detach().clone().requires_grad_() for x in blocks[:3]]
    log_prob_BT, _ = blocked_log_probs(Blocks(*inputs, *blocks[3:]))
    log_prob_BT.backward(torch.ones_like(log_prob_BT) if weight_BT is None else weight_BT)
    return [x.grad for x in inputs]


@given(blocked_cases())
def test_log_probs_and_beliefs_are_those_of_the_dense_model(case):
    found, truth = blocked_forward(case.blocks()), forward(*case.dense())
    assert_close(found.log_prob_BT, truth.log_prob_BT, **EXACT)
    assert_close(case.hmm.spread(found.belief_BTK, case.tokens_BT), truth.belief_BTS, **EXACT)
    for b, length in enumerate(case.lengths_B.tolist()):
        if length:
            final_S = case.hmm.spread(found.final_BK[b], case.tokens_BT[b, length - 1])
            assert_close(final_S, truth.final_BS[b], **EXACT)
        else:
            assert torch.equal(found.final_BK[b], case.blocks().first_BK[b])


@given(blocked_cases())
def test_likelihoods_posteriors_and_counts_are_sums_over_all_paths(case):
    blocks = case.blocks()
    found, steps_SS = blocked_smooth(blocks), torch.zeros_like(case.hmm.log_transition_SS)
    posterior_BTS = case.hmm.spread(found.posterior_BTK, case.tokens_BT)
    for b, row in enumerate(case.rows()):
        every, length = reference.enumerate_paths(*row), len(row[2])
        assert_close(found.log_prob_BT[b].sum(), every.log_likelihood(), **EXACT)
        assert not posterior_BTS[b, length:].any()
        if length:
            assert_close(posterior_BTS[b, :length], every.posterior(), **EXACT)
            steps_SS += every.pairs().sum(0)
    assert_close(case.hmm.spread_steps(blocks, found.into_PJK, case.tokens_BT), steps_SS, **EXACT)


@given(blocked_cases())
def test_rows_are_the_reference_s_own_problems(case):
    """`Blocks.row` is what underflowed rows are sent away with."""
    blocks = case.blocks()
    for b, row in enumerate(case.rows()):
        here, length = blocks.row(b, len(row[2])), len(row[2])
        assert_close(reference.log_likelihood(*here), reference.log_likelihood(*row), **EXACT)
        posterior_TS = case.hmm.spread(reference.smooth(*here), case.tokens_BT[b, :length])
        assert_close(posterior_TS, reference.smooth(*row), **EXACT)


def loss_of(log_prob_BT, finals, generator):
    """Every token and every number of the final beliefs with a weight of its own."""
    weight_BT = torch.randn(log_prob_BT.shape, generator=generator, dtype=log_prob_BT.dtype)
    total = (log_prob_BT * weight_BT).sum()
    for final_S in finals:
        total = total + final_S @ torch.randn(final_S.shape, generator=generator, dtype=final_S.dtype)
    return total


@given(blocked_cases(with_zeros=False), st.integers(0, 100))
def test_gradients_by_the_dense_parameters_are_the_same_by_both_ways(case, seed):
    """By the logits behind start, transition and emission, and by a carried belief, wherever slices overlap."""
    leaves = [x.clone().requires_grad_() for x in case.hmm[:3]]
    leaves += [] if case.belief_BS is None else [case.belief_BS.clone().requires_grad_()]
    logs = [leaf.log_softmax(-1) for leaf in leaves[:2]] + [leaves[2].log_softmax(0)]
    belief_BS = leaves[3] if len(leaves) > 3 else None
    case = Case(BlockedHmm(*logs, *case.hmm[3:]), case.tokens_BT, case.lengths_B, belief_BS)
    ends = [(b, length - 1) for b, length in enumerate(case.lengths_B.tolist()) if length]

    log_prob_BT, final_BK = blocked_log_probs(case.blocks())
    finals = [case.hmm.spread(final_BK[b], case.tokens_BT[b, t]) for b, t in ends]
    ours = loss_of(log_prob_BT, finals, torch.Generator().manual_seed(seed))
    log_prob_BT, final_BS = log_probs(*case.dense())
    truth = loss_of(log_prob_BT, [final_BS[b] for b, _ in ends], torch.Generator().manual_seed(seed))

    assert_close(ours, truth, **EXACT)
    kwargs = {"allow_unused": True, "materialize_grads": True, "retain_graph": True}  # both share the softmax
    for found, wanted in zip(
        torch.autograd.grad(ours, leaves, **kwargs), torch.autograd.grad(truth, leaves, **kwargs), strict=True
    ):
        assert_close(found, wanted, rtol=1e-8, atol=1e-10)


@pytest.mark.parametrize("lengths", [None, [3, 0, 1, 2]])
def test_gradients_are_finite_differences(lengths):
    hmm = random_blocked_hmm(2, 2, 5, seed=4)
    tokens_BT = torch.tensor([[0, 1, 2], [3, 4, 0], [1, 1, 1], [2, 0, 4]])
    blocks = hmm.blocks(tokens_BT, None if lengths is None else torch.tensor(lengths))
    inputs = [x.clone().requires_grad_() for x in blocks[:3]]
    assert torch.autograd.gradcheck(lambda *x: blocked_log_probs(Blocks(*x, *blocks[3:])), inputs)


def test_float32_of_a_large_ragged_batch_where_pairs_come_again_and_again():
    case = a_large_case()
    assert case.blocks().into_PJK.shape[0] <= 16
    blocks = case._replace(hmm=case.hmm.to(torch.float32)).blocks()
    counts = [reference.expected_counts(*row) for row in case.rows()]
    found = blocked_smooth(blocks)
    for b, count in enumerate(counts):
        length = len(count.log_prob_T)
        assert_close(found.log_prob_BT[b, :length].double(), count.log_prob_T, rtol=1e-5, atol=1e-5)
        posterior_TS = case.hmm.spread(found.posterior_BTK[b, :length].double(), case.tokens_BT[b, :length])
        assert_close(posterior_TS, count.posterior_TS, rtol=1e-4, atol=1e-5)
    steps_SS = sum(count.transition for count in counts)
    assert_close(case.hmm.spread_steps(blocks, found.into_PJK, case.tokens_BT), steps_SS, rtol=1e-4, atol=1e-4)
    for single, double in zip(gradients(blocks), gradients(case.blocks()), strict=True):
        assert_close(single.double(), double, rtol=1e-3, atol=1e-4)


def test_padding_that_names_columns_and_pairs_full_of_nan_changes_nothing():
    clean = a_large_case(seed=1).blocks()
    nan = torch.full((1, 8, 8), math.nan, dtype=torch.float64)
    padding_BT = torch.arange(40) >= clean.lengths_B[:, None]
    pair_BT = clean.pair_BT.masked_fill(padding_BT, len(clean.into_PJK))
    pair_BT[:, 0] = -12345
    soiled = clean._replace(
        into_PJK=torch.cat([clean.into_PJK, nan]),
        log_columns_NK=torch.cat([clean.log_columns_NK, nan[0, :1]]),
        pair_BT=pair_BT,
        index_BT=clean.index_BT.masked_fill(padding_BT, len(clean.log_columns_NK)),
    )
    for ours, theirs in zip(every_answer(soiled), every_answer(clean), strict=True):
        assert torch.equal(ours, theirs)
    for ours, theirs in zip(gradients(soiled), gradients(clean), strict=True):
        assert_close(ours[: len(theirs)], theirs, rtol=1e-13, atol=1e-15)  # sums of as many zeros more or less
        assert not ours[len(theirs) :].any()


def test_each_row_is_answered_as_if_alone():
    case = a_large_case(seed=2)
    together = blocked_smooth(case.blocks())
    for b, length in enumerate(case.lengths_B.tolist()):
        if length:
            alone = blocked_smooth(case.hmm.blocks(case.tokens_BT[b : b + 1, :length]))
            assert_close(together.log_prob_BT[b, :length], alone.log_prob_BT[0])
            assert_close(together.posterior_BTK[b, :length], alone.posterior_BTK[0])
            assert_close(together.final_BK[b], alone.final_BK[0])


@pytest.mark.parametrize("chunk", [1, 7])
@pytest.mark.parametrize("overlapping", [False, True])
def test_a_text_in_pieces_is_the_text_whole(chunk, overlapping):
    """A piece begins with what the belief that the last one ended with says of the group it begins in."""
    hmm = random_blocked_hmm(3, 4, 20, seed=8, overlapping=overlapping)
    tokens_BT = torch.randint(20, (2, 40), generator=torch.Generator().manual_seed(8))
    whole = blocked_forward(hmm.blocks(tokens_BT))
    belief_BS, parts = None, []
    for piece_BT in tokens_BT.split(chunk, dim=1):
        found = blocked_forward(hmm.blocks(piece_BT, None, belief_BS))
        belief_BS = hmm.spread(found.final_BK, piece_BT[:, -1])
        parts.append(found.log_prob_BT)
    assert_close(torch.cat(parts, 1), whole.log_prob_BT, **EXACT)
    assert_close(found.final_BK, whole.final_BK, **EXACT)


def test_an_impossible_token_is_minus_infinity_from_there_on_and_spoils_no_neighbour():
    hmm = random_blocked_hmm(2, 3, 6, seed=9).to(torch.float32)
    hmm.log_word_VS[5] = -math.inf
    tokens_BT = torch.tensor([[0, 1, 2, 3, 4], [1, 2, 5, 4, 0], [4, 3, 2, 1, 0]])
    alone, found = blocked_forward(hmm.blocks(tokens_BT[::2])), blocked_forward(hmm.blocks(tokens_BT))
    assert torch.equal(found.log_prob_BT[1] == -math.inf, torch.arange(5) >= 2)
    assert torch.equal(found.log_prob_BT[::2], alone.log_prob_BT)
    assert all(grad.isfinite().all() for grad in gradients(hmm.blocks(tokens_BT)))
    smoothed = blocked_smooth(hmm.blocks(tokens_BT))
    assert not smoothed.posterior_BTK[1].any()
    assert_close(smoothed.into_PJK.sum(), torch.tensor(8.0))


def test_steps_that_cannot_be_made_are_found_where_they_break():
    """Nothing leads from the first group to the second: it is the transition that says so, not a word."""
    hmm = random_blocked_hmm(2, 2, 4, seed=10)._replace(group_V=torch.tensor([0, 0, 1, 1]))
    hmm.log_transition_SS[hmm.states_MK[0][:, None], hmm.states_MK[1]] = -math.inf
    tokens_BT = torch.tensor([[2, 3, 0, 1, 2, 3], [3, 2, 2, 0, 0, 1]])
    for dtype in (torch.float32, torch.float64):
        blocks = hmm.to(dtype).blocks(tokens_BT)
        found = blocked_forward(blocks)
        assert torch.equal(found.log_prob_BT[0] == -math.inf, torch.arange(6) >= 4)
        assert found.log_prob_BT[1].isfinite().all()
        # not taken for improbable: such a row would refuse these weights
        assert all(grad.isfinite().all() for grad in gradients(blocks, torch.rand(2, 6, dtype=dtype)))
        assert blocked_viterbi(blocks).log_prob_B.isfinite().tolist() == [False, True]
        assert blocked_entropy(blocks).isfinite().tolist() == [False, True]
        assert (blocked_sample_posterior(blocks, 3)[0] == -1).all()


@pytest.mark.parametrize("surprise", [60.0, 400.0, 5000.0])
def test_what_underflows_in_float32_is_done_again_exactly(surprise):
    case = an_improbable_case(surprise)
    blocks, counts = case.blocks(), [reference.expected_counts(*row) for row in case.rows()]
    assert all(count.log_prob_T.isfinite().all() for count in counts)
    found = blocked_smooth(blocks)
    for b, (count, length) in enumerate(zip(counts, case.lengths_B.tolist(), strict=True)):
        assert_close(found.log_prob_BT[b, :length].double(), count.log_prob_T, rtol=1e-5, atol=1e-5)
        posterior_TS = case.hmm.spread(found.posterior_BTK[b, :length].double(), case.tokens_BT[b, :length])
        assert_close(posterior_TS, count.posterior_TS, rtol=1e-4, atol=1e-6)
    steps_SS = case.hmm.spread_steps(blocks, found.into_PJK.double(), case.tokens_BT)
    assert_close(steps_SS.double(), sum(count.transition for count in counts), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("surprise", [60.0, 400.0])
def test_gradients_of_what_underflows_are_counts_a_probability(surprise):
    """A probability that float32 has as zero has no gradient, and the others keep theirs."""
    case = an_improbable_case(surprise)
    blocks, truth = case.blocks(), blocked_smooth(case.blocks())
    weight_BT = torch.full((3, 5), 2.0)
    first_BK, into_PJK, columns_NK = gradients(blocks, weight_BT)
    assert_close(into_PJK * blocks.into_PJK, torch.where(blocks.into_PJK > 0, 2 * truth.into_PJK, 0.0))
    assert_close(first_BK * blocks.first_BK, 2 * truth.posterior_BTK[:, 0])
    summed_NK = torch.zeros_like(columns_NK)
    summed_NK.index_add_(0, blocks.index_BT.flatten(), 2 * truth.posterior_BTK.flatten(0, 1))
    assert_close(columns_NK, summed_NK)


def test_an_improbable_row_refuses_gradients_that_would_be_wrong():
    blocks = an_improbable_case(60.0).blocks()
    inputs = [x.clone().requires_grad_() for x in blocks[:3]]
    log_prob_BT, final_BK = blocked_log_probs(Blocks(*inputs, *blocks[3:]))
    with pytest.raises(TrellisError, match="weigh whole sequences"):
        log_prob_BT[0, :2].sum().backward(retain_graph=True)
    with pytest.raises(TrellisError, match="detach the state"):
        final_BK.sum().backward()


def test_rows_of_one_token_need_no_pairs():
    hmm = random_blocked_hmm(3, 2, 5, seed=3, zeros=0.3)
    case = Case(hmm, torch.tensor([[1, 0], [4, 0], [2, 0]]), torch.tensor([1, 1, 0]), None)
    blocks = case.blocks()
    assert len(blocks.into_PJK) == 0
    truth = forward(*case.dense())
    answers = every_answer(blocks)
    assert_close(answers[0], truth.log_prob_BT)
    for weight in gradients(blocks):
        assert weight.isfinite().all()
    hmm.log_word_VS[1] = -800.0 + hmm.log_word_VS[1]
    assert_close(blocked_forward(case.blocks()).log_prob_BT, forward(*case.dense()).log_prob_BT)


def test_no_rows_and_no_tokens():
    hmm = random_blocked_hmm(2, 3, 5, seed=3)
    none = hmm.blocks(torch.empty(0, 4, dtype=torch.int64))
    assert [tuple(x.shape) for x in every_answer(none)[:3]] == [(0, 4), (0, 4, 3), (0, 3)]
    some = hmm.blocks(torch.zeros(2, 1, dtype=torch.int64))
    empty = some._replace(pair_BT=some.pair_BT[:, :0], index_BT=some.index_BT[:, :0])
    assert torch.equal(blocked_forward(empty).final_BK, some.first_BK)
    assert blocked_entropy(empty).tolist() == [0.0, 0.0]
    assert blocked_viterbi(empty).log_prob_B.tolist() == [0.0, 0.0]
    assert blocked_sample_posterior(empty, 2).shape == (2, 2, 0)
    assert not any(grad.any() for grad in gradients(empty))


def test_a_single_group_is_the_dense_model():
    """Then all steps share one pair, and the counts are those of the dense matrix."""
    hmm = random_blocked_hmm(1, 5, 6, seed=6, zeros=0.2)
    tokens_BT, lengths_B = torch.randint(6, (3, 9)), torch.tensor([9, 4, 6])
    found, blocks = blocked_smooth(hmm.blocks(tokens_BT, lengths_B)), hmm.blocks(tokens_BT, lengths_B)
    truth = smooth(hmm.log_start_S, hmm.log_transition_SS, hmm.log_emission(tokens_BT), lengths_B)
    assert len(blocks.into_PJK) == 1
    assert_close(hmm.spread_steps(blocks, found.into_PJK, tokens_BT), truth.transition_SS)
