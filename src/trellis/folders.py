"""Folders that appear whole or not at all, whatever kills the process and whenever."""

from __future__ import annotations

import ctypes
import errno
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trellis.errors import TrellisError

ANOTHER = "choose another folder"


@contextmanager
def whole_folder(folder: str | os.PathLike[str], remedy: str = ANOTHER) -> Iterator[Path]:
    """A temporary folder to fill, which takes the place of `folder` once everything in it is on the disk.

    If anything fails, `folder` is as it was before.
    """
    folder = Path(folder)
    with disk_trouble(folder, remedy):
        folder.parent.mkdir(parents=True, exist_ok=True)
        # The leading dot and the suffix keep a half-written folder from ever being listed as a finished one.
        temporary = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".partial", dir=folder.parent))
        try:
            yield temporary
            temporary.chmod(0o755)
            for path in (*temporary.rglob("*"), temporary):
                _to_disk(path)
            _swap(temporary, folder)
            _to_disk(folder.parent)
        finally:
            shutil.rmtree(temporary, ignore_errors=True)


def clear_partial(parent: Path, name: str = "*") -> None:
    """Delete what killed processes left half-written in `parent` of folders of that name."""
    for partial in parent.glob(f".{name}-*.partial"):
        shutil.rmtree(partial, ignore_errors=True)


def _swap(new: Path, folder: Path) -> None:
    """Rename `new` to `folder`; what stood there ends up at `new`, to be deleted."""
    if not folder.exists():
        new.rename(folder)
    elif not _exchange(new, folder):
        aside = new.with_suffix(".old.partial")
        folder.rename(aside)
        new.rename(folder)
        shutil.rmtree(aside, ignore_errors=True)


def _exchange(a: Path, b: Path) -> bool:
    """Swap two names in one step, so that no moment sees neither; False where the system cannot."""
    try:
        rename = ctypes.CDLL(None).renameat2
    except (OSError, AttributeError):
        return False
    here, exchange = -100, 2  # AT_FDCWD, RENAME_EXCHANGE
    return bool(rename(here, os.fsencode(a.absolute()), here, os.fsencode(b.absolute()), exchange) == 0)


def _to_disk(path: Path) -> None:
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


@contextmanager
def disk_trouble(where: Path, remedy: str = ANOTHER) -> Iterator[None]:
    """Turn a full or forbidden disk into one sentence; a file larger than allowed counts as full."""
    try:
        yield
    except OSError as error:
        if error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
            raise TrellisError(f"the disk of {where} is full; make room or {remedy}.") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST):
            raise TrellisError(f"{where} cannot be written; {remedy}.") from error
        raise
