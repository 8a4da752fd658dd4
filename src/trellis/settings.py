"""Settings are frozen dataclasses; this builds them from plain mappings and explains what does not fit."""

from __future__ import annotations

import dataclasses
import difflib
import math
import numbers
import os
import types
import typing
from collections.abc import Mapping
from typing import Any, TypeVar

from trellis.errors import TrellisError

T = TypeVar("T")


def nearest(word: str, known: typing.Iterable[str]) -> str:
    """The ending of an error message about an unknown word: the nearest known one, or all of them."""
    known = sorted(known)
    close = closest(word, known)
    return f"choose from {', '.join(known)}." if close is None else f"did you mean '{close}'?"


def closest(word: str, known: typing.Iterable[str], at_least: float = 0.5) -> str | None:
    """The known word most like this one, if any is alike enough."""
    return next(iter(difflib.get_close_matches(word, list(known), n=1, cutoff=at_least)), None)


def likeness(word: str, other: str) -> float:
    """How alike two words are, from 0 to 1."""
    return difflib.SequenceMatcher(None, word, other).ratio()


def build(cls: type[T], values: Mapping[str, Any], where: str = "") -> T:
    """Make a settings dataclass from a mapping, checking names and types and descending into nested settings."""
    types_of = typing.get_type_hints(cls)
    fields = {f.name for f in dataclasses.fields(cls)}  # type: ignore[arg-type]  # T is a dataclass by contract
    arguments = {}
    for name, value in values.items():
        if name not in fields:
            raise TrellisError(f"unknown setting '{where}{name}': {nearest(str(name), fields)}")
        arguments[name] = _fit(types_of[name], value, f"{where}{name}")
    try:
        return cls(**arguments)
    except TypeError as error:
        missing = str(error).partition("argument")[2].strip(" s:")
        raise TrellisError(f"the settings '{where.rstrip('.') or cls.__name__}' lack {missing}.") from None


def check(settings: Any, where: str = "") -> None:
    """Refuse settings made by hand that `build` would refuse, and take the numbers of other libraries as Python's.

    For the `__post_init__` of a frozen dataclass: what can be made can then be written and built again.
    """
    types_of = typing.get_type_hints(type(settings))
    for field in dataclasses.fields(settings):
        fitted = _fit(types_of[field.name], getattr(settings, field.name), f"{where}{field.name}")
        object.__setattr__(settings, field.name, fitted)


def _fit(kind: Any, value: Any, name: str) -> Any:
    """The value as its declared type, or one sentence on why not."""
    if dataclasses.is_dataclass(kind):
        if isinstance(value, typing.cast(type, kind)):
            return value
        if not isinstance(value, Mapping):
            raise TrellisError(f"'{name}' must be a group of settings, not {value!r}.")
        return build(typing.cast(type, kind), value, f"{name}.")
    origin, options = typing.get_origin(kind), typing.get_args(kind)
    if origin is typing.Literal:
        if value not in options:
            raise TrellisError(f"'{name}' cannot be {value!r}: {nearest(str(value), map(str, options))}")
        return value
    if origin in (types.UnionType, typing.Union):
        return _fit_any(options, value, name)
    if origin in (list, tuple):
        if not isinstance(value, list | tuple):
            raise TrellisError(f"'{name}' must be a list, not {value!r}.")
        return origin(_fit(options[0], item, name) for item in value)
    return _fit_plain(kind, value, name)


def _fit_any(options: tuple[Any, ...], value: Any, name: str) -> Any:
    if value is None and type(None) in options:
        return None
    errors = []
    for option in options:
        if option is not type(None):
            try:
                return _fit(option, value, name)
            except TrellisError as error:
                errors.append(error)
    raise errors[0]


def _fit_plain(kind: type, value: Any, name: str) -> Any:
    value = _pythons_own(value)
    if kind is float and type(value) in (int, str):  # YAML reads 1e-3 as a string
        try:
            value = float(value)
        except ValueError:
            raise TrellisError(f"'{name}' must be a number, not {value!r}.") from None
        except OverflowError:
            raise TrellisError(f"'{name}' is too large a number: give a smaller one.") from None
    if kind is float and isinstance(value, float) and not math.isfinite(value):
        raise TrellisError(f"'{name}' must be a finite number, not {value}.")
    if kind is int and isinstance(value, float) and value.is_integer():
        value = int(value)
    if type(value) is int and abs(value) >= 2**63:
        raise TrellisError(f"'{name}' is too large a number: give one below 2^63.")
    if type(value) is str and "\0" in value:
        raise TrellisError(f"'{name}' holds a zero byte, which no text or path has: take it out.")
    if type(value) is not kind:
        names = {int: "a whole number", float: "a number", bool: "true or false", str: "text"}
        raise TrellisError(f"'{name}' must be {names[kind]}, not {value!r}.")
    return value


def _pythons_own(value: Any) -> Any:
    """A number of NumPy's or a path as what it stands for in a file of settings."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if type(value) in (int, float, bool):
        return value
    if isinstance(value, numbers.Real):
        return int(value) if isinstance(value, numbers.Integral) else float(value)
    return bool(value) if type(value).__name__ in ("bool", "bool_") else value  # NumPy's, which is no number there
