"""Lists of states and the steps between them: what a batch of a model with blocks passes through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.models.counted_ngrams import mixed
from trellis.models.encoders import Vectors
from trellis.ops.distinct import Distinct
from trellis.ops.pairs import Pairs


class Listed:
    """Lists of states, and their vectors: those of each distinct state are made once, when first asked for."""

    def __init__(self, vectors: Vectors, lists_NK: Tensor) -> None:
        self.source, self.lists_NK, self.distinct = vectors, lists_NK, Distinct.of(lists_NK)
        self.by_role: dict[str, Tensor] = {}

    @functools.cached_property
    def encoded(self) -> Tensor:
        """What the vectors of the distinct states are made of: encoded once for all roles."""
        return self.source.encode(self.distinct.states_U)

    def vectors(self, role: str) -> Tensor:
        """The vectors of the distinct states in one of the roles, U×R."""
        if role not in self.by_role:
            self.by_role[role] = self.source.vectors(role, self.encoded)
        return self.by_role[role]

    def once(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a distinct state, U, made when first asked for where the vectors last."""
        return self.source.once(name, self.distinct.states_U, make)

    def to_blocks(self, log_PK: Tensor, from_P: Tensor, block_P: Tensor) -> Tensor:
        """log p(block | state left), P×K, given that by the states alone: one list and one block a row."""
        return log_PK


class CountedBlocks(NamedTuple):
    """What counted n-grams add to the next block: a gate a state, and of each context a gate and log q(block)."""

    gate_S: Tensor
    gate_N: Tensor
    log_block_NM: Tensor

    def to_all(self, log_NM: Tensor, states_N: Tensor) -> Tensor:
        """log p(block | state, context) of all blocks, from log p(block | state): of one state a context."""
        gate_N1 = (self.gate_S[states_N] + self.gate_N).unsqueeze(1)
        return mixed(log_NM, self.log_block_NM.to(log_NM), gate_N1.to(log_NM))

    def mixed(self, log_PK: Tensor, states_PK: Tensor, context_P: Tensor, block_P: Tensor) -> Tensor:
        """log p(block | state, context) from log p(block | state): of some states, each row after one context."""
        gate_PK = self.gate_S[states_PK] + self.gate_N[context_P].unsqueeze(1)
        log_counted_P1 = self.log_block_NM[context_P, block_P].unsqueeze(1)
        return mixed(log_PK, log_counted_P1.to(log_PK), gate_PK.to(log_PK))


class Words(NamedTuple):
    """What the last words of some rows add to how states are left: vectors, and the counts of n-grams, if any."""

    moved_NR: Tensor
    counted: CountedBlocks | None = None

    def to_all_blocks(self, states_N: Tensor) -> Callable[[Tensor], Tensor] | None:
        """What makes log p(block | state) into log p(block | state, words), one state a row; None: it is the same."""
        counted = self.counted
        return None if counted is None else lambda log_NM: counted.to_all(log_NM, states_N)

    def row(self, row: int) -> Words:
        """Those of one row."""
        here = slice(row, row + 1)
        counted = self.counted and CountedBlocks(
            self.counted.gate_S, self.counted.gate_N[here], self.counted.log_block_NM[here]
        )
        return Words(self.moved_NR[here], counted)


class AfterWords(Listed):
    """Lists of states that are left after words, each list after those of its row."""

    def __init__(self, vectors: Vectors, lists_NK: Tensor, words: Words) -> None:
        super().__init__(vectors, lists_NK)
        self.moved_NR, self.counted = words
        self.plain, self.distinct = self.distinct, Distinct(lists_NK.flatten(), None, lists_NK.shape)

    def vectors(self, role: str) -> Tensor:
        """The vectors of every place of the lists, I×R: moved in the role of leaving."""
        if role not in self.by_role:
            encoded = self.source.encode(self.plain.states_U)
            spread_NKR = self.plain.spread(self.source.vectors(role, encoded))
            spread_NKR = spread_NKR + self.moved_NR.unsqueeze(1) if role == "leaving" else spread_NKR
            self.by_role[role] = spread_NKR.flatten(0, 1)
        return self.by_role[role]

    def once(self, name: str, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a place, I: no state alone decides it."""
        return make(self.distinct.states_U)

    def to_blocks(self, log_PK: Tensor, from_P: Tensor, block_P: Tensor) -> Tensor:
        """log p(block | state left, words), P×K: with what was counted of the words."""
        if self.counted is None:
            return log_PK
        return self.counted.mixed(log_PK, self.lists_NK[from_P], from_P, block_P)


class Crossing(NamedTuple):
    """Steps from some lists of states to others.

    from_      lists of states that are left, F×K
    to         lists of states that are entered, G×J
    block_G    the block that each list entered belongs to
    alive_GJ   which of the states entered dropout has left alive; None if all are
    pairs      which list is left for which
    kept_S     all states that take part, ascending, over which a flat transition is normalised
    few        whether these are few beside other steps of the batch, to whose gradient theirs will be added
    weighed    whether words will weigh the steps and normalise them anew: then no block is drawn first, and a flat
               normaliser is a constant
    """

    from_: Listed
    to: Listed
    block_G: Tensor
    alive_GJ: Tensor | None
    pairs: Pairs
    kept_S: Tensor
    few: bool = False
    weighed: bool = False

    def entering(self) -> tuple[Tensor, Pairs]:
        """How the states of the lists are entered, G×J×R, and the pairs; where pairs are few, so are these lists."""
        from_P, to_P = self.pairs
        if len(to_P) >= len(self.to.lists_NK):
            return self.to.distinct.spread(self.to.vectors("entering")), self.pairs
        place_PJ = self.to.distinct.places()[to_P]
        entering_IR = self.to.vectors("entering").index_select(0, place_PJ.flatten())
        own_P = torch.arange(len(to_P), device=to_P.device)
        return entering_IR.view(*place_PJ.shape, entering_IR.shape[1]), Pairs(from_P, own_P)

    def to_blocks(self, log_block_UM: Tensor) -> Tensor:
        """p(the pair's block | state left), P×K, from log p(block | state) of the distinct states left."""
        log_block_FMK = self.from_.distinct.spread(log_block_UM).transpose(1, 2)
        from_P, block_P = self.pairs.from_P, self.block_G[self.pairs.to_P]
        return self.from_.to_blocks(log_block_FMK[from_P, block_P], from_P, block_P).exp()

    def unscaled(self, like: Tensor) -> Tensor:
        """The same where no block is drawn first: ones."""
        return like.new_ones(len(self.pairs.from_P), self.from_.lists_NK.shape[1])

    def alive(self, into_PJK: Tensor) -> Tensor:
        """The same probabilities, but none of entering a state that dropout has left out."""
        return into_PJK if self.alive_GJ is None else into_PJK * self.alive_GJ[self.pairs.to_P].unsqueeze(-1)

    def log_alive(self, log_into_NJK: Tensor, chosen_N: Tensor) -> Tensor:
        """The same for logarithms of some pairs' probabilities."""
        if self.alive_GJ is None:
            return log_into_NJK
        return log_into_NJK.masked_fill(~self.alive_GJ[self.pairs.to_P[chosen_N]].unsqueeze(-1), -torch.inf)
