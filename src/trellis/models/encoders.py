"""Encoders: what the vectors of the states are, with which they are left, entered, emit and start.

Table (Lee & Berg-Kirkpatrick 2025): free vectors. Residual (Chiu & Rush 2020): one embedding a state, through residual
networks; factored: half of it is the block's. A new encoder is a subclass of `Encoder`, entered in `ENCODERS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

from trellis.ops.precision import full_precision

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


class Vectors(Protocol):
    """The vectors of some states, by role; what was encoded of them once serves all roles."""

    def encode(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of."""

    def leaving(self, encoded: Tensor) -> Tensor:
        """How states are left, N×R."""

    def entering(self, encoded: Tensor) -> Tensor:
        """How states are entered, N×R."""

    def emitting(self, encoded: Tensor) -> Tensor:
        """How states emit, N×R."""

    def starting(self, encoded: Tensor) -> Tensor:
        """How states are the first of a text, N×R."""

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state, N, made when first asked for where these vectors last."""


class Encoder(nn.Module):
    """The vectors of states. `encode` is given all the states that take part in a batch at once, and runs once.

    An encoder in which states do not look at each other says so (`independent`), and may then be asked about any states
    at any time.
    """

    independent = False

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__()

    def encode(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of."""
        raise NotImplementedError

    def leaving(self, encoded: Tensor) -> Tensor:
        """How states are left, N×R."""
        raise NotImplementedError

    def entering(self, encoded: Tensor) -> Tensor:
        """How states are entered, N×R."""
        raise NotImplementedError

    def emitting(self, encoded: Tensor) -> Tensor:
        """How states emit, N×R."""
        raise NotImplementedError

    def starting(self, encoded: Tensor) -> Tensor:
        """How states are the first of a text, N×R."""
        return self.entering(encoded)

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state; while learning nothing lasts."""
        return make(states_N)


class Picked:
    """The vectors of given states, encoded together, from which some are picked.

    `lasting` says that they stay as they are until this is dropped: then numbers a state are kept too.
    """

    def __init__(self, encoder: Encoder, states_U: Tensor, states: int, *, lasting: bool) -> None:
        self.encoder, self.states_U, self.lasting = encoder, states_U, lasting
        self.place_S = states_U.new_full((states,), -1)
        self.place_S[states_U] = torch.arange(len(states_U), device=states_U.device)
        self.kept: dict[str, tuple[Tensor, Tensor]] = {}

    @functools.cached_property
    def _encoded(self) -> Tensor:
        return self.encoder.encode(self.states_U)

    def encode(self, states_N: Tensor) -> Tensor:
        """The places of these states among those encoded."""
        return self.place_S[states_N]

    @functools.cached_property
    def _leaving(self) -> Tensor:
        return self.encoder.leaving(self._encoded)

    @functools.cached_property
    def _entering(self) -> Tensor:
        return self.encoder.entering(self._encoded)

    @functools.cached_property
    def _emitting(self) -> Tensor:
        return self.encoder.emitting(self._encoded)

    @functools.cached_property
    def _starting(self) -> Tensor:
        return self.encoder.starting(self._encoded)

    def leaving(self, encoded: Tensor) -> Tensor:
        """How states are left, N×R."""
        return self._leaving.index_select(0, encoded)

    def entering(self, encoded: Tensor) -> Tensor:
        """How states are entered, N×R."""
        return self._entering.index_select(0, encoded)

    def emitting(self, encoded: Tensor) -> Tensor:
        """How states emit, N×R."""
        return self._emitting.index_select(0, encoded)

    def starting(self, encoded: Tensor) -> Tensor:
        """How states are the first of a text, N×R."""
        return self._starting.index_select(0, encoded)

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state, N: those not known yet are made, and kept if these vectors last."""
        if not self.lasting:
            return make(states_N)
        if name not in self.kept:
            known_S = torch.zeros_like(self.place_S, dtype=torch.bool)
            self.kept[name] = known_S, make(states_N[:0]).new_zeros(len(known_S))
        known_S, number_S = self.kept[name]
        new_M = states_N[~known_S[states_N]].unique()
        if len(new_M):
            number_S[new_M] = make(new_M)
            known_S[new_M] = True
        return number_S[states_N]


