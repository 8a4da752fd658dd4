"""Likelihood, filtering and smoothing of chains of every kind: they are those of the dense model."""

import math

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis import ops
from trellis.inference import BlockPairs, Chain, filter, score, smooth, transitions
from trellis.inference.chain import NOT_BEGUN

from .. import reference
from .blocked_models import (
    EXAMPLES,
    KINDS,
    Case,
    a_large_case,
    cases,
    random_blocked_hmm,
    soiled,
    spread,
    spread_steps,
    with_leaves,
)
from .models import counts, dense_counts
from .questions import every_answer

EXACT = {"rtol": 1e-9, "atol": 1e-12}


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
