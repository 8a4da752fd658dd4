"""Chains of an HMM: a batch of ids made ready for inference, with all that is known of the states that take part.

A dense support gives one matrix for all steps; blocks give a matrix for each pair of blocks that the batch crosses; and
where tokens are missing from a model with blocks, matrices are made as they are crossed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import BlockPairs, Chain, Streamed, Transition
from trellis.inference.chain import (
    begun_or_not,
    believed,
    carried,
    empty_rows_keep,
    exact_first,
    first_states,
    log_belief,
    log_carried,
)
from trellis.inference.transitions import FROM_AT_ONCE, crossings
from trellis.models.asking import Asked
from trellis.models.encoders import Vectors
from trellis.models.lists import AfterWords, Crossing, Listed, Words
from trellis.models.supports import Support, TakingPart
from trellis.ops.pairs import Pairs
from trellis.ops.precision import widened

if TYPE_CHECKING:
    from trellis.models.distributions import Distributions


Stepper = Callable[[Tensor, Tensor], Tensor]  # from N states into lists M×J, [to, from]
ExactFirst = Callable[[int], Tensor]  # log p(first state) of one row in float64


def plain_chain(model: Distributions, asked: Asked) -> Chain:
    """The chain of a batch that is ready, of a model whose states remember no words."""
    if model.support is None:
        return _dense_chain(model, asked)
    if asked.missing_BT is not None:
        return _streamed_chain(model, model.support, asked)
    return _block_chain(model, model.support, asked)


def _dense_chain(model: Distributions, asked: Asked) -> Chain:
    """Every token may have every state that takes part."""
    taking_part = model.taking_part(labelled=asked.labels_BT is not None)
    states_S = taking_part.all_S
    all_there = len(states_S) == model.config.states
    vectors = model.vectors(lambda: states_S if asked.state is None else model.everything())
    transition = model.kept("transition", lambda: model.transition.between(vectors, states_S))
    log_columns_NS, index_BT, scaled = model.columns(
        asked.ids_BT, lambda words_N: model.emission.columns(vectors, states_S, words_N)
    )
    if asked.missing_BT is not None:
        index_BT, scaled = index_BT.masked_fill(asked.missing_BT, len(log_columns_NS)), None
        log_columns_NS = torch.cat([log_columns_NS, log_columns_NS.new_zeros(1, len(states_S))])
    log_first_BS, log_first = _dense_first(model, asked, vectors, states_S, transition)
    chain = Chain(
        log_first_BS, transition, log_columns_NS, index_BT, asked.lengths_B, labels_BT=asked.labels_BT,
        carry=empty_rows_keep(asked.state, asked.lengths_B, index_BT.shape[1]), log_first=log_first,
        scaled=scaled,
    )  # fmt: skip
    if all_there:
        return chain
    chain = chain._replace(lists_GS=states_S[None], list_BT=torch.zeros_like(asked.ids_BT))
    return carrying_all_states(model, asked, chain)


def _dense_first(
    model: Distributions, asked: Asked, vectors: Vectors, states_S: Tensor, transition: Transition
) -> tuple[Tensor, ExactFirst | None]:
    """log p(first state) of each row among those that take part, and how to have one row's in float64."""

    def log_start() -> Tensor:
        return model.log_start(vectors, states_S).index_select(0, states_S)

    def log_push(log_belief_S: Tensor) -> Tensor:
        log_rows_SJ = widened(model.transition.log_rows(vectors, model.everything(), states_S).detach())
        return (log_belief_S[:, None] + log_rows_SJ).logsumexp(0)

    if asked.state is None:
        return log_start().expand(len(asked.ids_BT), -1), None
    if len(states_S) == model.config.states:
        return first_states(asked.state, log_start, transition, log_push)
    # Beliefs in states that were dropped since are left all the same.
    belief_BS, fresh_B1 = carried(asked.state)
    log_rows_SJ = model.transition.log_rows(vectors, model.everything(), states_S)
    log_first_BS = log_belief((belief_BS @ log_rows_SJ.exp()).to(belief_BS), asked.state)
    return begun_or_not(log_first_BS, fresh_B1, log_start), exact_first(asked.state, fresh_B1, log_start, log_push)


