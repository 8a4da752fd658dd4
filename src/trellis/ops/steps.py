"""One step of the recursion across the matrices of pairs of blocks, and the gradient by those matrices.

Products are in full precision, native or not: a matrix is read once for each row, so rounding it would save nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor
from torch.nn import functional

from trellis.ops.library import check, run, structure, usable
from trellis.ops.precision import full_precision
from trellis.ops.segments import Segments

CHUNK = 1 << 24  # numbers gathered at once by the PyTorch twins: 64 MB of float32

_PushCall = structure("into_PJK pair_B:int order_B:int start:int belief_BK message_BJ grad_PJK", "B P K J threads")


def push(into_PJK: Tensor, pair_B: Tensor, belief_BK: Tensor) -> Tensor:
    """Each row's belief across the matrix [to, from] of its pair: B×J."""
    if usable(into_PJK, belief_BK):
        return run("push", _PushCall(into_PJK=into_PJK, pair_B=pair_B, belief_BK=belief_BK), "message_BJ")[0]
    check(into_PJK=into_PJK, pair_B=pair_B, belief_BK=belief_BK)
    return _torch_move(into_PJK, pair_B, belief_BK, transposed=False)


def pull(into_PJK: Tensor, pair_B: Tensor, message_BJ: Tensor) -> Tensor:
    """The transpose: each row's message back across the matrix of its pair, B×K."""
    if usable(into_PJK, message_BJ):
        return run("pull", _PushCall(into_PJK=into_PJK, pair_B=pair_B, message_BJ=message_BJ), "belief_BK")[0]
    check(into_PJK=into_PJK, pair_B=pair_B, message_BJ=message_BJ)
    return _torch_move(into_PJK, pair_B, message_BJ, transposed=True)


def outer(pairs: int, pair_N: Tensor, belief_NK: Tensor, message_NJ: Tensor) -> Tensor:
    """Gradient by every pair's matrix: Σ message ⊗ belief over the rows that crossed it, P×J×K."""
    check(pair_N=pair_N, belief_NK=belief_NK, message_NJ=message_NJ)
    if pairs == 0:  # rows of one token cross nothing; what their padding names is no pair
        return belief_NK.new_empty(0, message_NJ.shape[1], belief_NK.shape[1])
    if usable(belief_NK, message_NJ):
        sorted_N, order_N = pair_N.sort(stable=True)
        start = torch.searchsorted(sorted_N, torch.arange(pairs + 1))
        rows = {"pair_B": pair_N, "order_B": order_N, "start": start, "belief_BK": belief_NK, "message_BJ": message_NJ}
        return run("outer", _PushCall(P=pairs, **rows), "grad_PJK")[0]
    return _torch_outer(pairs, pair_N, belief_NK, message_NJ)


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
