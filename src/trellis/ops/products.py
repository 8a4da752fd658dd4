"""Σ before ⊗ after over rows: the gradient by a transition matrix that every step shares."""

from __future__ import annotations

import ctypes

import torch
from torch import Tensor

from trellis.ops.library import call, check, fields, ready, usable
from trellis.ops.precision import in_bf16


class _CountCall(ctypes.Structure):
    _fields_ = fields("before after out", "rows S bf16 threads")


def counts(before_NS: Tensor, after_NS: Tensor) -> Tensor:
    """Σ before ⊗ after, S×S, from beliefs before and messages after steps; in bf16 where autocast asks for it."""
    if usable(before_NS, after_NS):
        return _native_counts(before_NS, after_NS, in_bf16(before_NS.device))
    return (before_NS.T @ after_NS).to(before_NS)  # a product in half precision is kept in full


def _native_counts(before_NS: Tensor, after_NS: Tensor, bf16: bool) -> Tensor:
    before_NS = ready(before_NS)
    N, S = before_NS.shape
    after_NS, out_SS = check(after_NS, (N, S), "after_NS"), before_NS.new_empty(S, S)
    asked = _CountCall(
        before_NS.data_ptr(), after_NS.data_ptr(), out_SS.data_ptr(), N, S, bf16, torch.get_num_threads()
    )
    call("counts", asked)
    return out_SS
