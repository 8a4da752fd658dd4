"""What people give, recognised without importing the libraries it may come from."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.errors import InputError, TrellisError
from trellis.fitting.checking import as_array, integers, one_kind, refuse_lengths, sequences_of
from trellis.fitting.data import Data, Numbers, Texts, Tokens
from trellis.text import MemoryCorpus, open_corpus
from trellis.text.corpora import NAMES
from trellis.text.files import is_array, read_array

TEXT = "text"  # the column of a table, if none is named
WANTED = "give strings, lists of tokens, whole numbers, a file or a corpus's name"
SUFFIXES = (".txt", ".text", ".jsonl", ".json", ".ndjson", ".npy", ".gz", ".zst", ".csv", ".md")  # of what is a file


def recognise(
    data: Any,
    lengths: Any = None,
    *,
    name: str = "data",
    column: str | None = None,
    data_dir: str | None = None,
    asked: bool = False,
) -> Data:
    """Data of any kind as sequences; `name` is that of the argument, for what is said about it.

    A single string is a file, a corpus's name or the text itself; where a model is `asked`, it is a file or a text.
    """
    if data is None:
        raise InputError(f"{name} is None: {WANTED}.")
    if isinstance(data, str | os.PathLike):
        return _of_name(data, lengths, name, data_dir, asked)
    if hasattr(data, "content_hash") and hasattr(data, "read"):
        refuse_lengths(lengths, f"{name} is a corpus")
        return Texts(name, data, running=True)
    data = _column(data, name, column)
    array = as_array(data)
    if array is not None and array.dtype.kind not in "OUST":
        return Numbers(name, sequences_of(name, array, lengths))
    if hasattr(data, "tocsr"):
        raise InputError(f"{name} is sparse, and dense arrays are taken: call its toarray().")
    if array is not None and array.ndim > 2:
        raise InputError(f"{name} has shape {array.shape}: give one string a row, or one list of tokens a row.")
    return _of_list(_listed(data if array is None else array.tolist(), name), lengths, name)


def _of_name(source: str | os.PathLike[str], lengths: Any, name: str, data_dir: str | None, asked: bool) -> Data:
    """A file, a corpus or a text."""
    if isinstance(source, str) and _is_text(source, asked):
        refuse_lengths(lengths, f"{name} is a text")
        if not source.strip():
            raise InputError(f"{name} is an empty string: {WANTED}.")
        return Texts(name, MemoryCorpus(name, (source,) if asked else tuple(source.splitlines())), running=not asked)
    try:
        if is_array(Path(source)) and Path(source).is_file():
            return Numbers(name, sequences_of(str(source), read_array(Path(source)), lengths))
        refuse_lengths(lengths, f"{source} is a text")
        return Texts(name, open_corpus(source, "train", data_dir), running=True, in_memory=False)
    except InputError:
        raise
    except TrellisError as error:
        raise InputError(f"{name}: {error}") from error


def _is_text(string: str, asked: bool) -> bool:
    """Whether a string is a text, rather than a file's or a corpus's name."""
    if len(string) > 4096 or "\n" in string:
        return True
    if string in NAMES and not asked:
        return False
    if Path(string).suffix.lower() in SUFFIXES or Path(string).exists():
        return False
    return asked or len(string.split()) != 1


def _column(data: Any, name: str, column: str | None) -> Any:
    """The column of a table, of pandas or `datasets`; anything else as it is."""
    columns = getattr(data, "column_names", None)  # of datasets
    if columns is None and hasattr(data, "to_numpy"):
        columns = getattr(data, "columns", None)  # of pandas
    if isinstance(columns, Mapping) or (columns is None and isinstance(data, Mapping)):
        raise InputError(f"{name} has parts, {', '.join(map(str, data))}: give one of them, as {name}[…].")
    if columns is None:
        if column is not None:
            raise InputError(f"column={column!r} does not fit, since {name} is no table: leave it out.")
        return data
    known = [str(one) for one in columns]
    wanted = column or (known[0] if len(known) == 1 else TEXT)
    if wanted not in known:
        raise InputError(f"{name} has no column {wanted!r}: set column to one of {', '.join(known)}.")
    return data[wanted]


def _listed(data: Any, name: str) -> list[Any]:
    if isinstance(data, bytes | Mapping) or not isinstance(data, Iterable):
        raise InputError(f"{name} is of type {type(data).__name__}: {WANTED}.")
    if isinstance(data, set | frozenset):
        raise InputError(f"{name} is a set, which has no order: give a list.")
    return list(data)


def _of_list(items: list[Any], lengths: Any, name: str) -> Data:
    """A list of strings, of whole numbers, or of lists of either."""
    if not items:
        raise InputError(f"{name} is empty: {WANTED}.")
    kind = one_kind(name, items)
    if kind == "integers":
        return Numbers(name, sequences_of(name, _integers(name, items), lengths))
    refuse_lengths(lengths, f"{name} is a list of {'strings' if kind == 'strings' else 'sequences'}")
    if kind == "strings":
        return _of_strings(items, name)
    return _of_sequences(items, name)


def _of_strings(texts: list[str], name: str) -> Texts:
    for at, text in enumerate(texts):
        if not text.strip():
            raise InputError(f"{name}[{at}] is empty: leave empty sequences out.")
    return Texts(name, MemoryCorpus(name, tuple(map(str, texts))), running=len(texts) == 1)


def _of_sequences(items: list[Any], name: str) -> Data:
    """Lists or arrays, all of strings or all of whole numbers."""
    kinds, found = set(), []
    for at, item in enumerate(items):
        kind, sequence = _sequence(item, f"{name}[{at}]")
        kinds.add(kind)
        found.append(sequence)
    if len(kinds) > 1:
        raise InputError(f"{name} mixes lists of strings and lists of whole numbers: give one kind.")
    return Numbers(name, found) if "integers" in kinds else Tokens(name, found)


def _sequence(item: Any, name: str) -> tuple[str, Any]:
    """One sequence: its kind, and its tokens as a list or its symbols as an array."""
    array = as_array(item)
    if len(item) == 0:
        raise InputError(f"{name} is empty: leave empty sequences out.")
    if array is not None and array.dtype.kind not in "OUST":
        if array.ndim != 1:
            raise InputError(f"{name} has shape {array.shape}: give a sequence of symbols.")
        return "integers", integers(name, array)
    tokens = list(item if array is None else array.tolist())
    kind = one_kind(name, tokens)
    if kind == "integers":
        return kind, integers(name, _integers(name, tokens))
    if kind == "sequences":
        raise InputError(f"{name} holds lists: give a list of tokens or of whole numbers.")
    if "" in tokens:
        raise InputError(f"{name} holds an empty token, at place {tokens.index('')}: leave it out.")
    return kind, [str(token) for token in tokens]


def _integers(name: str, values: list[Any]) -> NDArray[Any]:
    try:
        return np.array(values, dtype=np.int64)
    except OverflowError:
        raise InputError(f"{name} holds a number beyond 64 bits: number the symbols 0, 1, 2 ….") from None
