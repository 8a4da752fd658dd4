"""Chains of an HMM with blocks whose states remember words.

What words add to a step is in the evidence of its two tokens, and steps cross the matrices between blocks of the plain
model, A[z, z′] = leaving(z) · entering(z′). After a word x with the vector d_x, a state is left by leaving(z) + d_x:

    flat          p(z′ | z, x) = exp(A[z, z′]) exp(entering(z′) · d_x) / N(z, x)
    hierarchical  p(block | z, x) ∝ exp((leaving(z) + d_x) · block + bias)
                  p(z′ | z, x, block) = p(z′ | z, block) exp(entering(z′) · d_x) / N(z, x, block)

So pairs of a word and a next block cost a sum over K × K numbers, where matrices of their own would cost products of
vectors. The last token of a row is not divided by N: that belongs to the step after it.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor
from typing_extensions import override

from trellis.inference import Chain, Streamed, Transition
from trellis.inference.chain import Ahead, begun_or_not, carried, log_belief, log_carried
from trellis.inference.transitions import Piece, crossings
from trellis.models.asking import Asked
from trellis.models.block_gaps import BlockGaps
from trellis.models.chains import (
    ExactFirst,
    Stepper,
    all_lists,
    block_columns,
    block_crossing,
    block_pairs,
    carrying_all_states,
    log_first,
    log_push_lists,
    places,
    plain_chain,
    push_into,
    stepper,
)
from trellis.models.counted_ngrams import CountedNGrams, Found, mixed
from trellis.models.encoders import Vectors
from trellis.models.lists import CountedBlocks, Crossing, Words
from trellis.models.memory import MISSING, Contexts, Memory, last_words
from trellis.models.remembering import Remembered, carrying, counted_columns, refuse_gaps
from trellis.models.supports import Support
from trellis.models.transitions import HierarchicalTransition, LowRankTransition
from trellis.ops.evidence import row_sums
from trellis.ops.log_pulls import log_pull, log_pull_exactly
from trellis.ops.moved_totals import moved_log_totals
from trellis.ops.overlapping_columns import overlapping_logits
from trellis.ops.precision import full_precision, widened

if TYPE_CHECKING:
    from trellis.models.distributions import Distributions


class _Left(NamedTuple):
    """The steps of a batch, each word left for each next block once.

    moved_CR   the vectors of the distinct contexts that are left
    from_C     the list of the newest word of each
    context_Q  the context that each step leaves
    to_Q       the list that it enters
    pair_Q     the pair of lists that it crosses
    step_BT    the step that leads to each token; −1 to the first
    """

    moved_CR: Tensor
    from_C: Tensor
    context_Q: Tensor
    to_Q: Tensor
    pair_Q: Tensor
    step_BT: Tensor

    @classmethod
    def of(cls, memory: Memory, contexts: Contexts, list_BT: Tensor, pair_BT: Tensor) -> _Left:
        """Those of a batch."""
        time, lists = list_BT.shape[1], int(list_BT.max()) + 1 if list_BT.numel() else 1
        code_Q, step_BT = (contexts.place_BT1[:, 1:time] * lists + list_BT[:, 1:]).unique(return_inverse=True)
        place_C, context_Q = (code_Q // lists).unique(return_inverse=True)
        first_Q = torch.zeros_like(code_Q)  # of each step a place in the batch, whichever is written last
        first_Q[step_BT.flatten()] = torch.arange(step_BT.numel(), device=code_Q.device)
        pair_Q = pair_BT[:, 1:].flatten()[first_Q]
        from_Q = list_BT[:, :-1].flatten()[first_Q]
        from_C = torch.zeros_like(place_C).scatter_(0, context_Q, from_Q)
        step_BT = torch.nn.functional.pad(step_BT, (1, 0), value=-1)[:, :time]
        return cls(memory.vectors(contexts.words_KM[place_C]), from_C, context_Q, code_Q % lists, pair_Q, step_BT)


def remembering_block_chain(model: Distributions, support: Support, asked: Asked) -> Chain:
    """A chain whose steps cross the plain matrices between blocks; with tokens missing, they are made as crossed."""
    before = Remembered.of(model, asked.state, len(asked.ids_BT))
    if model.ngrams is not None and (asked.missing_BT is not None or bool((before.words_BM == MISSING).any())):
        refuse_gaps(model)
    if asked.missing_BT is not None:
        return _streamed_chain(model, asked, before)
    plain = asked._replace(state=None if asked.state is None else before.belief_BS)
    crossing, list_BT, pair_BT = block_crossing(model, support, asked, plain.state)
    transition = block_pairs(model, crossing._replace(weighed=True), pair_BT)
    memory = cast(Memory, model.memory)
    contexts = memory.contexts(before.moving(model), asked.ids_BT, support.block_V)
    left = _Left.of(memory, contexts, list_BT, pair_BT)
    weights = _weights(model, crossing, left, transition.into_PJK)
    log_columns_NJ, index_BT, _ = block_columns(model, support, crossing.to, crossing.block_G, asked.ids_BT)
    evidence = _Evidence(log_columns_NJ, index_BT, weights.log_leave(), left.step_BT)
    found = None
    if model.ngrams is not None:
        found = model.ngrams.before_tokens(before.words_BM, asked.ids_BT, support.block_V)
        evidence = _counted(model.ngrams, found, evidence, weights, crossing.to.lists_NK[list_BT])
    batch, time = asked.ids_BT.shape
    last_B = asked.lengths_B if asked.lengths_B is not None else index_BT.new_full((batch,), time)
    inside_BT = torch.arange(1, time + 1, device=index_BT.device) < last_B[:, None]  # but for the last token
    next_BT = torch.nn.functional.pad(evidence.step_BT, (0, 1), value=-1)[:, 1:]
    ahead_BT = torch.where(inside_BT, next_BT, -1)
    evidence_NJ = row_sums(  # in the order of a walk: time first
        (evidence.log_columns_NJ, evidence.index_BT.T.flatten()),
        (weights.log_enter_QJ, left.step_BT.T.flatten()),
        (evidence.log_leave_QK, ahead_BT.T.flatten()),
    )
    log_first_BJ, exactly = _log_first(model, plain.state, before, list_BT, crossing, found)
    chain = Chain(
        log_first_BJ,
        transition,
        evidence_NJ,
        torch.arange(batch * time, device=index_BT.device).view(time, batch).T,
        asked.lengths_B,
        lists_GS=crossing.to.lists_NK,
        list_BT=list_BT,
        labels_BT=places(asked, support),
        log_first=exactly,
        ahead=Ahead(-evidence.log_leave_QK, ahead_BT) if len(evidence.log_leave_QK) else None,
    )
    chain = carrying_all_states(model, plain, chain)
    return chain._replace(carry=_after(chain.carry, before, asked.ids_BT, last_B))


def _after(
    carry: Callable[[Tensor], Tensor], before: Remembered, ids_BT: Tensor, last_B: Tensor
) -> Callable[[Tensor], Tensor]:
    """What is carried on: beliefs over all states, and beside them the last words."""
    remember = carrying(before, ids_BT, last_B)
    return lambda final_BJ: remember(carry(final_BJ))


class _Weights(NamedTuple):
    """Of each step, in log space: what it adds to the states that it enters; p(block | state, words), or the plain
    normaliser of a flat transition; and the normaliser that words make necessary.
    """

    log_enter_QJ: Tensor
    log_block_QK: Tensor
    log_total_QK: Tensor

    def log_leave(self) -> Tensor:
        """What each step adds to the states that it leaves, Q×K."""
        return self.log_block_QK - self.log_total_QK


class _Evidence(NamedTuple):
    """Tables that tokens are weighed by, in log space, and the row of each token in them.

    log_columns_NJ  p(word | state)
    index_BT        the row of each token
    log_leave_QK    what steps add to the states that they leave
    step_BT         the row of the step that leads to each token; −1 to the first
    """

    log_columns_NJ: Tensor
    index_BT: Tensor
    log_leave_QK: Tensor
    step_BT: Tensor


def _counted(
    ngrams: CountedNGrams, found: Found, evidence: _Evidence, weights: _Weights, states_BTK: Tensor
) -> _Evidence:
    """The same with counted n-grams mixed in, which differ from token to token: a row for each, time first."""
    states_NK = states_BTK.transpose(0, 1).flatten(0, 1)
    log_columns_NJ, row_BT = counted_columns(ngrams, found, evidence.log_columns_NJ, evidence.index_BT, states_NK)
    log_block_N1, _, kind_N1 = (number_BT.T.flatten()[:, None] for number_BT in found)
    batch = len(row_BT)
    # From the states of every token but the last ones to the block of the next.
    block_gate_NK = ngrams.block_states[states_NK[: len(states_NK) - batch]] + ngrams.block_kinds[kind_N1[batch:]]
    step_N = evidence.step_BT[:, 1:].T.flatten()
    log_block_NK = mixed(weights.log_block_QK.index_select(0, step_N), log_block_N1[batch:], block_gate_NK)
    log_leave_NK = log_block_NK - weights.log_total_QK.index_select(0, step_N)
    return _Evidence(log_columns_NJ, row_BT, log_leave_NK, (row_BT - batch).clamp_min(-1))


def _weights(model: Distributions, crossing: Crossing, left: _Left, into_PJK: Tensor) -> _Weights:
    """Those of a batch's steps."""
    part, listed = cast(LowRankTransition, model.transition), crossing.to
    place_QJ = listed.distinct.places()[left.to_Q]
    moved_QR = left.moved_CR.index_select(0, left.context_Q)
    log_enter_QJ = overlapping_logits(moved_QR, listed.vectors("entering"), None, place_QJ)
    if isinstance(part, HierarchicalTransition):
        log_block_QK = _log_blocks(part, crossing, left)
        weighed = crossing._replace(weighed=True)
        log_within_QK = log_pull_exactly(
            log_pull(into_PJK, left.pair_Q, log_enter_QJ),
            log_enter_QJ,
            lambda lost_N: part.log_into(listed.source, weighed, left.pair_Q[lost_N]),
        )
        return _Weights(log_enter_QJ, log_block_QK, log_within_QK)
    with torch.no_grad():
        log_total_GK = listed.distinct.spread(part.log_total(listed.source, listed, crossing.kept_S))
    entering_SR = listed.source.vectors("entering", listed.source.encode(crossing.kept_S))
    leaving_GKR = listed.distinct.spread(listed.vectors("leaving"))
    log_moved_CK = moved_log_totals(leaving_GKR, entering_SR, left.moved_CR, left.from_C)
    log_totals = (table_CK.index_select(0, left.context_Q) for table_CK in (log_total_GK[left.from_C], log_moved_CK))
    return _Weights(log_enter_QJ, *log_totals)


