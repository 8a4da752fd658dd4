"""Encoders: what the vectors of the states are, with which they are left, entered, emit and start.

Table (Lee & Berg-Kirkpatrick 2025): free vectors. Residual (Chiu & Rush 2020): one embedding a state, through residual
networks; factored: half of it is the block's. Mlp, transformer: embeddings through networks of every kind that Lee &
Berg-Kirkpatrick compare. Pretrained: through a causal language model's layers. A new encoder is a subclass of
`Encoder`, entered in `ENCODERS`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor, nn

from trellis.models.networked import NetworkedByMLP, NetworkedByTransformer, Pretrained
from trellis.models.networks import ResidualNetwork
from trellis.models.state_vectors import ROLES, Encoder, Picked, Vectors, vector_of

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig

__all__ = ["ENCODERS", "ROLES", "Encoder", "Factored", "Picked", "Residual", "Table", "Vectors"]


class Table(Encoder):
    """Free vectors: a table for each role, or one for all; states start as they are entered."""

    independent = True

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__(config, blocks, roles)
        self.shared = config.merged
        wanted = {self._name(role) for role in roles}
        tables = {name: torch.randn(config.states, config.width).mul_(config.scale) for name in sorted(wanted)}
        self.tables = nn.ParameterDict(tables)

    def _name(self, role: str) -> str:
        return "states" if self.shared else vector_of(role)

    def encode(self, states_N: Tensor) -> Tensor:
        """The states themselves."""
        return states_N

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        table: Tensor = self.tables[self._name(role)]
        return table.index_select(0, encoded)


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


ENCODERS: dict[str, type[Encoder]] = {
    "table": Table,
    "residual": Residual,
    "factored": Factored,
    "mlp": NetworkedByMLP,
    "transformer": NetworkedByTransformer,
    "pretrained": Pretrained,
}
