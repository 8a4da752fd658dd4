"""Batches of a blocked model, made ready for inference: which states take part, and all that is known of them.

Dropout leaves the same number of states of every group, or of all states where groups overlap. A long text is cut into
pieces whose matrices fit in memory.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference import Blocks, Gapped, GappedText
from trellis.inference.recursion import check_lengths
from trellis.inference.transitions import Crossed
from trellis.models.block_transitions import Lists
from trellis.models.blocked_parts import BlockedConfig, any_groups, build_parts
from trellis.models.groups import Groups, keep
from trellis.models.model import Model
from trellis.models.pairs import Pairs
from trellis.models.scorer import check_ids, without_padding
from trellis.models.state_features import Listed

PIECE = 1 << 28  # numbers in the pair matrices of one piece of a long text: 1 GB of float32


class ReadyBatch(NamedTuple):
    """A batch made ready: what inference takes, and the states its numbers stand for."""

    blocks: Blocks
    enter_GJ: Tensor
    list_BT: Tensor

    def states(self) -> Tensor:
        """The states each token may have, B×T×J."""
        return self.enter_GJ[self.list_BT]

    def named(self, places_BNT: Tensor) -> Tensor:
        """States by their numbers, from paths of places in the tokens' lists; −1 stays."""
        places = places_BNT.clamp_min(0).transpose(1, 2)
        return self.states().gather(2, places).transpose(1, 2).where(places_BNT >= 0, -1)


class Kept(NamedTuple):
    """The states that take part in a batch: of each group, which of those are alive (None: all), and all together."""

    states_GJ: Tensor
    alive_S: Tensor | None
    all_S: Tensor