def _log_blocks(part: HierarchicalTransition, crossing: Crossing, left: _Left) -> Tensor:
    """log p(the step's next block | state, words), Q×K."""
    listed = crossing.to
    log_block_GMK = listed.distinct.spread(cast(Tensor, part.log_block(listed.vectors("leaving")))).transpose(1, 2)
    with full_precision(left.moved_CR.device):
        added_CM = left.moved_CR @ part.blocks.T.to(left.moved_CR)
    log_total_CK = log_pull(log_block_GMK.exp(), left.from_C, added_CM)
    log_total_CK = log_pull_exactly(log_total_CK, added_CM, lambda lost_N: log_block_GMK[left.from_C[lost_N]])
    block_Q = crossing.block_G[left.to_Q]
    row_Q = left.from_C[left.context_Q] * log_block_GMK.shape[1] + block_Q
    log_QK = log_block_GMK.flatten(0, 1).index_select(0, row_Q) - log_total_CK.index_select(0, left.context_Q)
    return log_QK + added_CM[left.context_Q, block_Q].unsqueeze(1)


def _log_first(
    model: Distributions, state: Tensor | None, before: Remembered, list_BT: Tensor, crossing: Crossing,
    found: Found | None,
) -> tuple[Tensor, ExactFirst | None]:  # fmt: skip
    """log p(first state) of each row, among the states of its first token's list, and of one row in float64."""
    if state is None or list_BT.shape[1] == 0:
        return log_first(model, None, list_BT, crossing)
    after_gap_B1 = (before.words_BM == MISSING).any(1, keepdim=True)
    seen_BS = state.masked_fill(after_gap_B1, 0.0)
    log_first_BJ, exactly = log_first(model, seen_BS, list_BT, crossing, _first_words(model, before, found))
    if not bool(after_gap_B1.any()):
        return log_first_BJ, exactly
    lists_BJ, belief_BS = crossing.to.lists_NK[list_BT[:, 0]], carried(state)[0]
    pushed_BJ = torch.zeros_like(log_first_BJ)
    with torch.no_grad():
        gaps = _gaps(model, crossing.to.source)
        for row in after_gap_B1.flatten().nonzero().flatten().cpu().tolist():
            pushed_BJ[row] = push_into(gaps.into, belief_BS[row], lists_BJ[row : row + 1])[lists_BJ[row]]

    def exactly_too(row: int) -> Tensor:
        if exactly is not None and not bool(after_gap_B1[row]):
            return exactly(row)
        return log_push_lists(gaps.log_into, log_carried(state[row]), lists_BJ[row : row + 1])[lists_BJ[row]]

    return torch.where(after_gap_B1, log_belief(pushed_BJ, pushed_BJ), log_first_BJ), exactly_too


