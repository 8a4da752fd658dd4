"""Short reprs of answers: the numbers of small tensors, the shapes of large ones."""

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

SMALL = 16  # numbers that are still read


def brief(answer: NamedTuple) -> str:
    """An answer by its fields, such as Paths(states_BT=512×64 int64, log_prob_B=512 float32)."""
    fields = (f"{name}={_brief(value)}" for name, value in zip(answer._fields, answer, strict=True))
    return f"{type(answer).__name__}({', '.join(fields)})"


def _brief(value: Any) -> str:
    if not isinstance(value, Tensor) or value.numel() <= SMALL:
        return " ".join(repr(value).split())
    shape = "×".join(f"{size:,}" for size in value.shape)
    return f"{shape} {str(value.dtype).removeprefix('torch.')}"
