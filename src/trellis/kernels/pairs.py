"""Blocked transitions in native code: probabilities of pairs of blocks, their gradients, and beliefs across them."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.kernels.library import call, check, fields, ready


class _PairCall(ctypes.Structure):
    _fields_ = fields(
        "left right scale shift from_ to from_start to_start by_to into grad_into row_sum grad_left grad_right",
        "F G P K J R normalise bf16 threads",
    )


class _PushCall(ctypes.Structure):
    _fields_ = fields("into pair order start belief message grad_into", "rows P K J threads")


class Pairs(NamedTuple):
    """Pairs of lists, ordered by where they come from, and how to find them from either end."""

    from_P: Tensor
    to_P: Tensor
    from_start: Tensor  # the pairs from list f are from_start[f] up to from_start[f + 1]
    to_start: Tensor  # the same for pairs to list g, in the order of by_to_P
    by_to_P: Tensor

    @classmethod
    def of(cls, from_P: Tensor, to_P: Tensor, froms: int, tos: int) -> Pairs:
        """Of so many lists at each end; `from_P` must ascend."""
        if from_P.shape != to_P.shape or bool((from_P[1:] < from_P[:-1]).any()):
            raise TrellisError("pairs must be ordered by the list they come from: sort them.")
        by_to_P = to_P.argsort(stable=True)
        from_start = torch.searchsorted(from_P.contiguous(), torch.arange(froms + 1))
        to_start = torch.searchsorted(to_P[by_to_P], torch.arange(tos + 1))
        return cls(ready(from_P, torch.int64), ready(to_P, torch.int64), from_start, to_start, by_to_P)


def _pair_call(left_FKR: Tensor, right_GJR: Tensor, pairs: Pairs, scale_PK: Tensor, bf16: bool) -> _PairCall:
    (F, K, R), (G, J, _) = left_FKR.shape, right_GJR.shape
    if len(pairs.from_start) != F + 1 or len(pairs.to_start) != G + 1:
        raise TrellisError(f"the pairs are not of {F} and {G} lists: make them again.")
    return _PairCall(
        left=left_FKR.data_ptr(), right=right_GJR.data_ptr(), scale=scale_PK.data_ptr(),
        from_=pairs.from_P.data_ptr(), to=pairs.to_P.data_ptr(), by_to=pairs.by_to_P.data_ptr(),
        from_start=pairs.from_start.data_ptr(), to_start=pairs.to_start.data_ptr(),
        F=F, G=G, P=len(pairs.from_P), K=K, J=J, R=R, bf16=bf16, threads=torch.get_num_threads(),
    )  # fmt: skip


def pair_forward(
    left_FKR: Tensor,
    right_GJR: Tensor,
    pairs: Pairs,
    scale_PK: Tensor,
    shift_FK: Tensor | None = None,
    *,
    bf16: bool = False,
) -> Tensor:
    """Probabilities [to, from] of every pair, P×J×K: scale · softmax over to-states of left · rightᵀ.

    With `shift_FK` nothing is normalised: scale · exp(left · rightᵀ − shift).
    """
    left_FKR, right_GJR = ready(left_FKR), check(right_GJR, (*right_GJR.shape[:2], left_FKR.shape[2]), "right_GJR")
    P, K, J = len(pairs.from_P), left_FKR.shape[1], right_GJR.shape[1]
    scale_PK = check(scale_PK, (P, K), "scale_PK")
    into_PJK = left_FKR.new_empty(P, J, K)
    asked = _pair_call(left_FKR, right_GJR, pairs, scale_PK, bf16)
    asked.into, asked.normalise = into_PJK.data_ptr(), shift_FK is None
    if shift_FK is not None:
        shift_FK = check(shift_FK, (len(left_FKR), K), "shift_FK")
        asked.shift = shift_FK.data_ptr()
    call("pair_forward", asked)
    return into_PJK


def pair_backward(
    left_FKR: Tensor,
    right_GJR: Tensor,
    pairs: Pairs,
    scale_PK: Tensor,
    into_PJK: Tensor,
    grad_into_PJK: Tensor,
    *,
    normalised: bool = True,
    bf16: bool = False,
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by left and right of what `pair_forward` gave, and the sums over to-states of into · grad, P×K.

    Those sums divided by `scale_PK` are the gradient by it; without normalisation, their sums over the pairs of a
    from-state are minus the gradient by its shift.
    """
    left_FKR, right_GJR = ready(left_FKR), check(right_GJR, (*right_GJR.shape[:2], left_FKR.shape[2]), "right_GJR")
    P, K, J = len(pairs.from_P), left_FKR.shape[1], right_GJR.shape[1]
    scale_PK = check(scale_PK, (P, K), "scale_PK")
    into_PJK, grad_into_PJK = check(into_PJK, (P, J, K), "into"), check(grad_into_PJK, (P, J, K), "grad_into")
    grad_left, grad_right = torch.empty_like(left_FKR), torch.empty_like(right_GJR)
    sum_PK = torch.empty_like(scale_PK)
    asked = _pair_call(left_FKR, right_GJR, pairs, scale_PK, bf16)
    asked.into, asked.grad_into, asked.normalise = into_PJK.data_ptr(), grad_into_PJK.data_ptr(), normalised
    asked.row_sum, asked.grad_left, asked.grad_right = sum_PK.data_ptr(), grad_left.data_ptr(), grad_right.data_ptr()
    call("pair_backward", asked)
    return grad_left, grad_right, sum_PK


