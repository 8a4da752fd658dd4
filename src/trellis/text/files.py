"""Stream documents out of text and JSON-lines files, plain or compressed, and out of NumPy files of whole numbers."""

from __future__ import annotations

import atexit
import functools
import hashlib
import os
import shutil
import sys
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO

import numpy as np
import zstandard
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.json_files import parse_json

if TYPE_CHECKING:
    _Unpacker = zlib._Decompress | zstandard.ZstdDecompressionObj  # the first is a name of zlib's types alone

STDIN = "-"
_BLOCK = 1 << 16
_BOM = b"\xef\xbb\xbf"
_COMPRESSED = (".gz", ".zst")
_JSON_LINES = (".jsonl", ".json", ".ndjson")
_ARRAY = ".npy"

Advance = Callable[[int], None]


def ignore(amount: int) -> None:
    """Stand in for a progress bar nobody asked for."""


def check_files(names: Sequence[str | os.PathLike[str]]) -> list[Path]:
    """Find every file before any work starts, so that a typing error costs a second and not an hour."""
    if not names:
        raise TrellisError("Name at least one text file, or - for standard input.")
    paths = [spool_stdin() if name == STDIN else _spooled(Path(name)) for name in names]
    for path in paths:
        if not path.exists():
            raise TrellisError(f"There is no file {path}; check the path.")
        if path.is_dir():
            raise TrellisError(f"{path} is a folder; name the text files inside it.")
        if path.stat().st_size == 0 and path.is_file():
            raise TrellisError(f"{path} is empty; give a file with text in it.")
        if not path.is_file():
            raise TrellisError(f"{path} is a device and no file; name a text file, or - for standard input.")
        if not os.access(path, os.R_OK):
            raise TrellisError(f"{path} cannot be read; change its permissions.")
    return paths


def _spooled(path: Path) -> Path:
    """The file; of a pipe, as of `<(zcat a.gz)`, a copy of all that comes out of it."""
    return _spool_pipe(path, path.stat().st_ino) if path.is_fifo() else path


@functools.cache
def _spool_pipe(path: Path, inode: int) -> Path:
    """Read a pipe, once in this process."""
    with path.open("rb") as pipe:
        return _spool(pipe, "".join(path.suffixes[-2:]) or ".txt")


def _spool(source: BinaryIO, suffix: str) -> Path:
    """Copy what can be read only once to a temporary file, because hashing and tokenising each need to read it."""
    handle, name = tempfile.mkstemp(prefix="trellis-", suffix=suffix)
    path = Path(name)
    atexit.register(path.unlink, missing_ok=True)
    with os.fdopen(handle, "wb") as file:
        shutil.copyfileobj(source, file)
    return path


@functools.cache
def spool_stdin() -> Path:
    """A temporary file with all of standard input."""
    path = _spool(sys.stdin.buffer, ".txt")
    if path.stat().st_size == 0:
        raise TrellisError("Standard input is empty; pipe some text into it.")
    return path


def read_documents(paths: Iterable[Path], advance: Advance = ignore) -> Iterator[str]:
    """Yield the documents of several files in order; `advance` hears of every byte read from disk."""
    for path in paths:
        if is_array(path):
            yield from _rows(path, advance)
            continue
        json_lines, empty = is_json_lines(path), True
        for number, line in _decoded(path, _lines(_blocks(path, advance))):
            if not json_lines or line.strip():
                empty = False
                yield _text_of(path, number, line) if json_lines else line
        if empty:
            trouble = "holds no records" if json_lines else "is empty"
            raise TrellisError(f"{path} {trouble}; give a file with text in it.")


def is_json_lines(path: Path) -> bool:
    """Tell JSON lines from text by the name, looking past .gz and .zst."""
    inner = path.with_suffix("") if path.suffix.lower() in _COMPRESSED else path
    return inner.suffix.lower() in _JSON_LINES


def is_array(path: Path) -> bool:
    """Tell a NumPy file by the name."""
    return path.suffix.lower() == _ARRAY


