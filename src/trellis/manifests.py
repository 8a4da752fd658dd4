"""The manifest of a folder: every file with its size and SHA-256, by which damage is found before anything is read.

It is no seal: who can change a file can change the manifest, so what is read is checked for what it says all the same.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple

from trellis.errors import TrellisError
from trellis.json_files import read_object, write_json
from trellis.progress import Progress

MANIFEST = "manifest.json"
FORMAT = 2
_MARK = "trellis_manifest"  # holds the format, and tells our manifests from other programs' files of that name
_SUM = "files_sha256"  # of the list itself; those of format 1 have none
_FOR_PEOPLE = (".md",)  # files that may be rewritten at any time, and that nothing here reads
_BLOCK = 1 << 22
_SHA256 = re.compile(r"[0-9a-f]{64}")


class Entry(NamedTuple):
    """What a file must be."""

    bytes: int
    sha256: str


def write_manifest(folder: Path, leaving_out: Iterable[str] = ()) -> None:
    """List the files of a folder, as the last thing that is written into it; folders within have their own."""
    passed_over = {MANIFEST, *leaving_out}
    files = [path for path in sorted(folder.iterdir()) if path.is_file() and path.suffix not in _FOR_PEOPLE]
    files = [path for path in files if path.name not in passed_over]
    entries = {path.name: Entry(path.stat().st_size, checksum(path))._asdict() for path in files}
    write_json(folder / MANIFEST, {_MARK: FORMAT, "files": entries, _SUM: _sum_of(entries)})


def check_listed(path: Path) -> None:
    """Refuse a file that is not as the manifest beside it says, and any file while one that is listed is missing.

    Whoever reads a file of a folder that was written whole asks here first. Without a manifest, in a folder of an older
    version or of another program, nothing is refused; files that are not listed are not looked at.
    """
    entries = read_manifest(path.parent)
    for name in entries:
        if not (path.parent / name).is_file():
            raise TrellisError(
                f"{path.parent / name} is missing: restore it, or delete {MANIFEST} beside it if you removed it on "
                "purpose."
            )
    if path.name in entries and not _is_as_told(path, entries[path.name]):
        raise TrellisError(
            f"{path} has changed since it was written: restore it, or delete {MANIFEST} beside it if you changed it on "
            "purpose."
        )


def read_manifest(folder: Path) -> dict[str, Entry]:
    """The files that a folder must have; none if it has no manifest of ours."""
    path = folder / MANIFEST
    if not os.path.lexists(path):
        return {}
    remedy = f"restore it, or delete it if all else in {folder} is sound"
    found = read_object(path, remedy)
    if found and found.keys().isdisjoint((_MARK, _SUM)):
        return {}
    if found.get(_MARK, FORMAT) not in (1, FORMAT):
        raise TrellisError(f"{path} was written by another version of Trellis: use that one, or delete the file.")
    files = found.get("files")
    summed = _SUM in found or found.get(_MARK) == FORMAT
    if (
        _MARK not in found
        or not isinstance(files, dict)
        or not all(_is_sound(name, about) for name, about in files.items())
        or (summed and found.get(_SUM) != _sum_of(files))
    ):
        raise TrellisError(f"{path} is damaged: {remedy}.")
    return {name: Entry(**about) for name, about in files.items()}


def _sum_of(files: dict[str, dict[str, object]]) -> str:
    return hashlib.sha256(json.dumps(files, sort_keys=True).encode()).hexdigest()


def _is_sound(name: str, about: object) -> bool:
    """Whether this says of a file of the same folder, and of no other, what it must be."""
    if not isinstance(about, dict) or about.keys() != set(Entry._fields):
        return False
    if not name.isprintable() or not 0 < len(name.encode()) < 256 or name in (".", "..") or "/" in name:
        return False
    size, digest = about["bytes"], about["sha256"]
    return type(size) is int and size >= 0 and isinstance(digest, str) and bool(_SHA256.fullmatch(digest))


def _is_as_told(path: Path, told: Entry) -> bool:
    try:
        return path.stat().st_size == told.bytes and checksum(path) == told.sha256
    except OSError:  # no permission to read, or a disk that is broken
        return False


def checksum(path: Path) -> str:
    """SHA-256 of a file."""
    found = hashlib.sha256()
    with path.open("rb") as file, Progress(f"checking {path}", path.stat().st_size, unit="B") as bar:
        while block := file.read(_BLOCK):
            found.update(block)
            bar.advance(len(block))
    return found.hexdigest()