class BlockedBatches(Model):
    """What a blocked model is made of, and how batches of it are made; the questions are in `BlockedHMM`."""

    config: BlockedConfig
    group_V: Tensor
    states_GK: Tensor

    def __init__(self, config: BlockedConfig, seed: int | None = None, groups: Groups | None = None) -> None:
        super().__init__(config)
        groups = groups or any_groups(config)
        self.register_buffer("group_V", groups.group_V)
        self.register_buffer("states_GK", groups.states_GK)
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            self.vectors, self.transition, self.emission = build_parts(config, groups)

    @property
    def groups(self) -> Groups:
        """Which states may emit a word."""
        return Groups(self.group_V, self.states_GK)

    def _everything(self) -> Tensor:
        return torch.arange(self.config.states, device=self.device)

    def _start(self, kept_S: Tensor) -> Tensor:
        """p(first state) among the states alive, zero elsewhere, S."""
        logits = self.vectors.start_logits(self.vectors.look_up(kept_S))
        probability = logits.to(next(self.parameters()).dtype).softmax(0)
        return probability.new_zeros(self.config.states).index_add(0, kept_S, probability)

    def _keep(self) -> Kept:
        """The states of every group that take part: all, or in training mode those that dropout leaves."""
        if not self.training or self.config.dropout == 0:
            return Kept(self.states_GK, None, self._everything())
        if self.config.clusters == "uniform":  # lists overlap: a state is dropped from all of them
            states = self.config.states
            kept_S = torch.randperm(states, device=self.device)[: self.config.kept(states)]
            alive_S = torch.zeros(states, dtype=torch.bool, device=self.device).index_fill_(0, kept_S, True)
            dead_G = ~alive_S[self.states_GK].any(1)  # a word must keep a state
            alive_S[self.states_GK[dead_G, 0]] = True
            return Kept(self.states_GK, alive_S, alive_S.nonzero().flatten())
        kept_GJ = keep(self.states_GK, self.config.kept(self.states_GK.shape[1]))
        return Kept(kept_GJ, None, kept_GJ.flatten())

    def _pieces(self, ids_BT: Tensor, lengths_B: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batch cut in time, so that the matrices of its pairs fit in memory; one piece when learning."""
        check_lengths(lengths_B, ids_BT.shape[1])
        time, (groups, size) = max(1, ids_BT.shape[1]), self.states_GK.shape
        pairs = PIECE // size**2
        if not torch.is_grad_enabled() and pairs < groups**2:  # else every pair there is fits
            time = max(1, pairs // max(1, len(ids_BT)))
        for begin in range(0, max(1, ids_BT.shape[1]), time):
            ids = ids_BT[:, begin : begin + time]
            yield ids, None if lengths_B is None else (lengths_B - begin).clamp(0, ids.shape[1])

    def _whole(self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None) -> ReadyBatch:
        return self._batch(ids_BT, state, lengths_B, Kept(self.states_GK, None, self._everything()))

    def _batch(self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None, kept: Kept) -> ReadyBatch:
        """Everything inference needs to know of a batch."""
        ids_BT = without_padding(ids_BT, lengths_B)
        check_ids(ids_BT, self.config.vocab_size)
        words_N, index_BT = ids_BT.unique(return_inverse=True)
        groups_G, list_BT = self.group_V[ids_BT].unique(return_inverse=True)
        enter_GJ = kept.states_GJ[groups_G]
        alive_GJ = None if kept.alive_S is None else kept.alive_S[enter_GJ]
        if alive_GJ is not None and len(groups_G):
            enter_GJ, alive_GJ = _shortened(enter_GJ, alive_GJ)
        code_N, pair = (list_BT[:, :-1] * len(groups_G) + list_BT[:, 1:]).unique(return_inverse=True)
        pairs = Pairs(code_N // max(1, len(groups_G)), code_N % max(1, len(groups_G)))
        enter = Listed(self.vectors, enter_GJ)
        lists = Lists(enter, enter, groups_G, alive_GJ, pairs, kept.all_S)
        blocks = Blocks(
            into_PJK=self.transition.into(self.vectors, lists),
            # After the pairs: on the way back its few rows come before their whole table and are added in place.
            first_BK=self._first(state, list_BT, lists),
            log_columns_NK=self.emission.columns(enter, self.groups, groups_G, words_N, self.config.states),
            pair_BT=torch.nn.functional.pad(pair, (1, 0))[:, : ids_BT.shape[1]],
            index_BT=index_BT,
            lengths_B=lengths_B,
            log_into=lambda chosen_N: self.transition.log_into(self.vectors, lists, chosen_N),
        )
        return ReadyBatch(blocks, enter_GJ, list_BT)

    @torch.no_grad()
    def _gapped(self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None, missing_BT: Tensor) -> Gapped:
        """A batch in which tokens are missing, made ready."""
        ids_BT = without_padding(ids_BT, lengths_B).masked_fill(missing_BT, 0)
        check_ids(ids_BT, self.config.vocab_size)
        words_N, index_BT = ids_BT.unique(return_inverse=True)
        groups_G = self.group_V[words_N].unique()
        enter = Listed(self.vectors, self.states_GK[groups_G])
        log_columns_NK = self.emission.columns(enter, self.groups, groups_G, words_N, self.config.states)
        before_BS = self._start(self._everything()).expand(len(ids_BT), -1) if state is None else state
        lengths = [ids_BT.shape[1]] * len(ids_BT) if lengths_B is None else lengths_B.tolist()
        texts = []
        for row, length in enumerate(lengths):
            first_S = before_S = before_BS[row]
            states_TK, missing_T = self.states_GK[self.group_V[ids_BT[row, :length]]], missing_BT[row, :length]
            if state is not None and length > 0:
                first_S = self._push(before_S, self._all() if bool(missing_T[0]) else states_TK[:1])
            seen = states_TK, log_columns_NK[index_BT[row, :length]], missing_T
            texts.append(GappedText(first_S, before_S, *seen, self._all(), self._into, self._log_into))
        return Gapped(texts, before_BS.new_zeros(ids_BT.shape))

    def _all(self) -> Tensor:
        """All states, in lists: the blocks, where there are any."""
        return self._everything().view(-1, self.states_GK.shape[1])

    def _push(self, belief_S: Tensor, enter_MJ: Tensor) -> Tensor:
        """The belief over these lists of states one step on, S, from the states that carry it; zero elsewhere."""
        return Crossed([belief_S.nonzero().T, enter_MJ], self._into).push(belief_S[None], 1)[0]

    def _into(self, leave_N: Tensor, enter_MJ: Tensor) -> Tensor:
        """p(next state | state) of the steps from some states into lists of others, (M·J)×N, [to, from]."""
        return self.transition.into(self.vectors, self._crossing(leave_N, enter_MJ)).flatten(0, 1)

    def _log_into(self, leave_N: Tensor, enter_MJ: Tensor) -> Tensor:
        """Its logarithm in float64."""
        numbers_M = torch.arange(len(enter_MJ), device=self.device)
        return self.transition.log_into(self.vectors, self._crossing(leave_N, enter_MJ), numbers_M).flatten(0, 1)

    def _crossing(self, leave_N: Tensor, enter_MJ: Tensor) -> Lists:
        numbers_M = torch.arange(len(enter_MJ), device=self.device)
        leave, enter = Listed(self.vectors, leave_N[None]), Listed(self.vectors, enter_MJ)
        block_M = enter_MJ[:, 0] // self.states_GK.shape[1]  # of overlapping subsets: nothing, but those are flat
        return Lists(leave, enter, block_M, None, Pairs(torch.zeros_like(numbers_M), numbers_M), self._everything())

    def _first(self, state: Tensor | None, list_BT: Tensor, lists: Lists) -> Tensor:
        """p(first state) of each row, among the states of its first token's list."""
        if list_BT.shape[1] == 0:
            return next(self.parameters()).new_zeros(len(list_BT), lists.enter.lists_NK.shape[1])
        entered_B = list_BT[:, 0]
        if state is None:
            first_BJ = self._start(lists.kept_S)[lists.enter.lists_NK[entered_B]]
            return first_BJ if lists.alive_GJ is None else first_BJ * lists.alive_GJ[entered_B]
        # The states that carry belief, as many as the row that has most: dropped since or not, they are left.
        width = max([1, *(state > 0).sum(1).tolist()])
        if width > self.states_GK.shape[1] and not self.training and not torch.is_grad_enabled():
            enter_BJ = lists.enter.lists_NK[entered_B]  # a gap has spread the belief over all states: piece by piece
            pairs_of = zip(state, enter_BJ, strict=True)
            return torch.stack([self._push(belief_S, enter_J[None])[enter_J] for belief_S, enter_J in pairs_of])
        belief_BK, leave_BK = state.topk(width, sorted=False)
        pairs = Pairs(torch.arange(len(state), device=state.device), entered_B)
        leave = Listed(self.vectors, leave_BK)
        into_BJK = self.transition.into(self.vectors, lists._replace(leave=leave, pairs=pairs, few=True))
        return (into_BJK * belief_BK.unsqueeze(1)).sum(-1)

    def _carried(self, batch: ReadyBatch, final_BJ: Tensor, before: Tensor | None, lengths_B: Tensor | None) -> Tensor:
        """The belief after the last token over all states; rows without tokens keep the one they had."""
        time, rows = batch.list_BT.shape[1], len(final_BJ)
        if before is None:
            before = self._start(self._everything()).expand(rows, -1)
        if time == 0:
            return before
        last_B = torch.full((rows,), time, device=self.device) if lengths_B is None else lengths_B
        place_B1 = (last_B - 1).clamp_min(0).unsqueeze(1)
        states_BJ = batch.enter_GJ[batch.list_BT.gather(1, place_B1).squeeze(1)]
        after = final_BJ.new_zeros(rows, self.config.states).scatter_add(1, states_BJ, final_BJ)
        return after if lengths_B is None else torch.where((last_B > 0).unsqueeze(1), after, before)


def _shortened(enter_GJ: Tensor, alive_GJ: Tensor) -> tuple[Tensor, Tensor]:
    """Lists of the states alive, as long as the longest (a multiple of 16 is quick to multiply), and which places live.

    A shorter list is filled up with its first state again; those places are dead, so that it is entered once.
    """
    longest = -(-int(alive_GJ.sum(1).max()) // 16) * 16
    order_GJ = alive_GJ.sort(dim=1, descending=True, stable=True).indices[:, :longest]
    enter_GJ, alive_GJ = enter_GJ.gather(1, order_GJ), alive_GJ.gather(1, order_GJ)
    return torch.where(alive_GJ, enter_GJ, enter_GJ[:, :1]), alive_GJ