def read_array(path: Path) -> NDArray[Any]:
    """The whole numbers of a NumPy file: those of one sequence, or rows that are sequences."""
    try:
        array: NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise TrellisError(f"{path} is no sound NumPy file; write whole numbers by numpy.save.") from error
    if array.dtype.kind not in "iu" or array.ndim not in (1, 2):
        shape = " × ".join(map(str, array.shape)) or "a single"
        raise TrellisError(f"{path} holds {shape} {array.dtype}; save whole numbers, a sequence or rows of such.")
    if array.size == 0:
        raise TrellisError(f"{path} holds no numbers; save an array with some in it.")
    return array.reshape(-1) if array.ndim == 2 and array.shape[1] == 1 else array


def _rows(path: Path, advance: Advance) -> Iterator[str]:
    """The sequences of a NumPy file as text: numbers between spaces."""
    for row in np.atleast_2d(read_array(path)):
        if row.min() < 0:
            raise TrellisError(f"{path} holds {row.min()}; number the symbols from 0.")
        advance(row.nbytes)
        yield " ".join(map(str, row.tolist()))


def hash_files(paths: Iterable[Path]) -> str:
    """Hash what the documents depend on: each file's bytes and how they are read, not its name."""
    total = hashlib.blake2b(digest_size=16)
    for path in paths:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "blake2b").hexdigest()
        kind = "jsonl" if is_json_lines(path) else "npy" if is_array(path) else "text"
        packing = path.suffix.lower() if path.suffix.lower() in _COMPRESSED else ""
        total.update(f"{digest} {kind} {packing}\n".encode())
    return total.hexdigest()


def _blocks(path: Path, advance: Advance) -> Iterator[bytes]:
    suffix, raw = path.suffix.lower(), _raw_blocks(path, advance)
    if suffix == ".gz":
        return _unpack(path, raw, lambda: zlib.decompressobj(wbits=31))
    if suffix == ".zst":
        # zstd --long=31 needs the wider window; the default refuses such files.
        return _unpack(path, raw, zstandard.ZstdDecompressor(max_window_size=2**31).decompressobj)
    return raw


def _raw_blocks(path: Path, advance: Advance) -> Iterator[bytes]:
    with path.open("rb") as file:
        while block := file.read(_BLOCK):
            advance(len(block))
            yield block


def _unpack(path: Path, raw: Iterator[bytes], unpacker: Callable[[], _Unpacker]) -> Iterator[bytes]:
    """Decompress by hand, because the libraries' file readers take a cut zstd file for a whole one."""
    current: _Unpacker | None = None
    for block in raw:
        while block:
            current = current or unpacker()
            try:
                yield current.decompress(block)
            except (zlib.error, zstandard.ZstdError) as error:
                message = f"{path} is not a sound {path.suffix} file ({error}); fetch or compress it again."
                raise TrellisError(message) from error
            # One file may hold several compressed frames end to end.
            block, current = (current.unused_data, None) if current.eof else (b"", current)
    if current is not None:
        raise TrellisError(f"{path} is cut short; fetch or compress it again.")


def _lines(blocks: Iterator[bytes]) -> Iterator[bytes]:
    pending: list[bytes] = []
    for block in blocks:
        head, *rest = block.split(b"\n")
        pending.append(head)
        if rest:
            yield b"".join(pending)
            yield from rest[:-1]
            pending = [rest[-1]]
    if last := b"".join(pending):
        yield last


def _decoded(path: Path, lines: Iterator[bytes]) -> Iterator[tuple[int, str]]:
    offset = 0
    for number, line in enumerate(lines, start=1):
        content = line.removeprefix(_BOM) if number == 1 else line
        try:
            yield number, content.removesuffix(b"\r").decode("utf-8")
        except UnicodeDecodeError as error:
            byte = offset + len(line) - len(content) + error.start
            raise TrellisError(
                f"{path} is not UTF-8 at line {number}, byte {byte}; convert it, for example with iconv."
            ) from error
        offset += len(line) + 1


def _text_of(path: Path, number: int, line: str) -> str:
    try:
        record = parse_json(line, infinite=True)
    except ValueError as error:
        raise TrellisError(f"{path} line {number} is not JSON ({error}); mend it or take it out.") from error
    text = record.get("text") if isinstance(record, dict) else None
    if not isinstance(text, str):
        raise TrellisError(f'{path} line {number} has no "text" string; give every record one.')
    try:
        text.encode()
    except UnicodeEncodeError as error:
        message = f"{path} line {number} has half a surrogate pair, which is not text; take it out."
        raise TrellisError(message) from error
    return text