class Table(Encoder):
    """Free vectors: a table for each role, or one for all; states start as they are entered."""

    independent = True

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        self.shared = config.shared
        wanted = {"entering" if role == "starting" else role for role in roles}
        if config.shared and wanted:
            wanted = {"states"}
        tables = {name: torch.randn(config.states, config.width).mul_(config.scale) for name in sorted(wanted)}
        self.tables = nn.ParameterDict(tables)

    def encode(self, states_N: Tensor) -> Tensor:
        """The states themselves."""
        return states_N

    def _of(self, role: str, states_N: Tensor) -> Tensor:
        table: Tensor = self.tables["states" if self.shared else role]
        return table.index_select(0, states_N)

    def leaving(self, encoded: Tensor) -> Tensor:
        """How states are left, N×R."""
        return self._of("leaving", encoded)

    def entering(self, encoded: Tensor) -> Tensor:
        """How states are entered, N×R."""
        return self._of("entering", encoded)

    def emitting(self, encoded: Tensor) -> Tensor:
        """How states emit, N×R."""
        return self._of("emitting", encoded)


class ResidualNetwork(nn.Module):
    """LayerNorm(ReLU(D W₂) + D) with D = ReLU(E W₁)."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.first, self.second = nn.Linear(width, width, bias=False), nn.Linear(width, width, bias=False)
        self.norm = nn.LayerNorm(width)

    def forward(self, embedding_NR: Tensor) -> Tensor:
        """The network's output, N×R; in full precision, as the products that follow round it once more."""
        with full_precision(embedding_NR.device):
            hidden_NR = torch.relu(self.first(embedding_NR))
            out: Tensor = self.norm(torch.relu(self.second(hidden_NR)) + hidden_NR)
        return out


class Residual(Encoder):
    """One embedding a state, by which it is entered; residual networks of it for the other roles."""

    independent = True

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        self.states = nn.Parameter(torch.randn(config.states, self._own_width(config)).mul_(config.scale))
        wanted = [role for role in ("leaving", "emitting", "starting") if role in roles]
        self.networks = nn.ModuleDict({role: ResidualNetwork(config.width) for role in wanted})

    @staticmethod
    def _own_width(config: HMMConfig) -> int:
        return config.width

    def encode(self, states_N: Tensor) -> Tensor:
        """The states' embeddings, N×R."""
        return self.states.index_select(0, states_N)

    def leaving(self, encoded: Tensor) -> Tensor:
        """How states are left, N×R."""
        out: Tensor = self.networks["leaving"](encoded)
        return out

    def entering(self, encoded: Tensor) -> Tensor:
        """How states are entered, N×R."""
        return encoded

    def emitting(self, encoded: Tensor) -> Tensor:
        """How states emit, N×R."""
        out: Tensor = self.networks["emitting"](encoded)
        return out

    def starting(self, encoded: Tensor) -> Tensor:
        """How states are the first of a text, N×R."""
        out: Tensor = self.networks["starting"](encoded)
        return out


class Factored(Residual):
    """Half of an embedding is the block's, and a network a role composes the halves before all else."""

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        self.block_size = config.states // blocks
        half = config.width - config.width // 2
        self.blocks = nn.Parameter(torch.randn(blocks, half).mul_(config.scale))
        self.composing = nn.ModuleDict({role: ResidualNetwork(config.width) for role in sorted(roles)})

    @staticmethod
    def _own_width(config: HMMConfig) -> int:
        return config.width // 2

    def encode(self, states_N: Tensor) -> Tensor:
        """The block's half of the embedding, then the state's, N×R."""
        return torch.cat([self.blocks.index_select(0, states_N // self.block_size), super().encode(states_N)], 1)

    def leaving(self, encoded: Tensor) -> Tensor:
        """How states are left, N×R."""
        return super().leaving(self.composing["leaving"](encoded))

    def entering(self, encoded: Tensor) -> Tensor:
        """How states are entered, N×R."""
        out: Tensor = self.composing["entering"](encoded)
        return out

    def emitting(self, encoded: Tensor) -> Tensor:
        """How states emit, N×R."""
        return super().emitting(self.composing["emitting"](encoded))

    def starting(self, encoded: Tensor) -> Tensor:
        """How states are the first of a text, N×R."""
        return super().starting(self.composing["starting"](encoded))


ENCODERS: dict[str, type[Encoder]] = {"table": Table, "residual": Residual, "factored": Factored}
