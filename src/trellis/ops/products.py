"""Σ before ⊗ after over rows: the gradient by a transition matrix that every step shares."""

from __future__ import annotations

from torch import Tensor

from trellis.ops.library import both_structures, named, run, usable
from trellis.ops.precision import in_bf16

_COUNTS = both_structures("before_NS after_NS out_SS", "N S bf16 threads")


def counts(before_NS: Tensor, after_NS: Tensor) -> Tensor:
    """Σ before ⊗ after, S×S, from beliefs before and messages after steps; in bf16 where autocast asks for it."""
    dtype = before_NS.dtype
    if dtype in _COUNTS and usable(before_NS, after_NS, dtype=dtype):
        asked = _COUNTS[dtype](before_NS=before_NS, after_NS=after_NS, bf16=in_bf16(before_NS.device))
        return run(named("counts", dtype), asked, "out_SS")[0]
    return (before_NS.T @ after_NS).to(before_NS)  # a product in half precision is kept in full
