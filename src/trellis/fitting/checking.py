"""Arrays and lists as they come, made into sequences of whole numbers; what does not fit is refused in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.errors import InputError

Integers = NDArray[np.int64]
WHOLE = "number the symbols 0, 1, 2 …"


def as_array(given: Any) -> NDArray[Any] | None:
    """A NumPy array out of an array, a tensor or a column of pandas; None of anything else."""
    if hasattr(given, "detach") and hasattr(given, "cpu"):
        given = given.detach().cpu().numpy()
    elif hasattr(given, "to_numpy") and hasattr(given, "index"):
        given = given.to_numpy()
    return given if isinstance(given, np.ndarray) else None


def is_missing(value: Any) -> bool:
    """Whether a value stands for none: None, NaN, or what pandas has for it."""
    return value is None or type(value).__name__ in ("NAType", "NaTType") or (_is_float(value) and math.isnan(value))


def _is_float(value: Any) -> bool:
    return isinstance(value, float | np.floating)


def integers(name: str, array: NDArray[Any]) -> Integers:
    """Whole numbers, none of them negative, of any shape."""
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{name} holds NaN or infinity where whole numbers belong: leave those out.")
    what = {"f": "floats", "b": "truth values", "c": "complex numbers"}.get(array.dtype.kind, "objects")
    if array.dtype.kind not in "iu":
        cast = ", or cast them by astype(int) if they are whole" if what == "floats" else ""
        raise InputError(f"{name} holds {what} where whole numbers belong: {WHOLE}{cast}.")
    if array.size and int(array.min()) < 0:
        raise InputError(f"{name} holds {array.min()}, but symbols cannot be negative: {WHOLE}.")
    if array.size and int(array.max()) > np.iinfo(np.int64).max:
        raise InputError(f"{name} holds {array.max()}, too large for a symbol: {WHOLE}.")
    return array.astype(np.int64)


def sequences_of(name: str, array: NDArray[Any], lengths: Any) -> list[Integers]:
    """The sequences of an array: (n,) or (n, 1) cut by `lengths`, or the rows of any other of two dimensions."""
    if array.size == 0:
        raise InputError(f"{name} is empty, of shape {array.shape}: give at least one symbol.")
    symbols = integers(name, array)
    if symbols.ndim == 2 and symbols.shape[1] == 1:
        symbols = symbols[:, 0]
    if symbols.ndim not in (1, 2):
        raise InputError(f"{name} has shape {array.shape}: give one symbol a row, or one sequence a row.")
    if symbols.ndim == 1:
        return np.split(symbols, np.cumsum(checked_lengths(lengths, len(symbols), name))[:-1])
    refuse_lengths(lengths, f"{name} has a sequence a row")
    return list(symbols)


def checked_lengths(lengths: Any, symbols: int, name: str) -> Integers:
    """How many symbols each sequence has; None is one sequence of all."""
    if lengths is None:
        return np.array([symbols])
    try:
        array = np.asarray(lengths)
    except ValueError:
        array = np.empty(0, dtype=object)
    if array.ndim != 1 or array.dtype.kind not in "iu":
        raise InputError("lengths must be a list of whole numbers, one a sequence.")
    if (array < 1).any():
        at = int((array < 1).argmax())
        raise InputError(f"lengths holds {array[at]} for sequence {at}: leave empty sequences out.")
    if array.sum() != symbols:
        raise InputError(f"lengths add up to {array.sum()}, but {name} has {symbols} symbols: mend one of them.")
    return array.astype(np.int64)


def refuse_lengths(lengths: Any, why: str) -> None:
    """Lengths belong to symbols in a row, and to nothing else."""
    if lengths is not None:
        raise InputError(f"lengths does not fit, since {why}: leave it out.")


def one_kind(name: str, values: Sequence[Any]) -> str:
    """What a list holds: "strings", "integers" or "sequences", and never more than one of these."""
    kinds = {_kind(value) for value in set(map(type, values))} if values else set()
    if kinds & {"missing", "floats"}:
        for at, value in enumerate(values):
            if is_missing(value):
                raise InputError(f"{name}[{at}] is missing ({value}): leave such values out.")
    if len(kinds) > 1:
        raise InputError(
            f"{name} mixes {' and '.join(sorted(_WORDS.get(kind, kind) for kind in kinds))}: give one kind."
        )
    kind = next(iter(kinds), "nothing")
    if kind == "floats":
        integers(name, np.asarray(values, dtype=np.float64))
    if kind not in ("strings", "integers", "sequences"):
        raise InputError(f"{name} holds {kind}: give strings, lists of strings, or whole numbers.")
    return kind


_WORDS = {"integers": "whole numbers", "sequences": "lists"}


def _kind(one: type) -> str:
    """What a type is to us."""
    if issubclass(one, str):
        return "strings"
    if issubclass(one, bool | np.bool_):
        return "truth values"
    if issubclass(one, int | np.integer):
        return "integers"
    if issubclass(one, float | np.floating):
        return "floats"
    if one is type(None) or one.__name__ in ("NAType", "NaTType"):
        return "missing"
    if issubclass(one, bytes | dict):
        return "bytes" if issubclass(one, bytes) else "dictionaries"
    return "sequences" if hasattr(one, "__len__") and hasattr(one, "__getitem__") else "objects"
