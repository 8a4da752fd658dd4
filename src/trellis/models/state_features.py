"""What a state is made of: the vectors with which it leaves, is entered and emits, and the logit of starting there.

Neural (Chiu & Rush 2020): one embedding a state, or half of one and half of its block's, through residual networks.
Low-rank (Lee & Berg-Kirkpatrick 2025): a table of vectors for each of the three.
"""

from __future__ import annotations

import functools
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trellis.models.columns import full_precision


class Residual(nn.Module):
    """LayerNorm(ReLU(D W₂) + D) with D = ReLU(E W₁)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, embedding_NR: Tensor) -> Tensor:
        """The network's output, N×R; in full precision, as the products that follow round it once more."""
        with full_precision():
            hidden_NR = torch.relu(self.first(embedding_NR))
            out: Tensor = self.norm(torch.relu(self.second(hidden_NR)) + hidden_NR)
        return out


class States(nn.Module):
    """The vectors of states, from what was looked up of them; parts whose logits are free of vectors ask for none."""

    def look_up(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of: their embeddings, or just their numbers."""
        return states_N

    def leaving(self, found: Tensor) -> Tensor:
        """How states are left, N×R."""
        raise NotImplementedError

    def entering(self, found: Tensor) -> Tensor:
        """How states are entered, N×R."""
        raise NotImplementedError

    def emitting(self, found: Tensor) -> Tensor:
        """How states emit, N×R."""
        raise NotImplementedError

    def start_logits(self, found: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        raise NotImplementedError


class Distinct(NamedTuple):
    """The states of some lists, each once: what depends on the state alone is computed once, then put in its places.

    states_U   the distinct states; of lists that do not overlap, all of them in the order they stand in
    place_I    which of them stands at each place, list after list; None if that order is theirs
    shape_NK   how many lists there are, and how long they are
    """

    states_U: Tensor
    place_I: Tensor | None
    shape_NK: torch.Size

    @classmethod
    def of(cls, lists_NK: Tensor) -> Distinct:
        """Of lists that may overlap."""
        states_U, place_NK = lists_NK.unique(return_inverse=True)
        if len(states_U) == lists_NK.numel():  # nothing to save, and nothing to be put anywhere
            return cls(lists_NK.flatten(), None, lists_NK.shape)
        return cls(states_U, place_NK.flatten(), lists_NK.shape)

    def spread(self, rows_U: Tensor) -> Tensor:
        """What each distinct state has (U or U×R), at its places: N×K or N×K×R."""
        rows_I = rows_U if self.place_I is None else rows_U.index_select(0, self.place_I)
        return rows_I.view(*self.shape_NK, *rows_U.shape[1:])

    def places(self) -> Tensor:
        """Which of the distinct states stands at each place, N×K."""
        if self.place_I is None:
            return torch.arange(len(self.states_U), device=self.states_U.device).view(self.shape_NK)
        return self.place_I.view(self.shape_NK)

    def collect(self, number_NK: Tensor) -> Tensor:
        """The sum of each distinct state's numbers over its places, U."""
        if self.place_I is None:
            return number_NK.flatten()
        return number_NK.new_zeros(len(self.states_U)).index_add_(0, self.place_I, number_NK.flatten())


class Listed:
    """Lists of states, and their vectors: those of each distinct state are made once, when first asked for."""

    def __init__(self, vectors: States, lists_NK: Tensor) -> None:
        self.vectors, self.lists_NK, self.distinct = vectors, lists_NK, Distinct.of(lists_NK)

    @functools.cached_property
    def found(self) -> Tensor:
        """What the vectors of the distinct states are made of: looked up once for all of them."""
        return self.vectors.look_up(self.distinct.states_U)

    @functools.cached_property
    def leaving(self) -> Tensor:
        """How the distinct states are left, U×R."""
        return self.vectors.leaving(self.found)

    @functools.cached_property
    def entering(self) -> Tensor:
        """How the distinct states are entered, U×R."""
        return self.vectors.entering(self.found)

    @functools.cached_property
    def emitting(self) -> Tensor:
        """How the distinct states emit, U×R."""
        return self.vectors.emitting(self.found)


class ScalarStates(States):
    """No vectors: the logits of starting are parameters, and so are all others elsewhere."""

    def __init__(self, states: int) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(states))

    def start_logits(self, found: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        return self.first.index_select(0, found)


class NeuralStates(States):
    """Residual networks of one embedding a state; `factored` ones share a half within a block."""

    def __init__(self, states: int, blocks: int, width: int, factored: bool, scale: float) -> None:
        super().__init__()
        self.block_size = states // blocks
        self.state = nn.Parameter(torch.randn(states, width // 2 if factored else width).mul_(scale))
        self.block = nn.Parameter(torch.randn(blocks, width - width // 2).mul_(scale)) if factored else None
        roles = ("out", "in", "emit", "start")
        self.compose = nn.ModuleDict({role: Residual(width) for role in roles}) if factored else None
        self.out, self.emit, self.start = Residual(width), Residual(width), Residual(width)
        self.first = nn.Linear(width, 1)

    def look_up(self, states_N: Tensor) -> Tensor:
        """The states' embeddings, N×R; of factored ones the block's half comes first."""
        state_NR = self.state.index_select(0, states_N)
        if self.block is None:
            return state_NR
        return torch.cat([self.block.index_select(0, states_N // self.block_size), state_NR], 1)

    def _composed(self, found: Tensor, role: str) -> Tensor:
        if self.compose is None:
            return found
        composed: Tensor = self.compose[role](found)
        return composed

    def leaving(self, found: Tensor) -> Tensor:
        """How states are left, N×R."""
        out: Tensor = self.out(self._composed(found, "out"))
        return out

    def entering(self, found: Tensor) -> Tensor:
        """How states are entered, N×R."""
        return self._composed(found, "in")

    def emitting(self, found: Tensor) -> Tensor:
        """How states emit, N×R."""
        out: Tensor = self.emit(self._composed(found, "emit"))
        return out

    def start_logits(self, found: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        logits: Tensor = self.first(self.start(self._composed(found, "start"))).squeeze(-1)
        return logits


class LowRankStates(States):
    """A table each for leaving, entering and emitting; their products begin with unit variance."""

    def __init__(self, states: int, width: int) -> None:
        super().__init__()
        scale = width**-0.25
        self.out, self.into, self.emit = (nn.Parameter(torch.randn(states, width).mul_(scale)) for _ in range(3))
        self.first = nn.Parameter(torch.randn(width).mul_(scale))

    def leaving(self, found: Tensor) -> Tensor:
        """How states are left, N×R."""
        return self.out.index_select(0, found)

    def entering(self, found: Tensor) -> Tensor:
        """How states are entered, N×R."""
        return self.into.index_select(0, found)

    def emitting(self, found: Tensor) -> Tensor:
        """How states emit, N×R."""
        return self.emit.index_select(0, found)

    def start_logits(self, found: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        return self.entering(found) @ self.first
