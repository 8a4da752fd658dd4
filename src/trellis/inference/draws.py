"""Draws from weights, the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.ops.precision import widened


def draw(weight_NS: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index a row, with probability proportional to the weights; never one of weight zero.

    Random numbers come from the processor's generator, so that a seed means the same everywhere.
    """
    heap_NS = widened(weight_NS).cumsum(-1)
    total_N1 = heap_NS[..., -1:]
    if bool(total_N1.isnan().any()):
        raise TrellisError("nothing can be drawn with probabilities that are not numbers: the model is damaged.")
    # At most 1 − 2⁻⁵³, so that its product with the total always rounds to less than the total.
    point_N1 = torch.rand(total_N1.shape, generator=generator, dtype=torch.float64).to(heap_NS)
    index_N1 = torch.searchsorted(heap_NS, point_N1 * total_N1, right=True)
    return index_N1.squeeze(-1).clamp_max(weight_NS.shape[-1] - 1)
