"""Draws from weights, the same on every device."""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.ops.precision import widened

_GROUP = 128  # words whose probabilities are added up before one of them is looked for


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


def draw_softmax(logits_NV: Tensor, generator: torch.Generator | None = None) -> Tensor:
    """One index a row, by the softmax of its logits: a group of indices first, then one of it.

    As `draw` of the softmax, at a third of the time where there are thousands to choose from.
    """
    if bool(logits_NV.isnan().any()):
        raise TrellisError("nothing can be drawn with logits that are not numbers: the model is damaged.")
    weight_NV = (logits_NV - logits_NV.amax(1, keepdim=True)).exp_()
    weight_NGK = functional.pad(weight_NV, (0, -weight_NV.shape[1] % _GROUP)).unflatten(1, (-1, _GROUP))
    heap_NG = widened(weight_NGK.sum(2)).cumsum(1)
    point_N1 = torch.rand(len(heap_NG), 1, generator=generator, dtype=torch.float64).to(heap_NG) * heap_NG[:, -1:]
    group_N1 = torch.searchsorted(heap_NG, point_N1, right=True).clamp_max(heap_NG.shape[1] - 1)
    before_N1 = functional.pad(heap_NG, (1, 0)).gather(1, group_N1)
    within_NK = widened(weight_NGK[torch.arange(len(group_N1)), group_N1.squeeze(1)]).cumsum(1)
    # Both sums round differently, so that what is left of the point may lie a little beyond the group's own total.
    left_N1 = (point_N1 - before_N1).clamp_max(within_NK[:, -1:] * (1 - 2**-53))
    return (group_N1 * _GROUP + torch.searchsorted(within_NK, left_N1, right=True)).squeeze(1)
