"""How the states' vectors, or free numbers, become transitions: the steps that a chain takes.

Flat: a softmax over all states. Hierarchical: the next block is drawn first, p(block | z), then a state within it,
p(z′ | block, z); as a word names its block, a step never looks at the others. Both are exact HMMs.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar

import torch
from torch import Tensor, nn

from trellis.inference import Dense, Transition
from trellis.models.encoders import Vectors
from trellis.models.lists import Crossing, Listed
from trellis.ops.cells import Cells, scalar_pairs
from trellis.ops.log_totals import log_totals
from trellis.ops.pairs import bilinear_pairs
from trellis.ops.precision import full_precision, widened

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


class TransitionPart(nn.Module):
    """p(next state | state). `log_rows` is all that a new one must have; the other two become fast when overridden."""

    roles: ClassVar[tuple[str, ...]] = ()

    def log_rows(self, vectors: Vectors, from_N: Tensor, to_S: Tensor) -> Tensor:
        """log p(next state | state) from some states to all that take part, N×S."""
        raise NotImplementedError

    def between(self, vectors: Vectors, states_S: Tensor) -> Transition:
        """The steps where every token may have every state that takes part."""
        return Dense(self.log_rows(vectors, states_S, states_S))

    def into(self, vectors: Vectors, crossing: Crossing) -> Tensor:
        """Probabilities [pair, to, from] of a crossing's pairs."""
        everything_P = torch.arange(len(crossing.pairs.from_P), device=crossing.kept_S.device)
        return self.log_into(vectors, crossing, everything_P).exp()

    def log_into(self, vectors: Vectors, crossing: Crossing, chosen_N: Tensor) -> Tensor:
        """Logarithms of some pairs' probabilities, [pair, to, from]."""
        from_F, from_N = crossing.pairs.from_P[chosen_N].unique(return_inverse=True)
        left = Listed(vectors, crossing.from_.lists_NK[from_F]).distinct
        log_rows_US = self.log_rows(vectors, left.states_U, crossing.kept_S)
        to_NJ = torch.searchsorted(crossing.kept_S, crossing.to.lists_NK[crossing.pairs.to_P[chosen_N]])
        to_NJ = to_NJ.clamp_max(len(crossing.kept_S) - 1)  # of a state that does not take part: anything
        return crossing.log_alive(log_rows_US[left.places()[from_N].unsqueeze(1), to_NJ.unsqueeze(2)], chosen_N)


class LowRankTransition(TransitionPart):
    """Logits are inner products of the vectors of the states left and entered."""

    roles = ("leaving", "entering")

    def __init__(self, config: HMMConfig, blocks: int) -> None:
        super().__init__()

    def log_block(self, leaving_NR: Tensor) -> Tensor | None:
        """log p(block | state), N×M; None if flat."""
        return None

    def log_total(self, vectors: Vectors, from_: Listed, kept_S: Tensor) -> Tensor:
        """The log of the sum over all states that take part, of each distinct state left, U."""

        def make(states_N: Tensor) -> Tensor:
            same = states_N is from_.distinct.states_U
            leaving_NR = from_.vectors("leaving") if same else vectors.vectors("leaving", vectors.encode(states_N))
            return log_totals(leaving_NR, vectors.vectors("entering", vectors.encode(kept_S)))

        return from_.once("transition", make)

    def into(self, vectors: Vectors, crossing: Crossing) -> Tensor:
        """Probabilities [pair, to, from] of a crossing's pairs."""
        leaving_UR, left = crossing.from_.vectors("leaving"), crossing.from_.distinct
        entering_GJR, pairs = crossing.entering()
        log_block_UM, shift_FK = self.log_block(leaving_UR), None
        if log_block_UM is None:
            with torch.set_grad_enabled(torch.is_grad_enabled() and not crossing.weighed):
                shift_FK = left.spread(self.log_total(vectors, crossing.from_, crossing.kept_S))
            scale_PK = crossing.unscaled(leaving_UR)
        else:
            scale_PK = crossing.unscaled(leaving_UR) if crossing.weighed else crossing.to_blocks(log_block_UM)
        return crossing.alive(bilinear_pairs(left.spread(leaving_UR), entering_GJR, scale_PK, shift_FK, pairs))

    @torch.no_grad()
    def log_into(self, vectors: Vectors, crossing: Crossing, chosen_N: Tensor) -> Tensor:
        """The slow twin of `into`: logarithms of some pairs' probabilities in float64, [pair, to, from]."""
        from_F, from_N = crossing.pairs.from_P[chosen_N].unique(return_inverse=True)
        place_FK, to_N = crossing.from_.distinct.places()[from_F], crossing.pairs.to_P[chosen_N]
        leaving_FKR = widened(crossing.from_.vectors("leaving")[place_FK])
        entering_NJR = widened(crossing.to.vectors("entering")[crossing.to.distinct.places()[to_N]])
        logits_NKJ = leaving_FKR[from_N] @ entering_NJR.transpose(1, 2)
        log_block_FKM = self.log_block(leaving_FKR)
        if log_block_FKM is None:
            log_total_U = widened(self.log_total(vectors, crossing.from_, crossing.kept_S))
            log_NKJ = logits_NKJ - log_total_U[place_FK][from_N].unsqueeze(-1)
        else:
            log_NKJ = logits_NKJ.log_softmax(-1)
            if not crossing.weighed:
                block_N = crossing.block_G[to_N]
                log_NK = crossing.from_.to_blocks(log_block_FKM[from_N, :, block_N], from_F[from_N], block_N)
                log_NKJ = log_NKJ + log_NK.unsqueeze(-1)
        return crossing.log_alive(log_NKJ.transpose(1, 2), chosen_N)

    def log_rows(self, vectors: Vectors, from_N: Tensor, to_S: Tensor) -> Tensor:
        """log p(next state | state) from some states to all that take part, N×S."""
        return self.log_rows_from(vectors.vectors("leaving", vectors.encode(from_N)), vectors, to_S)

    def log_rows_from(
        self, leaving_NR: Tensor, vectors: Vectors, to_S: Tensor, mixed: Callable[[Tensor], Tensor] | None = None
    ) -> Tensor:
        """The same of states that are left by these vectors; what is counted of the next block is `mixed` in."""
        logits_NS = (leaving_NR @ vectors.vectors("entering", vectors.encode(to_S)).T).to(leaving_NR)
        log_block_NM = self.log_block(leaving_NR)
        if mixed is not None and log_block_NM is not None:
            log_block_NM = mixed(log_block_NM)
        return logits_NS.log_softmax(-1) if log_block_NM is None else _block_then_state(log_block_NM, logits_NS)


