"""Pairs of blocks: the transition matrices that a batch crosses, from the vectors of their states.

Logits are inner products of the vectors of the from-states and the to-states. Each distinct pair is computed once. What
is kept for the way back is the probabilities themselves.
"""

from __future__ import annotations

import ctypes
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.errors import TrellisError
from trellis.ops.library import call, check, fields, ready, usable
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
    _check_shapes(from_FKR, to_GJR, scale_PK, shift_FK, pairs)
    return _BilinearPairs.apply(from_FKR, to_GJR, scale_PK, shift_FK, pairs)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


class _BilinearPairs(torch.autograd.Function):
    @staticmethod
    def forward(
        ctx: Any, from_FKR: Tensor, to_GJR: Tensor, scale_PK: Tensor, shift_FK: Tensor | None, pairs: Pairs
    ) -> Tensor:
        ctx.pairs, ctx.shifted, ctx.bf16, ctx.index = pairs, shift_FK is not None, in_bf16(from_FKR.device), None
        if usable(from_FKR, to_GJR):
            ctx.index = _PairIndex.of(pairs, len(from_FKR), len(to_GJR))
            into_PJK = _native_forward(from_FKR, to_GJR, ctx.index, scale_PK, shift_FK, ctx.bf16)
        else:
            into_PJK = _torch_forward(from_FKR, to_GJR, pairs, scale_PK, shift_FK)
        ctx.save_for_backward(from_FKR, to_GJR, scale_PK, into_PJK)
        return into_PJK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_PJK: Tensor) -> tuple[Tensor | None, ...]:
        from_FKR, to_GJR, scale_PK, into_PJK = ctx.saved_tensors
        given = (scale_PK, into_PJK, grad_PJK)
        if ctx.index is not None:
            found = _native_backward(from_FKR, to_GJR, ctx.index, *given, not ctx.shifted, ctx.bf16)
        else:
            found = _torch_backward(from_FKR, to_GJR, ctx.pairs, *given, not ctx.shifted)
        grad_from_FKR, grad_to_GJR, total_PK = found
        grad_scale_PK = torch.where(scale_PK > 0, total_PK / scale_PK, 0.0)
        grad_shift_FK = None
        if ctx.shifted:
            grad_shift_FK = total_PK.new_zeros(from_FKR.shape[:2]).index_add_(0, ctx.pairs.from_P, -total_PK)
        return grad_from_FKR, grad_to_GJR, grad_scale_PK, grad_shift_FK, None


def _check_shapes(from_FKR: Tensor, to_GJR: Tensor, scale_PK: Tensor, shift_FK: Tensor | None, pairs: Pairs) -> None:
    wanted = {
        "to_GJR": (to_GJR, (*to_GJR.shape[:2], from_FKR.shape[2])),
        "to_P": (pairs.to_P, tuple(pairs.from_P.shape)),
        "scale_PK": (scale_PK, (len(pairs.from_P), from_FKR.shape[1])),
    }
    if shift_FK is not None:
        wanted["shift_FK"] = shift_FK, tuple(from_FKR.shape[:2])
    for name, (tensor, shape) in wanted.items():
        if tuple(tensor.shape) != shape:
            raise TrellisError(f"{name} has shape {tuple(tensor.shape)}, not {shape}.")


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


# The native calls.


class _PairCall(ctypes.Structure):
    _fields_ = fields(
        "left right scale shift from_ to from_start to_start by_to into grad_into row_sum grad_left grad_right",
        "F G P K J R normalise bf16 threads",
    )


class _PairIndex(NamedTuple):
    """Pairs, and where to find them from either end."""

    from_P: Tensor
    to_P: Tensor
    from_start: Tensor  # the pairs from list f are from_start[f] up to from_start[f + 1]
    to_start: Tensor  # the same for pairs to list g, in the order of by_to_P
    by_to_P: Tensor

    @classmethod
    def of(cls, pairs: Pairs, froms: int, tos: int) -> _PairIndex:
        """Of pairs between so many lists at each end."""
        from_P, to_P = ready(pairs.from_P, torch.int64), ready(pairs.to_P, torch.int64)
        if bool((from_P[1:] < from_P[:-1]).any()):
            raise TrellisError("pairs must be ordered by the list they lead from: sort them.")
        by_to_P = to_P.argsort(stable=True)
        from_start = torch.searchsorted(from_P, torch.arange(froms + 1))
        to_start = torch.searchsorted(to_P[by_to_P], torch.arange(tos + 1))
        return cls(from_P, to_P, from_start, to_start, by_to_P)


def _pair_call(from_FKR: Tensor, to_GJR: Tensor, index: _PairIndex, scale_PK: Tensor, bf16: bool) -> _PairCall:
    (F, K, R), (G, J, _) = from_FKR.shape, to_GJR.shape
    return _PairCall(
        left=from_FKR.data_ptr(), right=to_GJR.data_ptr(), scale=scale_PK.data_ptr(),
        from_=index.from_P.data_ptr(), to=index.to_P.data_ptr(), by_to=index.by_to_P.data_ptr(),
        from_start=index.from_start.data_ptr(), to_start=index.to_start.data_ptr(),
        F=F, G=G, P=len(index.from_P), K=K, J=J, R=R, bf16=bf16, threads=torch.get_num_threads(),
    )  # fmt: skip


def _native_forward(
    from_FKR: Tensor, to_GJR: Tensor, index: _PairIndex, scale_PK: Tensor, shift_FK: Tensor | None, bf16: bool
) -> Tensor:
    from_FKR, to_GJR, scale_PK = ready(from_FKR), ready(to_GJR), ready(scale_PK)
    into_PJK = from_FKR.new_empty(len(scale_PK), to_GJR.shape[1], from_FKR.shape[1])
    asked = _pair_call(from_FKR, to_GJR, index, scale_PK, bf16)
    asked.into, asked.normalise = into_PJK.data_ptr(), shift_FK is None
    if shift_FK is not None:
        shift_FK = ready(shift_FK)
        asked.shift = shift_FK.data_ptr()
    call("pair_forward", asked)
    return into_PJK


def _native_backward(
    from_FKR: Tensor, to_GJR: Tensor, index: _PairIndex, scale_PK: Tensor, into_PJK: Tensor, grad_PJK: Tensor,
    normalised: bool, bf16: bool,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    from_FKR, to_GJR, scale_PK, into_PJK = ready(from_FKR), ready(to_GJR), ready(scale_PK), ready(into_PJK)
    grad_PJK = check(grad_PJK, tuple(into_PJK.shape), "grad_PJK")
    grad_from, grad_to, total_PK = torch.empty_like(from_FKR), torch.empty_like(to_GJR), torch.empty_like(scale_PK)
    asked = _pair_call(from_FKR, to_GJR, index, scale_PK, bf16)
    asked.into, asked.grad_into, asked.normalise = into_PJK.data_ptr(), grad_PJK.data_ptr(), normalised
    asked.row_sum, asked.grad_left, asked.grad_right = total_PK.data_ptr(), grad_from.data_ptr(), grad_to.data_ptr()
    call("pair_backward", asked)
    return grad_from, grad_to, total_PK