def _first_words(model: Distributions, before: Remembered, found: Found | None) -> Words:
    """What the words before each row add; of blocks, the counts are those of its first token's block alone."""
    moved_BR = cast(Memory, model.memory).vectors(before.moving(model))
    if model.ngrams is None or found is None:
        return Words(moved_BR)
    log_block_BM = found.log_block[:, :1].expand(-1, model.ngrams.blocks)
    gate_B = model.ngrams.block_kinds[found.kind[:, 0]]
    return Words(moved_BR, CountedBlocks(model.ngrams.block_states, gate_B, log_block_BM))


# Tokens that are missing, and what is asked between tokens: nothing here learns.


def _words(model: Distributions, words_NM: Tensor) -> Words:
    """What these last words add to how states are left."""
    memory, ngrams, support = cast(Memory, model.memory), model.ngrams, model.support
    moved_NR = memory.vectors(words_NM[:, : model.config.memory])
    if ngrams is None or support is None:
        return Words(moved_NR)
    log_block_NM, kind_N = ngrams.blocks_after(words_NM, support.block_V)
    return Words(moved_NR, CountedBlocks(ngrams.block_states, ngrams.block_kinds[kind_N], log_block_NM))


def _gaps(model: Distributions, vectors: Vectors) -> BlockGaps:
    refuse_gaps(model)
    return BlockGaps(model, vectors)


