"""Chains of an HMM: a batch of ids made ready for inference, with all that is known of the states that take part.

A dense support gives one matrix for all steps; blocks give a matrix for each pair of blocks that the batch crosses; and
where tokens are missing from a model with blocks, matrices are made as they are crossed.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import BlockPairs, Chain, Streamed
from trellis.inference.chain import empty_rows_keep, log_belief
from trellis.inference.transitions import crossings
from trellis.models.encoders import Vectors
from trellis.models.lists import Crossing, Listed
from trellis.models.remembering import remembering_chain
from trellis.models.scorer import MaybeTensor, check_ids, without_padding
from trellis.models.supports import Support, TakingPart
from trellis.ops.pairs import Pairs
from trellis.ops.precision import widened

if TYPE_CHECKING:
    from trellis.models.hmm import HMM


Stepper = Callable[[Tensor, Tensor], Tensor]  # from N states into lists M×J, [to, from]


class Asked(NamedTuple):
    """A batch as it is asked about."""

    ids_BT: Tensor
    lengths_B: MaybeTensor = None
    missing_BT: MaybeTensor = None
    state: MaybeTensor = None
    labels_BT: MaybeTensor = None

    def some(self, rows: slice) -> Asked:
        """These rows of it."""
        return Asked(self.ids_BT[rows], *(None if given is None else given[rows] for given in self[1:]))

    def ready(self, model: HMM) -> Asked:
        """The same, checked once for all kinds of chains; padding and missing tokens hold word 0."""
        self.check_shapes(model)
        ids_BT, missing_BT, labels_BT = without_padding(self.ids_BT, self.lengths_B), self.missing_BT, self.labels_BT
        if missing_BT is not None:
            ids_BT, missing_BT = ids_BT.masked_fill(missing_BT, 0), missing_BT if bool(missing_BT.any()) else None
        check_ids(ids_BT, model.config.vocab_size)
        if labels_BT is not None:
            labels_BT = _checked_labels(labels_BT, ids_BT, self.lengths_B, model.config.states)
        return self._replace(ids_BT=ids_BT, missing_BT=missing_BT, labels_BT=labels_BT)

    def check_shapes(self, model: HMM) -> None:
        """Refuse what does not belong to this batch and this model."""
        shape, rows, states = self.ids_BT.shape, len(self.ids_BT), model.config.states + model.config.memory
        if self.state is not None and self.state.shape != (rows, states):
            raise TrellisError(
                f"a state of shape {tuple(self.state.shape)} does not belong to {rows} rows of this model: "
                f"give the one that the last call returned, {rows}×{states}."
            )
        if self.lengths_B is not None and self.lengths_B.shape != shape[:1]:
            raise TrellisError(f"lengths of {tuple(self.lengths_B.shape)} do not fit {rows} rows: give one a row.")
        given = ((self.missing_BT, "missing tokens", "true or false"), (self.labels_BT, "labels", "a state, or −1,"))
        for tensor_BT, name, what in given:
            if tensor_BT is not None and tensor_BT.shape != shape:
                raise TrellisError(
                    f"{name} of {tuple(tensor_BT.shape)} do not fit a text of {tuple(shape)} tokens: give {what} "
                    "for each token."
                )


def _checked_labels(labels_BT: Tensor, ids_BT: Tensor, lengths_B: Tensor | None, states: int) -> Tensor:
    if lengths_B is not None:
        outside_BT = torch.arange(ids_BT.shape[1], device=ids_BT.device) >= lengths_B[:, None]
        labels_BT = labels_BT.masked_fill(outside_BT, -1)
    if labels_BT.numel() and (int(labels_BT.min()) < -1 or int(labels_BT.max()) >= states):
        bad = int(labels_BT[(labels_BT < -1) | (labels_BT >= states)][0])
        raise TrellisError(
            f"label {bad} is none of the {states:,} states: give 0 to {states - 1:,}, or −1 for unknown."
        )
    return labels_BT


def chain_of(model: HMM, asked: Asked) -> Chain:
    """The chain of a batch."""
    asked = asked.ready(model)
    if model.memory is not None:
        return remembering_chain(model, asked)
    if model.support is None:
        return _dense_chain(model, asked)
    if asked.missing_BT is not None:
        return _streamed_chain(model, model.support, asked)
    return _block_chain(model, model.support, asked)


def _dense_chain(model: HMM, asked: Asked) -> Chain:
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
    log_first, belief_BS = None, asked.state
    if belief_BS is None:
        log_start_S = model.log_start(vectors, states_S).index_select(0, states_S)
        log_first_BS, before_BS = log_start_S.expand(len(asked.ids_BT), -1), log_start_S.exp()
    elif all_there:
        before_BS, log_first_BS = belief_BS, log_belief(transition.push(belief_BS, 0), belief_BS)

        def log_first(row: int) -> Tensor:
            log_rows_SS = widened(model.transition.log_rows(vectors, states_S, states_S).detach())
            return (widened(belief_BS[row].detach()).log()[:, None] + log_rows_SS).logsumexp(0)

    else:  # beliefs in states that were dropped since are left all the same
        log_rows_SJ = model.transition.log_rows(vectors, model.everything(), states_S)
        before_BS, log_first_BS = belief_BS, log_belief((belief_BS @ log_rows_SJ.exp()).to(belief_BS), belief_BS)
    chain = Chain(
        log_first_BS, transition, log_columns_NS, index_BT, asked.lengths_B, labels_BT=asked.labels_BT,
        carry=empty_rows_keep(before_BS, asked.lengths_B, index_BT.shape[1]), log_first=log_first,
        scaled=scaled,
    )  # fmt: skip
    if all_there:
        return chain
    chain = chain._replace(lists_GS=states_S[None], list_BT=torch.zeros_like(asked.ids_BT))
    return _carrying_all_states(model, asked, chain, vectors, states_S)


def _carrying_all_states(model: HMM, asked: Asked, chain: Chain, vectors: Vectors, kept_S: Tensor) -> Chain:
    """The same chain, whose tokens have the states of lists; what it carries on is over all states."""
    lists_GJ, list_BT = chain.lists_GS, chain.list_BT
    assert lists_GJ is not None
    assert list_BT is not None

    def before(rows: int) -> Tensor:
        if asked.state is not None:
            return asked.state
        return model.log_start(vectors, kept_S).exp().expand(rows, -1)

    def carry(final_BJ: Tensor) -> Tensor:
        rows, last_B = len(final_BJ), chain.lengths()
        if list_BT.shape[1] == 0:
            return before(rows)
        states_BJ = lists_GJ[list_BT.gather(1, (last_B - 1).clamp_min(0)[:, None]).squeeze(1)]
        after_BS = final_BJ.new_zeros(rows, model.config.states).scatter_add(1, states_BJ, final_BJ)
        if asked.lengths_B is None or bool((last_B > 0).all()):
            return after_BS
        return torch.where((last_B > 0)[:, None], after_BS, before(rows))

    return chain._replace(carry=carry)


def _block_chain(model: HMM, support: Support, asked: Asked) -> Chain:
    """Every token has the states of its word's block, and a step crosses the matrix of a pair of blocks."""
    taking_part = model.taking_part(labelled=asked.labels_BT is not None)
    blocks_G, list_BT = support.block_V[asked.ids_BT].unique(return_inverse=True)
    vectors = model.vectors(lambda: _all_involved(taking_part, asked.state))
    listed, alive_GJ = model.listed(vectors, taking_part, blocks_G)
    code_P, pair_BT = (list_BT[:, :-1] * len(blocks_G) + list_BT[:, 1:]).unique(return_inverse=True)
    pairs = Pairs(code_P // max(1, len(blocks_G)), code_P % max(1, len(blocks_G)))
    crossing = Crossing(listed, listed, blocks_G, alive_GJ, pairs, taking_part.all_S)
    # The pairs first: on the way back the few rows of the first belief come before their whole table, and are added
    # in place.
    into_PJK = model.transition.into(vectors, crossing)
    pair_BT = torch.nn.functional.pad(pair_BT, (1, 0))[:, : list_BT.shape[1]]
    log_first_BJ = _log_first(model, asked.state, list_BT, crossing)
    log_columns_NJ, index_BT, scaled = _block_columns(model, support, listed, blocks_G, asked.ids_BT)
    chain = Chain(
        log_first_BJ,
        BlockPairs(into_PJK, pair_BT, lambda chosen_N: model.transition.log_into(vectors, crossing, chosen_N)),
        log_columns_NJ,
        index_BT,
        asked.lengths_B,
        lists_GS=crossing.to.lists_NK,
        list_BT=list_BT,
        labels_BT=_places(asked, support) if asked.labels_BT is not None else None,
        scaled=scaled,
    )
    return _carrying_all_states(model, asked, chain, vectors, taking_part.all_S)


def _block_columns(
    model: HMM, support: Support, listed: Listed, blocks_G: Tensor, ids_BT: Tensor
) -> tuple[Tensor, Tensor, tuple[Tensor, Tensor] | None]:
    """What `model.columns` gives of the words in the states listed of their blocks, N×J."""
    part, states = model.emission, model.config.states
    return model.columns(ids_BT, lambda words_N: part.block_columns(listed, support, blocks_G, words_N, states))


def _all_involved(taking_part: TakingPart, state: Tensor | None) -> Tensor:
    """All states that an encoder must see at once: those that take part, and those that carry belief."""
    if state is None:
        return taking_part.all_S
    involved_S = (state > 0).any(0).index_fill(0, taking_part.all_S, True)
    return involved_S.nonzero().flatten()


def _log_first(model: HMM, state: Tensor | None, list_BT: Tensor, crossing: Crossing) -> Tensor:
    """log p(first state) of each row, among the states of its first token's list."""
    lists_GJ = crossing.to.lists_NK
    if list_BT.shape[1] == 0:
        return next(model.parameters()).new_zeros(len(list_BT), lists_GJ.shape[1])
    list_B = list_BT[:, 0]
    if state is None:
        log_first_BJ = model.log_start(crossing.to.source, crossing.kept_S)[lists_GJ[list_B]]
        if crossing.alive_GJ is None:
            return log_first_BJ
        return log_first_BJ.masked_fill(~crossing.alive_GJ[list_B], -torch.inf)
    # The states that carry belief, as many as the row that has most: dropped since or not, they are left.
    width = max([1, *(state > 0).sum(1).cpu().tolist()])
    if width > model.block_size and not model.training and not torch.is_grad_enabled():
        # A gap has spread the belief: piece by piece.
        first_BS = push_beliefs(model, crossing.to.source, state, lists_GJ[list_B])
        return first_BS.gather(1, lists_GJ[list_B]).log()
    belief_BK, from_BK = state.topk(width, sorted=False)
    carried_BK = belief_BK > 0  # a row that has fewer is filled up with a state that takes part, and no belief in it
    belief_BK, from_BK = belief_BK.where(carried_BK, 0.0), from_BK.where(carried_BK, crossing.kept_S[:1])
    pairs = Pairs(torch.arange(len(state), device=state.device), list_B)
    from_ = Listed(crossing.to.source, from_BK)
    into_BJK = model.transition.into(crossing.to.source, crossing._replace(from_=from_, pairs=pairs, few=True))
    return log_belief((into_BJK * belief_BK.unsqueeze(1)).sum(-1), torch.empty(0))


def _places(asked: Asked, support: Support) -> Tensor:
    """Given states as places in the block of their word; −1 stays."""
    assert asked.labels_BT is not None
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
def _streamed_chain(model: HMM, support: Support, asked: Asked) -> Chain:
    """A token that is missing may have any state: beliefs are over all states, and matrices are made as crossed."""
    assert asked.missing_BT is not None
    blocks_G, list_BT = support.block_V[asked.ids_BT].unique(return_inverse=True)
    vectors, everything = model.vectors(model.everything), model.everything_taking_part()
    listed, _ = model.listed(vectors, everything, blocks_G)
    words_N, index_BT = asked.ids_BT.unique(return_inverse=True)
    log_seen_NK, place_N, _ = _block_columns(model, support, listed, blocks_G, words_N)
    log_seen_NK, lists_NK = log_seen_NK.index_select(0, place_N), support.states_MK[support.block_V[words_N]]
    log_columns_NS = log_seen_NK.new_full((len(words_N) + 1, model.config.states), -torch.inf)
    log_columns_NS[:-1].scatter_(1, lists_NK, log_seen_NK)
    log_columns_NS[-1] = 0.0
    list_BT = list_BT.masked_fill(asked.missing_BT, -1)
    transition = Streamed(listed.lists_NK, list_BT, all_lists(model), *stepper(model, vectors))
    log_start_S = model.log_start(vectors, everything.all_S)
    return Chain(
        _streamed_first(log_start_S, asked, transition),
        transition,
        log_columns_NS,
        index_BT.masked_fill(asked.missing_BT, len(words_N)),
        asked.lengths_B,
        labels_BT=asked.labels_BT,
        carry=empty_rows_keep(
            log_start_S.exp() if asked.state is None else asked.state, asked.lengths_B, index_BT.shape[1]
        ),
    )


def _streamed_first(log_start_S: Tensor, asked: Asked, transition: Streamed) -> Tensor:
    """log p(first state) over all states; where it leads to a seen token, among the states of that one."""
    if asked.state is None or asked.ids_BT.shape[1] == 0:
        return log_start_S.expand(len(asked.ids_BT), -1)
    pushed = [_push(transition.into, belief_S, transition.lists(row, 0)) for row, belief_S in enumerate(asked.state)]
    return torch.stack(pushed).log() if pushed else asked.state.clone()


def all_lists(model: HMM) -> Tensor:
    """All states, in lists: the blocks, where there are any."""
    return model.everything().view(-1, model.block_size)


def push_beliefs(model: HMM, vectors: Vectors, belief_BS: Tensor, enter_BJ: Tensor | None = None) -> Tensor:
    """Beliefs over all states one step on, B×S: into all states, or those of one list a row."""
    lists = [all_lists(model)] * len(belief_BS) if enter_BJ is None else [enter_J[None] for enter_J in enter_BJ]
    into, _ = stepper(model, vectors)
    pushed = [_push(into, belief_S, enter_MJ) for belief_S, enter_MJ in zip(belief_BS, lists, strict=True)]
    return torch.stack(pushed) if pushed else belief_BS


def _push(into: Stepper, belief_S: Tensor, enter_MJ: Tensor) -> Tensor:
    """A belief one step on into lists of states, S, from the states that carry it; zero elsewhere."""
    pushed_S = torch.zeros_like(belief_S)
    for from_N, part_MJ in crossings(belief_S.nonzero().T, enter_MJ):
        pushed_S[part_MJ.flatten()] += (into(from_N, part_MJ) @ belief_S[from_N]).to(belief_S)
    return pushed_S


def stepper(model: HMM, vectors: Vectors) -> tuple[Stepper, Stepper]:
    """How matrices from some states into lists of others are made, (M·J)×N: probabilities, and float64 logarithms."""
    kept_S = model.everything()

    def crossing(from_N: Tensor, enter_MJ: Tensor) -> Crossing:
        number_M = torch.arange(len(enter_MJ), device=enter_MJ.device)
        block_M = enter_MJ[:, 0] // model.block_size  # of overlapping subsets: nothing, but those are flat
        pairs = Pairs(torch.zeros_like(number_M), number_M)
        return Crossing(Listed(vectors, from_N[None]), Listed(vectors, enter_MJ), block_M, None, pairs, kept_S)

    def into(from_N: Tensor, enter_MJ: Tensor) -> Tensor:
        return model.transition.into(vectors, crossing(from_N, enter_MJ)).flatten(0, 1)

    def log_into(from_N: Tensor, enter_MJ: Tensor) -> Tensor:
        everything_M = torch.arange(len(enter_MJ), device=enter_MJ.device)
        return widened(model.transition.log_into(vectors, crossing(from_N, enter_MJ), everything_M)).flatten(0, 1)

    return into, log_into
