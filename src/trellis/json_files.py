"""JSON from disk: of bounded size and depth, in UTF-8, its numbers such as can be computed with."""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

from trellis.errors import TrellisError

LARGEST = 1 << 28  # bytes; the largest tokenizers that people use have a tenth of this
DEEPEST = 64  # objects and lists within each other
DIGITS = 300  # of whole numbers, each of which is a finite float then
RESTORE = "restore it or use an older checkpoint"


def parse_json(text: str | bytes, *, infinite: bool = False) -> Any:
    """What a JSON text says; ValueError if it is none, too deep, or has numbers that nobody computes with.

    NaN and infinities are refused, unless they are asked for: they are not JSON, though Python writes them.
    """
    text = text.decode("utf-8") if isinstance(text, bytes) else text
    try:
        found = json.loads(
            text,
            parse_int=_whole,
            parse_float=float if infinite else _finite,
            parse_constant=float if infinite else _finite,
        )
    except RecursionError:
        raise ValueError(f"it is nested more than {DEEPEST} deep") from None
    _check_depth(found, DEEPEST)
    return found


def read_json(path: Path, *, infinite: bool = False) -> Any:
    """What a JSON file says; ValueError as of `parse_json`, and of what is no file or too large to be one of ours."""
    if not path.is_file():  # a pipe would be waited for
        raise FileNotFoundError(f"{path} is no file")
    if path.stat().st_size > LARGEST:
        raise ValueError(f"it has more than {LARGEST:,} bytes")
    return parse_json(path.read_bytes(), infinite=infinite)


def read_object(path: Path, remedy: str = RESTORE, *, infinite: bool = False) -> dict[str, Any]:
    """The JSON object in a file, or one sentence with what is to be done about it."""
    try:
        found = read_json(path, infinite=infinite)
    except (ValueError, OSError) as error:
        raise TrellisError(f"{path} is cut short or damaged ({error}): {remedy}.") from None
    if not isinstance(found, dict):
        raise TrellisError(f"{path} does not hold a JSON object, and was not written by Trellis: {remedy}.")
    return found


def write_json(path: Path, value: Any) -> None:
    """Write a file for people and for `read_json`."""
    path.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")


def _whole(digits: str) -> int:
    if len(digits) > DIGITS:
        raise ValueError(f"a whole number has {len(digits):,} digits")
    return int(digits)


def _finite(number: str) -> float:
    found = float(number)
    if not math.isfinite(found):
        raise ValueError(f"{number:.20} is no number")
    return found


def _check_depth(value: Any, left: int) -> None:
    if not isinstance(value, dict | list):
        return
    if not left:
        raise ValueError(f"it is nested more than {DEEPEST} deep")
    for item in value.values() if isinstance(value, dict) else value:
        if isinstance(item, dict | list):
            _check_depth(item, left - 1)