def _steps_after(
    model: Distributions, vectors: Vectors, words_M: Tensor, added: Words | None = None
) -> tuple[Stepper, Stepper]:
    """How states are left after these words: matrices into lists of states, and their float64 logarithms.

    What the words add may have been `added` up for many rows at once.
    """
    if bool((words_M == MISSING).any()):
        gaps = _gaps(model, vectors)
        return gaps.into, gaps.log_into
    return stepper(model, vectors, added or _words(model, words_M[None]))


class StreamedAfterWords(Streamed):
    """The same where states remember words: how a row leaves a token depends on `words_BTM` before each step."""

    def __init__(
        self, plain: Streamed, words_BTM: Tensor, steps_after: Callable[[Tensor], tuple[Stepper, Stepper]]
    ) -> None:
        super().__init__(plain.lists_GK, plain.list_BT, plain.all_MK, plain.into, plain.log_into)
        self.plain, self.words_BTM, self.steps_after = plain, words_BTM, steps_after

    @override
    def sorted(self, order_B: Tensor) -> Transition:
        plain = cast(Streamed, self.plain.sorted(order_B))
        return StreamedAfterWords(plain, self.words_BTM.index_select(0, order_B), self.steps_after)

    @override
    def pieces(self, step: int, rows_B: Tensor, *, log: bool) -> Iterator[Piece]:
        for place, row in enumerate(rows_B.cpu().tolist()):
            make = self.steps_after(self.words_BTM[row, step])[log]
            for from_N, part_MJ in crossings(self.lists(row, step - 1), self.lists(row, step)):
                yield Piece(slice(place, place + 1), from_N, part_MJ.flatten(), make(from_N, part_MJ))


@torch.no_grad()
def _streamed_chain(model: Distributions, asked: Asked, before: Remembered) -> Chain:
    """Beliefs are over all states, and matrices are made as they are crossed, after the words that were seen."""
    assert asked.missing_BT is not None
    vectors = model.vectors(model.everything)
    words_BT = asked.ids_BT.masked_fill(asked.missing_BT, MISSING)
    chain = plain_chain(model, asked._replace(state=None))
    transition = StreamedAfterWords(
        cast(Streamed, chain.transition),
        last_words(before.words_BM, words_BT)[:, :-1],
        lambda words_M: _steps_after(model, vectors, words_M),
    )
    last_B = chain.lengths()
    log_first_BS, exactly = _streamed_first(chain, asked, before, transition)
    return chain._replace(
        log_first_BS=log_first_BS, transition=transition, carry=carrying(before, words_BT, last_B), log_first=exactly
    )


