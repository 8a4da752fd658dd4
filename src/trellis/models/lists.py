"""Lists of states and the steps between them: what a batch of a model with blocks passes through."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

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


class AfterWords(Listed):
    """Lists of states that are left after words, which move the vectors of each list by one of their own, N×R."""

    def __init__(self, vectors: Vectors, lists_NK: Tensor, moved_NR: Tensor) -> None:
        super().__init__(vectors, lists_NK)
        self.moved_NR = moved_NR
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
        return log_block_FMK[self.pairs.from_P, self.block_G[self.pairs.to_P]].exp()

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