def carrying_all_states(model: Distributions, asked: Asked, chain: Chain) -> Chain:
    """The same chain, whose tokens have the states of lists; what it carries on is over all states."""
    lists_GJ, list_BT = chain.lists_GS, chain.list_BT
    assert lists_GJ is not None
    assert list_BT is not None

    keep = empty_rows_keep(asked.state, asked.lengths_B, list_BT.shape[1])

    def carry(final_BJ: Tensor) -> Tensor:
        after_BS = final_BJ.new_zeros(len(final_BJ), model.config.states)
        if list_BT.shape[1] == 0:
            return keep(after_BS)
        last_B1 = (chain.lengths() - 1).clamp_min(0)[:, None]
        return keep(after_BS.scatter_add(1, lists_GJ[list_BT.gather(1, last_B1).squeeze(1)], final_BJ))

    return chain._replace(carry=carry)


def _block_chain(model: Distributions, support: Support, asked: Asked) -> Chain:
    """Every token has the states of its word's block, and a step crosses the matrix of a pair of blocks."""
    crossing, list_BT, pair_BT = block_crossing(model, support, asked, asked.state)
    # The pairs first: on the way back the few rows of the first belief come before their whole table, and are added
    # in place.
    transition = block_pairs(model, crossing, pair_BT)
    log_first_BJ, exactly = log_first(model, asked.state, list_BT, crossing)
    log_columns_NJ, index_BT, scaled = block_columns(model, support, crossing.to, crossing.block_G, asked.ids_BT)
    chain = Chain(
        log_first_BJ,
        transition,
        log_columns_NJ,
        index_BT,
        asked.lengths_B,
        lists_GS=crossing.to.lists_NK,
        list_BT=list_BT,
        labels_BT=places(asked, support),
        log_first=exactly,
        scaled=scaled,
    )
    return carrying_all_states(model, asked, chain)