def _streamed_first(
    chain: Chain, asked: Asked, before: Remembered, transition: StreamedAfterWords
) -> tuple[Tensor, ExactFirst | None]:
    """log p(first state) over all states; where it leads to a seen token, among the states of that one."""
    if asked.state is None or asked.ids_BT.shape[1] == 0:
        return chain.log_first_BS, None
    belief_BS, fresh_B1 = carried(before.belief_BS)
    pushed = [
        push_into(transition.steps_after(words_M)[0], belief_S, transition.lists(row, 0))
        for row, (belief_S, words_M) in enumerate(zip(belief_BS, before.words_BM, strict=True))
    ]
    log_first_BS = torch.stack(pushed).log() if pushed else belief_BS.clone()

    def exactly(row: int) -> Tensor:
        if fresh_B1 is not None and bool(fresh_B1[row]):
            return widened(chain.log_first_BS[row])
        _, log_into = transition.steps_after(before.words_BM[row])
        return log_push_lists(log_into, log_carried(before.belief_BS[row]), transition.lists(row, 0))

    return begun_or_not(log_first_BS, fresh_B1, lambda: chain.log_first_BS), exactly


def push(model: Distributions, state: Tensor) -> Tensor:
    """p(next state | all before), B×S; of equal states once."""
    vectors, lists_MK = model.vectors(model.everything), all_lists(model)
    distinct_UN, place_B = state.unique(dim=0, return_inverse=True)
    belief_US, words_UM = Remembered.of(model, distinct_UN, len(distinct_UN))
    belief_US, _ = carried(belief_US)
    if bool((words_UM == MISSING).any()):
        refuse_gaps(model)
    added = _words(model, words_UM)
    pushed = [
        push_into(_steps_after(model, vectors, words_M, added.row(row))[0], belief_S, lists_MK)
        for row, (belief_S, words_M) in enumerate(zip(belief_US, words_UM, strict=True))
    ]
    return torch.stack(pushed)[place_B] if pushed else belief_US


@torch.no_grad()
def log_push(model: Distributions, state_S: Tensor) -> Tensor:
    """The logarithm of that, of one row, in float64."""
    belief_1S, words_1M = Remembered.of(model, state_S[None], 1)
    _, log_into = _steps_after(model, model.vectors(model.everything), words_1M[0])
    return log_push_lists(log_into, log_carried(belief_1S[0]), all_lists(model))


def rows_after(model: Distributions, states_N: Tensor, words_NM: Tensor) -> Tensor:
    """p(next state | state, words), N×S, the newest word first."""
    vectors, part = model.vectors(model.everything), cast(LowRankTransition, model.transition)
    words = _words(model, words_NM)
    leaving_NR = vectors.vectors("leaving", vectors.encode(states_N)) + words.moved_NR
    return part.log_rows_from(leaving_NR, vectors, model.everything(), words.to_all_blocks(states_N)).exp()


@torch.no_grad()
def rows_after_any_word(model: Distributions, states_N: Tensor, among_V: Tensor | None = None) -> Tensor:
    """p(next state | state), N×S, whichever word the state emitted; of some words, p(one of these, next | state)."""
    gaps = BlockGaps(model, model.vectors(model.everything), among_V)
    found_NS = next(model.parameters()).new_empty(len(states_N), model.config.states)
    for place_N, part_MJ in crossings(torch.arange(len(states_N), device=states_N.device)[None], all_lists(model)):
        found_NS[place_N[:, None], part_MJ.flatten()] = gaps.into(states_N[place_N], part_MJ).T
    return found_NS


@torch.no_grad()
def gap_words(model: Distributions, belief_NS: Tensor, next_NS: Tensor) -> Tensor:
    """p(word of a gap | the rest of its row), N×V, but for a factor a gap; see the dense one."""
    gaps, all_MK = _gaps(model, model.vectors(model.everything)), all_lists(model)
    found = []
    for belief_S, next_S in zip(belief_NS, next_NS, strict=True):
        enter_MJ = all_MK[(next_S[all_MK] > 0).any(1)]
        pushed_S = push_into(gaps.into, belief_S, enter_MJ)
        message_S = torch.where(pushed_S > 0, next_S / pushed_S, 0.0)
        found.append(gaps.words(belief_S, message_S, enter_MJ))
    return torch.stack(found)
