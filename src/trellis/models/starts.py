"""How the states' vectors, or free numbers, become the distribution of the first state."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from trellis.models.encoders import Vectors

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


class StartPart(nn.Module):
    """Logits of the first state, normalised over the states that take part."""

    roles: ClassVar[tuple[str, ...]] = ()

    def logits(self, vectors: Vectors, states_N: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        raise NotImplementedError


class ScalarStart(StartPart):
    """Free logits."""

    def __init__(self, config: HMMConfig) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.states))

    def logits(self, vectors: Vectors, states_N: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        return self.table.index_select(0, states_N)


class LowRankStart(StartPart):
    """Products of the states' vectors and one of the start's."""

    roles = ("starting",)

    def __init__(self, config: HMMConfig) -> None:
        super().__init__()
        self.first = nn.Parameter(torch.randn(config.width).mul_(config.scale))

    def logits(self, vectors: Vectors, states_N: Tensor) -> Tensor:
        """Logits of starting in these states, N."""
        starting_NR = vectors.vectors("starting", vectors.encode(states_N))
        return (starting_NR @ self.first).to(self.first)


STARTS: dict[str, type[StartPart]] = {"scalar": ScalarStart, "low_rank": LowRankStart}