def block_crossing(
    model: Distributions, support: Support, asked: Asked, belief_BS: Tensor | None
) -> tuple[Crossing, Tensor, Tensor]:
    """The steps of a batch between blocks, each pair of them once; the list of each token, and the pair that leads
    to it.
    """
    taking_part = model.taking_part(labelled=asked.labels_BT is not None)
    blocks_G, list_BT = support.block_V[asked.ids_BT].unique(return_inverse=True)
    vectors = model.vectors(lambda: _all_involved(taking_part, belief_BS))
    listed, alive_GJ = model.listed(vectors, taking_part, blocks_G)
    code_P, pair_BT = (list_BT[:, :-1] * len(blocks_G) + list_BT[:, 1:]).unique(return_inverse=True)
    pairs = Pairs(code_P // max(1, len(blocks_G)), code_P % max(1, len(blocks_G)))
    pair_BT = torch.nn.functional.pad(pair_BT, (1, 0))[:, : list_BT.shape[1]]
    return Crossing(listed, listed, blocks_G, alive_GJ, pairs, taking_part.all_S), list_BT, pair_BT


def block_pairs(model: Distributions, crossing: Crossing, pair_BT: Tensor) -> BlockPairs:
    """The matrices of a batch's pairs of blocks, and where they are crossed."""
    vectors, part = crossing.to.source, model.transition
    into_PJK = part.into(vectors, crossing)
    never_PJ = None if crossing.alive_GJ is None else ~crossing.alive_GJ[crossing.pairs.to_P]
    return BlockPairs(into_PJK, pair_BT, lambda chosen_N: part.log_into(vectors, crossing, chosen_N), never_PJ)


def block_columns(
    model: Distributions, support: Support, listed: Listed, blocks_G: Tensor, ids_BT: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """What `model.columns` gives of the words in the states listed of their blocks, N×J."""
    part, states = model.emission, model.config.states
    return model.columns(ids_BT, lambda words_N: part.block_columns(listed, support, blocks_G, words_N, states))


def _all_involved(taking_part: TakingPart, state: Tensor | None) -> Tensor:
    """All states that an encoder must see at once: those that take part, and those that carry belief."""
    if state is None:
        return taking_part.all_S
    involved_S = believed(state).any(0).index_fill(0, taking_part.all_S, True)
    return involved_S.nonzero().flatten()


def log_first(
    model: Distributions, state: Tensor | None, list_BT: Tensor, crossing: Crossing, words: Words | None = None
) -> tuple[Tensor, ExactFirst | None]:
    """log p(first state) of each row, among the states of its first token's list, and of one row in float64.

    Where states remember words, `words` are what those of each row add.
    """
    lists_GJ = crossing.to.lists_NK
    if list_BT.shape[1] == 0:
        return next(model.parameters()).new_zeros(len(list_BT), lists_GJ.shape[1]), None
    list_B = list_BT[:, 0]
    if state is None:
        return _log_start_of_lists(model, list_B, crossing), None
    belief_BS, fresh_B1 = carried(state)
    log_first_BJ = _log_pushed(model, belief_BS, list_B, crossing, words)
    if fresh_B1 is not None:
        log_first_BJ = torch.where(fresh_B1, _log_start_of_lists(model, list_B, crossing), log_first_BJ)

    def exactly(row: int) -> Tensor:
        here = slice(row, row + 1)
        if fresh_B1 is not None and bool(fresh_B1[row]):
            return widened(_log_start_of_lists(model, list_B[here], crossing)[0].detach())
        own = None if words is None else words.row(row)
        return _log_pushed_exactly(model, log_carried(state[row]), list_B[here], crossing, own)

    return log_first_BJ, exactly


@torch.no_grad()
def _log_pushed_exactly(
    model: Distributions, log_belief_S: Tensor, list_1: Tensor, crossing: Crossing, words: Words | None
) -> Tensor:
    """The logarithm of one belief one step on, among the states of a list, in float64."""
    source, first_1 = crossing.to.source, torch.zeros_like(list_1)
    log_pushed_J = log_belief_S.new_full((crossing.to.lists_NK.shape[1],), -torch.inf)
    for from_N in (log_belief_S > -torch.inf).nonzero().flatten().split(FROM_AT_ONCE):
        from_ = Listed(source, from_N[None]) if words is None else AfterWords(source, from_N[None], words)
        one = crossing._replace(from_=from_, pairs=Pairs(first_1, list_1))
        log_into_JN = widened(model.transition.log_into(source, one, first_1)[0])
        log_pushed_J = log_pushed_J.logaddexp((log_into_JN + log_belief_S[from_N]).logsumexp(1))
    return log_pushed_J


def _log_start_of_lists(model: Distributions, list_B: Tensor, crossing: Crossing) -> Tensor:
    """log p(first state) of each row that begins, among the states of its first token's list."""
    log_first_BJ = model.log_start(crossing.to.source, crossing.kept_S)[crossing.to.lists_NK[list_B]]
    if crossing.alive_GJ is None:
        return log_first_BJ
    return log_first_BJ.masked_fill(~crossing.alive_GJ[list_B], -torch.inf)


def _log_pushed(model: Distributions, state: Tensor, list_B: Tensor, crossing: Crossing, words: Words | None) -> Tensor:
    """log of each row's belief one step on, among the states of its first token's list."""
    lists_GJ = crossing.to.lists_NK
    # The states that carry belief, as many as the row that has most: dropped since or not, they are left.
    width = max([1, *(state > 0).sum(1).cpu().tolist()])
    if width > model.block_size and words is None and not model.training and not torch.is_grad_enabled():
        # A gap has spread the belief: piece by piece.
        first_BS = push_beliefs(model, crossing.to.source, state, lists_GJ[list_B])
        return first_BS.gather(1, lists_GJ[list_B]).log()
    belief_BK, from_BK = state.topk(width, sorted=False)
    carried_BK = belief_BK > 0  # a row that has fewer is filled up with a state that takes part, and no belief in it
    belief_BK, from_BK = belief_BK.where(carried_BK, 0.0), from_BK.where(carried_BK, crossing.kept_S[:1])
    pairs = Pairs(torch.arange(len(state), device=state.device), list_B)
    source = crossing.to.source
    from_ = Listed(source, from_BK) if words is None else AfterWords(source, from_BK, words)
    into_BJK = model.transition.into(source, crossing._replace(from_=from_, pairs=pairs, few=True))
    return log_belief((into_BJK * belief_BK.unsqueeze(1)).sum(-1), torch.empty(0))


def places(asked: Asked, support: Support) -> Tensor | None:
    """Given states as places in the block of their word; −1 stays."""
    if asked.labels_BT is None:
        return None
    states_BTK = support.states_MK[support.block_V[asked.ids_BT]]
    place_BT = torch.searchsorted(states_BTK, asked.labels_BT[..., None].clamp_min(0)).squeeze(-1)
    place_BT = place_BT.clamp_max(states_BTK.shape[2] - 1)
    given_BT = asked.labels_BT >= 0
    wrong_BT = given_BT & (states_BTK.gather(2, place_BT[..., None]).squeeze(-1) != asked.labels_BT)
    if bool(wrong_BT.any()):
        row, place = wrong_BT.nonzero()[0].cpu().tolist()
        raise TrellisError(
            f"state {int(asked.labels_BT[row, place])} cannot emit the word at row {row}, position {place}: label a "
            "word by states of its own block."
        )
    return torch.where(given_BT, place_BT, -1)


@torch.no_grad()
def _streamed_chain(model: Distributions, support: Support, asked: Asked) -> Chain:
    """A token that is missing may have any state: beliefs are over all states, and matrices are made as crossed."""
    assert asked.missing_BT is not None
    blocks_G, list_BT = support.block_V[asked.ids_BT].unique(return_inverse=True)
    vectors, everything = model.vectors(model.everything), model.everything_taking_part()
    listed, _ = model.listed(vectors, everything, blocks_G)
    words_N, index_BT = asked.ids_BT.unique(return_inverse=True)
    log_seen_NK, place_N, _ = block_columns(model, support, listed, blocks_G, words_N)
    log_seen_NK, lists_NK = log_seen_NK.index_select(0, place_N), support.states_MK[support.block_V[words_N]]
    log_columns_NS = log_seen_NK.new_full((len(words_N) + 1, model.config.states), -torch.inf)
    log_columns_NS[:-1].scatter_(1, lists_NK, log_seen_NK)
    log_columns_NS[-1] = 0.0
    list_BT = list_BT.masked_fill(asked.missing_BT, -1)
    transition = Streamed(listed.lists_NK, list_BT, all_lists(model), *stepper(model, vectors))
    log_start_S = model.log_start(vectors, everything.all_S)
    log_first_BS, log_first = _streamed_first(log_start_S, asked, transition)
    return Chain(
        log_first_BS,
        transition,
        log_columns_NS,
        index_BT.masked_fill(asked.missing_BT, len(words_N)),
        asked.lengths_B,
        labels_BT=asked.labels_BT,
        carry=empty_rows_keep(asked.state, asked.lengths_B, index_BT.shape[1]),
        log_first=log_first,
    )


def _streamed_first(log_start_S: Tensor, asked: Asked, transition: Streamed) -> tuple[Tensor, ExactFirst | None]:
    """log p(first state) over all states; where it leads to a seen token, among the states of that one."""
    state = asked.state
    if state is None or asked.ids_BT.shape[1] == 0:
        return log_start_S.expand(len(asked.ids_BT), -1), None
    belief_BS, fresh_B1 = carried(state)
    pushed = [push_into(transition.into, belief_S, transition.lists(row, 0)) for row, belief_S in enumerate(belief_BS)]
    log_first_BS = torch.stack(pushed).log() if pushed else belief_BS.clone()

    def log_first(row: int) -> Tensor:
        if fresh_B1 is not None and bool(fresh_B1[row]):
            return widened(log_start_S)
        return log_push_lists(transition.log_into, log_carried(state[row]), transition.lists(row, 0))

    return begun_or_not(log_first_BS, fresh_B1, lambda: log_start_S), log_first


def all_lists(model: Distributions) -> Tensor:
    """All states, in lists: the blocks, where there are any."""
    return model.everything().view(-1, model.block_size)


def push_beliefs(model: Distributions, vectors: Vectors, belief_BS: Tensor, enter_BJ: Tensor | None = None) -> Tensor:
    """Beliefs over all states one step on, B×S: into all states, or those of one list a row."""
    lists = [all_lists(model)] * len(belief_BS) if enter_BJ is None else [enter_J[None] for enter_J in enter_BJ]
    into, _ = stepper(model, vectors)
    pushed = [push_into(into, belief_S, enter_MJ) for belief_S, enter_MJ in zip(belief_BS, lists, strict=True)]
    return torch.stack(pushed) if pushed else belief_BS


def push_into(into: Stepper, belief_S: Tensor, enter_MJ: Tensor) -> Tensor:
    """A belief one step on into lists of states, S, from the states that carry it; zero elsewhere."""
    pushed_S = torch.zeros_like(belief_S)
    for from_N, part_MJ in crossings(belief_S.nonzero().T, enter_MJ):
        pushed_S[part_MJ.flatten()] += (into(from_N, part_MJ) @ belief_S[from_N]).to(belief_S)
    return pushed_S


def log_push_lists(log_into: Stepper, log_belief_S: Tensor, enter_MJ: Tensor) -> Tensor:
    """The same of a belief's logarithm, in float64; −inf elsewhere."""
    log_pushed_S = torch.full_like(log_belief_S, -torch.inf)
    for from_N, part_MJ in crossings((log_belief_S > -torch.inf).nonzero().T, enter_MJ):
        to_C = part_MJ.flatten()
        more_C = (log_into(from_N, part_MJ) + log_belief_S[from_N]).logsumexp(1)
        log_pushed_S[to_C] = log_pushed_S[to_C].logaddexp(more_C)
    return log_pushed_S


def stepper(model: Distributions, vectors: Vectors, words: Words | None = None) -> tuple[Stepper, Stepper]:
    """How matrices from some states into lists of others are made, (M·J)×N: probabilities, and float64 logarithms.

    Where states remember words, `words` are what these add, of one row.
    """
    kept_S = model.everything()

    def crossing(from_N: Tensor, enter_MJ: Tensor) -> Crossing:
        number_M = torch.arange(len(enter_MJ), device=enter_MJ.device)
        block_M = enter_MJ[:, 0] // model.block_size  # of overlapping subsets: nothing, but those are flat
        pairs = Pairs(torch.zeros_like(number_M), number_M)
        from_ = Listed(vectors, from_N[None]) if words is None else AfterWords(vectors, from_N[None], words)
        return Crossing(from_, Listed(vectors, enter_MJ), block_M, None, pairs, kept_S)

    def into(from_N: Tensor, enter_MJ: Tensor) -> Tensor:
        return model.transition.into(vectors, crossing(from_N, enter_MJ)).flatten(0, 1)

    def log_into(from_N: Tensor, enter_MJ: Tensor) -> Tensor:
        everything_M = torch.arange(len(enter_MJ), device=enter_MJ.device)
        return widened(model.transition.log_into(vectors, crossing(from_N, enter_MJ), everything_M)).flatten(0, 1)

    return into, log_into
