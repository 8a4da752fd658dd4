"""Pairs of blocks: the transition matrices that a batch crosses, from the vectors of their states.

Logits are inner products of the vectors of the from-states and the to-states. Each distinct pair is computed once. What
is kept for the way back is the probabilities themselves.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.ops.library import check, run, structure, usable
from trellis.ops.precision import full_precision, in_bf16

CHUNK = 1 << 22  # numbers gathered at once by the PyTorch twin: 16 MB of float32


class Pairs(NamedTuple):
    """Which list of states each pair leads from and which it leads to, sorted by the former."""

    from_P: Tensor
    to_P: Tensor


def bilinear_pairs(from_FKR: Tensor, to_GJR: Tensor, scale_PK: Tensor, shift_FK: Tensor | None, pairs: Pairs) -> Tensor:
    """Transition probabilities [pair, to, from] of each pair, P×J×K; differentiable once.

    With no shift, the probabilities of a from-state are the softmax over the to-states, times its scale, which is the
    probability of going to that list at all. With a shift, which is the log of a from-state's total over all states,
    they are exp(logit − shift) times the scale.
    """
    check(from_FKR=from_FKR, to_GJR=to_GJR, **pairs._asdict(), scale_PK=scale_PK, shift_FK=shift_FK)
    return _BilinearPairs.apply(from_FKR, to_GJR, scale_PK, shift_FK, pairs)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


_PairCall = structure(
    "from_FKR to_GJR scale_PK shift_FK? from_P:int to_P:int from_start:int to_start:int by_to_P:int into_PJK grad_PJK "
    "total_PK grad_FKR grad_GJR",
    "F G P K J R normalise bf16 threads",
)


def _index(pairs: Pairs, froms: int, tos: int) -> dict[str, Tensor]:
    """Where kernels find pairs: from_start[f] up to from_start[f + 1], or likewise by to-list in the order by_to_P."""
    if bool((pairs.from_P[1:] < pairs.from_P[:-1]).any()):
        raise TrellisError("pairs must be ordered by the list they lead from: sort them.")
    by_to_P = pairs.to_P.argsort(stable=True)
    from_start = torch.searchsorted(pairs.from_P, torch.arange(froms + 1))
    to_start = torch.searchsorted(pairs.to_P[by_to_P], torch.arange(tos + 1))
    return {**pairs._asdict(), "by_to_P": by_to_P, "from_start": from_start, "to_start": to_start}


class _BilinearPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, from_FKR: Tensor, to_GJR: Tensor, scale_PK: Tensor, shift_FK: Tensor | None, pairs: Pairs
    ) -> Tensor:
        ctx.pairs, ctx.shifted, ctx.bf16, ctx.index = pairs, shift_FK is not None, in_bf16(from_FKR.device), None
        if usable(from_FKR, to_GJR):
            ctx.index = _index(pairs, len(from_FKR), len(to_GJR))
            given = {"from_FKR": from_FKR, "to_GJR": to_GJR, "scale_PK": scale_PK, "shift_FK": shift_FK, **ctx.index}
            asked = _PairCall(normalise=not ctx.shifted, bf16=ctx.bf16, **given)
            (into_PJK,) = run("pair_forward", asked, "into_PJK")
        else:
            into_PJK = _torch_forward(from_FKR, to_GJR, pairs, scale_PK, shift_FK)
        ctx.save_for_backward(from_FKR, to_GJR, scale_PK, into_PJK)
        return into_PJK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PJK: Tensor) -> tuple[Tensor | None, ...]:
        from_FKR, to_GJR, scale_PK, into_PJK = ctx.saved_tensors
        if ctx.index is not None:
            given = {"from_FKR": from_FKR, "to_GJR": to_GJR, "scale_PK": scale_PK, "into_PJK": into_PJK, **ctx.index}
            asked = _PairCall(grad_PJK=grad_PJK, normalise=not ctx.shifted, bf16=ctx.bf16, **given)
            grad_FKR, grad_GJR, total_PK = run("pair_backward", asked, "grad_FKR", "grad_GJR", "total_PK")
        else:
            grad_FKR, grad_GJR, total_PK = _torch_backward(
                from_FKR, to_GJR, ctx.pairs, scale_PK, into_PJK, grad_PJK, not ctx.shifted
            )
        grad_scale_PK = torch.where(scale_PK > 0, total_PK / scale_PK, 0.0)
        grad_shift_FK = None
        if ctx.shifted:
            grad_shift_FK = total_PK.new_zeros(from_FKR.shape[:2]).index_add_(0, ctx.pairs.from_P, -total_PK)
        return grad_FKR, grad_GJR, grad_scale_PK, grad_shift_FK, None


# The PyTorch twin.


def _chunks(from_FKR: Tensor, to_GJR: Tensor, pairs: Pairs) -> Iterator[tuple[slice, Pairs]]:
    """Some pairs at a time, so that the vectors of their states fit in memory."""
    each = (from_FKR.shape[1] + to_GJR.shape[1]) * from_FKR.shape[2]
    step = max(1, CHUNK // max(1, each))
    for begin in range(0, len(pairs.from_P), step):
        here = slice(begin, begin + step)
        yield here, Pairs(pairs.from_P[here], pairs.to_P[here])


def _torch_forward(from_FKR: Tensor, to_GJR: Tensor, pairs: Pairs, scale_PK: Tensor, shift_FK: Tensor | None) -> Tensor:
    into_PJK = from_FKR.new_empty(len(scale_PK), to_GJR.shape[1], from_FKR.shape[1])
    for here, (from_P, to_P) in _chunks(from_FKR, to_GJR, pairs):
        into, scale = into_PJK[here], scale_PK[here]
        with full_precision(from_FKR.device):  # a logit rounded to half precision is a probability wrong by percents
            torch.bmm(to_GJR.index_select(0, to_P), from_FKR.index_select(0, from_P).transpose(1, 2), out=into)
        if shift_FK is None:
            peak = into.amax(1, keepdim=True)
            into.sub_(peak.masked_fill_(peak == -torch.inf, 0.0)).exp_()
            total = into.sum(1)
            into.mul_(torch.where(total == 0, 0.0, scale / total).unsqueeze(1))  # a from-state that leads nowhere
        else:
            into.sub_(shift_FK.index_select(0, from_P).unsqueeze(1)).exp_().mul_(scale.unsqueeze(1))
    return into_PJK


def _torch_backward(
    from_FKR: Tensor, to_GJR: Tensor, pairs: Pairs, scale_PK: Tensor, into_PJK: Tensor, grad_PJK: Tensor,
    normalised: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients by the vectors at both ends, and the sums over to-states of probability × gradient, P×K."""
    grad_from, grad_to = torch.zeros_like(from_FKR), torch.zeros_like(to_GJR)
    total_PK = torch.empty_like(scale_PK)
    for here, (from_P, to_P) in _chunks(from_FKR, to_GJR, pairs):
        into, scale = into_PJK[here], scale_PK[here]
        count = torch.mul(grad_PJK[here], into)
        total = torch.sum(count, 1, out=total_PK[here])
        if normalised:  # subtract the mean under the softmax, which is into / scale
            count.sub_(into.mul(torch.where(scale > 0, total / scale, 0.0).unsqueeze(1)))
        with full_precision(from_FKR.device):
            grad_from.index_add_(0, from_P, torch.bmm(count.transpose(1, 2), to_GJR.index_select(0, to_P)))
        to_states = torch.bmm(count, from_FKR.index_select(0, from_P))
        grad_to.index_add_(0, to_P, to_states.to(grad_to))  # in half precision, but added up in full
    return grad_from, grad_to, total_PK