def _move(name: str, into_PJK: Tensor, pair_B: Tensor, belief_BK: Tensor, message_BJ: Tensor) -> None:
    into_PJK, pair_B = ready(into_PJK), ready(pair_B, torch.int64)
    P, J, K = into_PJK.shape
    B = len(pair_B)
    if belief_BK.shape != (B, K) or message_BJ.shape != (B, J):
        found = f"{tuple(belief_BK.shape)} and {tuple(message_BJ.shape)}"
        raise TrellisError(f"{B} rows that cross {J}×{K} matrices have beliefs and messages to fit, not {found}.")
    asked = _PushCall(
        into=into_PJK.data_ptr(), pair=pair_B.data_ptr(), belief=belief_BK.data_ptr(), message=message_BJ.data_ptr(),
        rows=B, P=P, K=K, J=J, threads=torch.get_num_threads(),
    )  # fmt: skip
    call(name, asked)


def push(into_PJK: Tensor, pair_B: Tensor, belief_BK: Tensor) -> Tensor:
    """Each row's belief across the matrix of its pair, read in place: B×J."""
    belief_BK = ready(belief_BK)
    message_BJ = belief_BK.new_empty(len(belief_BK), into_PJK.shape[1])
    _move("push", into_PJK, pair_B, belief_BK, message_BJ)
    return message_BJ


def pull(into_PJK: Tensor, pair_B: Tensor, message_BJ: Tensor) -> Tensor:
    """The transpose: each row's message back across the matrix of its pair, B×K."""
    message_BJ = ready(message_BJ)
    belief_BK = message_BJ.new_empty(len(message_BJ), into_PJK.shape[2])
    _move("pull", into_PJK, pair_B, belief_BK, message_BJ)
    return belief_BK


def outer(pairs: int, pair_N: Tensor, belief_NK: Tensor, message_NJ: Tensor) -> Tensor:
    """Gradient by every pair's matrix: Σ message ⊗ belief over the rows that crossed it, P×J×K."""
    belief_NK, message_NJ, pair_N = ready(belief_NK), ready(message_NJ), ready(pair_N, torch.int64)
    (N, K), J = belief_NK.shape, message_NJ.shape[1]
    if len(pair_N) != N or len(message_NJ) != N:
        raise TrellisError(f"{len(pair_N)} pairs for {N} beliefs and {len(message_NJ)} messages: give one each.")
    sorted_N, order_N = pair_N.sort(stable=True)
    start = torch.searchsorted(sorted_N, torch.arange(pairs + 1))
    grad_PJK = belief_NK.new_empty(pairs, J, K)
    asked = _PushCall(
        pair=pair_N.data_ptr(), order=order_N.data_ptr(), start=start.data_ptr(), belief=belief_NK.data_ptr(),
        message=message_NJ.data_ptr(), grad_into=grad_PJK.data_ptr(),
        rows=N, P=pairs, K=K, J=J, threads=torch.get_num_threads(),
    )  # fmt: skip
    call("outer", asked)
    return grad_PJK