class HierarchicalTransition(LowRankTransition):
    """The same within a block, which is drawn first, by a vector and a bias a block."""

    def __init__(self, config: HMMConfig, blocks: int) -> None:
        super().__init__(config, blocks)
        self.blocks = nn.Parameter(torch.randn(blocks, config.width).mul_(config.scale))
        self.bias = nn.Parameter(torch.zeros(blocks))

    def log_block(self, leaving_NR: Tensor) -> Tensor | None:
        """log p(block | state), N×M."""
        with full_precision(leaving_NR.device):
            return (leaving_NR @ self.blocks.T.to(leaving_NR) + self.bias.to(leaving_NR)).log_softmax(-1)


class ScalarTransition(TransitionPart):
    """Free logits, a table of all pairs of states."""

    def __init__(self, config: HMMConfig, blocks: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(config.states, config.states))

    def _block_logits(self, states_N: Tensor) -> Tensor | None:
        """Logits of the next block, N×M; None if flat."""
        return None

    def into(self, vectors: Vectors, crossing: Crossing) -> Tensor:
        """Probabilities [pair, to, from] of a crossing's pairs."""
        left, kept_S = crossing.from_.distinct, None
        logits_UM = self._block_logits(left.states_U)
        if logits_UM is None:
            kept_S, scale_PK = crossing.kept_S, crossing.unscaled(self.table)
        else:
            scale_PK = crossing.to_blocks(logits_UM.log_softmax(-1))
        cells = Cells(left, crossing.to.lists_NK, crossing.pairs, kept_S, not crossing.few)
        return crossing.alive(scalar_pairs(self.table, scale_PK, cells))

    def log_rows(self, vectors: Vectors, from_N: Tensor, to_S: Tensor) -> Tensor:
        """log p(next state | state) from some states to all that take part, N×S."""
        logits_NS = _picked(_picked(self.table, from_N, 0), to_S, 1)
        logits_NM = self._block_logits(from_N)
        return (
            logits_NS.log_softmax(-1) if logits_NM is None else _block_then_state(logits_NM.log_softmax(-1), logits_NS)
        )


class HierarchicalScalarTransition(ScalarTransition):
    """The same within a block, which is drawn first, by a table of states and blocks."""

    def __init__(self, config: HMMConfig, blocks: int) -> None:
        super().__init__(config, blocks)
        self.blocks = nn.Parameter(torch.randn(config.states, blocks))

    def _block_logits(self, states_N: Tensor) -> Tensor | None:
        return self.blocks.index_select(0, states_N)


def _picked(table: Tensor, states_N: Tensor, dim: int) -> Tensor:
    """These rows or columns of a table: the table itself, if they are all of them in order."""
    size = table.shape[dim]
    if len(states_N) == size and bool((states_N == torch.arange(size, device=states_N.device)).all()):
        return table
    return table.index_select(dim, states_N)


def _block_then_state(log_block_NM: Tensor, logits_NS: Tensor) -> Tensor:
    """log p(block | z) + log p(state | block, z), N×S; as many states of each block take part."""
    (rows, blocks), states = log_block_NM.shape, logits_NS.shape[1]
    within_NMK = logits_NS.view(rows, blocks, states // blocks).log_softmax(-1)
    return (within_NMK + log_block_NM.unsqueeze(-1)).flatten(1)


TRANSITIONS: dict[str, type[TransitionPart]] = {
    "scalar": ScalarTransition,
    "low_rank": LowRankTransition,
    "hierarchical": HierarchicalTransition,
    "hierarchical_scalar": HierarchicalScalarTransition,
}
