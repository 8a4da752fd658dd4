"""One step of the recursion across the matrices of pairs of blocks, and the gradient by those matrices.

Products are in full precision, native or not: a matrix is read once for each row, so rounding it would save nothing.
"""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.ops.library import call, fields, ready, usable
from trellis.ops.precision import full_precision
from trellis.ops.segments import Segments

CHUNK = 1 << 24  # numbers gathered at once by the PyTorch twins: 64 MB of float32


class _PushCall(ctypes.Structure):
    _fields_ = fields("into pair order start belief message grad_into", "rows P K J threads")


def push(into_PJK: Tensor, pair_B: Tensor, belief_BK: Tensor) -> Tensor:
    """Each row's belief across the matrix [to, from] of its pair: B×J."""
    _check_rows(into_PJK, pair_B, belief_BK, 2)
    if usable(into_PJK, belief_BK):
        belief_BK = ready(belief_BK)
        message_BJ = belief_BK.new_empty(len(belief_BK), into_PJK.shape[1])
        _native_move("push", into_PJK, pair_B, belief_BK, message_BJ)
        return message_BJ
    return _torch_move(into_PJK, pair_B, belief_BK, transposed=False)


def pull(into_PJK: Tensor, pair_B: Tensor, message_BJ: Tensor) -> Tensor:
    """The transpose: each row's message back across the matrix of its pair, B×K."""
    _check_rows(into_PJK, pair_B, message_BJ, 1)
    if usable(into_PJK, message_BJ):
        message_BJ = ready(message_BJ)
        belief_BK = message_BJ.new_empty(len(message_BJ), into_PJK.shape[2])
        _native_move("pull", into_PJK, pair_B, belief_BK, message_BJ)
        return belief_BK
    return _torch_move(into_PJK, pair_B, message_BJ, transposed=True)


def outer(pairs: int, pair_N: Tensor, belief_NK: Tensor, message_NJ: Tensor) -> Tensor:
    """Gradient by every pair's matrix: Σ message ⊗ belief over the rows that crossed it, P×J×K."""
    N = len(belief_NK)
    if len(pair_N) != N or len(message_NJ) != N:
        raise TrellisError(f"{len(pair_N)} pairs for {N} beliefs and {len(message_NJ)} messages: give one each.")
    if pairs == 0:  # rows of one token cross nothing; what their padding names is no pair
        return belief_NK.new_empty(0, message_NJ.shape[1], belief_NK.shape[1])
    if usable(belief_NK, message_NJ):
        return _native_outer(pairs, pair_N, belief_NK, message_NJ)
    return _torch_outer(pairs, pair_N, belief_NK, message_NJ)


def _check_rows(into_PJK: Tensor, pair_B: Tensor, vector: Tensor, dim: int) -> None:
    wanted = (len(pair_B), into_PJK.shape[dim])
    if tuple(vector.shape) != wanted:
        raise TrellisError(
            f"{len(pair_B)} rows that cross matrices of {tuple(into_PJK.shape[1:])} need vectors of shape {wanted}, "
            f"not {tuple(vector.shape)}."
        )


def _torch_move(into_PJK: Tensor, pair_B: Tensor, vector_B: Tensor, transposed: bool) -> Tensor:
    rows = max(1, CHUNK // max(1, into_PJK.shape[1] * into_PJK.shape[2]))
    moved = []
    for pair, vector in zip(pair_B.split(rows), vector_B.split(rows), strict=True):
        into, dim = into_PJK.index_select(0, pair), 1 if transposed else 2
        vector = vector.unsqueeze(dim)
        with full_precision(into.device):
            moved.append((torch.bmm(vector, into) if transposed else torch.bmm(into, vector)).squeeze(dim))
    return moved[0] if len(moved) == 1 else torch.cat(moved)


def _torch_outer(pairs: int, pair_N: Tensor, belief_NK: Tensor, message_NJ: Tensor) -> Tensor:
    (N, K), J = belief_NK.shape, message_NJ.shape[1]
    order_N = pair_N.argsort(stable=True)
    # This also refuses pairs that do not exist.
    size_P = pair_N.new_zeros(pairs).index_add_(0, pair_N, torch.ones_like(pair_N))
    segments = Segments.of(functional.pad(size_P.cumsum(0), (1, 0)), N)
    each = J * K + (J + K) * segments.entry_Ln.shape[1]
    grad_PJK = belief_NK.new_zeros(pairs, J, K)
    for part in segments.chunks(max(1, CHUNK // max(1, each))):
        row_Ln = part.take(order_N)
        belief_LnK = functional.embedding(row_Ln, belief_NK)
        message_LnJ = functional.embedding(row_Ln, message_NJ).masked_fill_(~part.there_Ln.unsqueeze(2), 0.0)
        with full_precision(belief_NK.device):
            grad_PJK.index_add_(0, part.owner_L, torch.bmm(message_LnJ.transpose(1, 2), belief_LnK))
    return grad_PJK


def _native_move(name: str, into_PJK: Tensor, pair_B: Tensor, belief_BK: Tensor, message_BJ: Tensor) -> None:
    into_PJK, pair_B = ready(into_PJK), ready(pair_B, torch.int64)
    P, J, K = into_PJK.shape
    asked = _PushCall(
        into=into_PJK.data_ptr(), pair=pair_B.data_ptr(), belief=belief_BK.data_ptr(), message=message_BJ.data_ptr(),
        rows=len(pair_B), P=P, K=K, J=J, threads=torch.get_num_threads(),
    )  # fmt: skip
    call(name, asked)


def _native_outer(pairs: int, pair_N: Tensor, belief_NK: Tensor, message_NJ: Tensor) -> Tensor:
    belief_NK, message_NJ, pair_N = ready(belief_NK), ready(message_NJ), ready(pair_N, torch.int64)
    (N, K), J = belief_NK.shape, message_NJ.shape[1]
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
