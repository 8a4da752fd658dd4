"""Encoders: what the vectors of the states are, with which they are left, entered, emit and start.

Table (Lee & Berg-Kirkpatrick 2025): free vectors. Residual (Chiu & Rush 2020): one embedding a state, through residual
networks; factored: half of it is the block's. A new encoder is a subclass of `Encoder`, entered in `ENCODERS`.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol, cast

import torch
from torch import Tensor, nn

from trellis.ops.precision import full_precision

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


ROLES = ("leaving", "entering", "emitting", "starting")  # what a state's vectors are for


class Vectors(Protocol):
    """The vectors of some states; what was encoded of them once serves every role."""

    def encode(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of."""

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state, N, made when first asked for where these vectors last."""


class Encoder(nn.Module):
    """The vectors of states. `encode` is given all the states that take part in a batch at once, and runs once.

    An encoder in which states do not look at each other says so (`independent`), and may then be asked about any states
    at any time. `roles` are those that its model needs.
    """

    independent = False

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__()

    def encode(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of."""
        raise NotImplementedError

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        raise NotImplementedError

    def network_parameters(self) -> list[nn.Parameter]:
        """Parameters of networks, not of single states or blocks; they may learn at a rate of their own."""
        return []

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
        self.by_role: dict[str, Tensor] = {}
        self.numbers: dict[str, tuple[Tensor, Tensor]] = {}

    @functools.cached_property
    def _encoded(self) -> Tensor:
        return self.encoder.encode(self.states_U)

    def encode(self, states_N: Tensor) -> Tensor:
        """The places of these states among those encoded."""
        return self.place_S[states_N]

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        if role not in self.by_role:
            self.by_role[role] = self.encoder.vectors(role, self._encoded)
        return self.by_role[role].index_select(0, encoded)

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state, N: those not known yet are made, and kept if these vectors last."""
        if not self.lasting:
            return make(states_N)
        if name not in self.numbers:
            known_S = torch.zeros_like(self.place_S, dtype=torch.bool)
            self.numbers[name] = known_S, make(states_N[:0]).new_zeros(len(known_S))
        known_S, number_S = self.numbers[name]
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
        wanted = {self._name(role) for role in roles}
        tables = {name: torch.randn(config.states, config.width).mul_(config.scale) for name in sorted(wanted)}
        self.tables = nn.ParameterDict(tables)

    def _name(self, role: str) -> str:
        return "states" if self.shared else "entering" if role == "starting" else role

    def encode(self, states_N: Tensor) -> Tensor:
        """The states themselves."""
        return states_N

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        table: Tensor = self.tables[self._name(role)]
        return table.index_select(0, encoded)


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
        wanted = [role for role in ROLES if role in roles and role != "entering"]
        self.networks = nn.ModuleDict({role: ResidualNetwork(config.width) for role in wanted})

    def _own_width(self, config: HMMConfig) -> int:
        return config.width

    def network_parameters(self) -> list[nn.Parameter]:
        """Those of all networks."""
        return list(self.networks.parameters())

    def encode(self, states_N: Tensor) -> Tensor:
        """The states' embeddings, N×R."""
        return self.states.index_select(0, states_N)

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        return encoded if role == "entering" else cast(Tensor, self.networks[role](encoded))


class Factored(Residual):
    """Half of an embedding is the block's, and a network a role composes the halves before all else."""

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        self.block_size = config.states // blocks
        half = config.width - config.width // 2
        self.blocks = nn.Parameter(torch.randn(blocks, half).mul_(config.scale))
        self.composing = nn.ModuleDict({role: ResidualNetwork(config.width) for role in sorted(roles)})

    def _own_width(self, config: HMMConfig) -> int:
        return config.width // 2

    def network_parameters(self) -> list[nn.Parameter]:
        """Those of all networks."""
        return [*super().network_parameters(), *self.composing.parameters()]

    def encode(self, states_N: Tensor) -> Tensor:
        """The block's half of the embedding, then the state's, N×R."""
        return torch.cat([self.blocks.index_select(0, states_N // self.block_size), super().encode(states_N)], 1)

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        return super().vectors(role, self.composing[role](encoded))


ENCODERS: dict[str, type[Encoder]] = {"table": Table, "residual": Residual, "factored": Factored}
