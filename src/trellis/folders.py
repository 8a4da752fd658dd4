"""Folders and files that appear whole or not at all, whatever kills the process and whenever; one lock."""

from __future__ import annotations

import ctypes
import errno
import fcntl
import glob
import os
import secrets
import shutil
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from trellis.errors import TrellisError
from trellis.manifests import write_manifest

ANOTHER = "choose another folder"
BEST = "best"  # in a run's folder: its best model so far, with its tokenizer
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)  # of a disk; a limit on file sizes counts too


def default_cache() -> Path:
    """Folder for things that can be made again: TRELLIS_CACHE, or trellis in the user's cache folder."""
    return Path(os.environ.get("TRELLIS_CACHE") or Path.home() / ".cache" / "trellis")


def places(name: str, data_dir: str | None = None) -> list[Path]:
    """Where a folder or file may lie: as it is named, then so named in the data folder, by default TRELLIS_DATA."""
    data = data_dir or os.environ.get("TRELLIS_DATA")
    return [Path(name).expanduser(), *([Path(data) / name] if data else [])]


_ASIDE = ".old.partial"


@contextmanager
def whole_folder(folder: str | os.PathLike[str], remedy: str = ANOTHER, *, for_people: bool = False) -> Iterator[Path]:
    """A temporary folder to fill, which takes the place of `folder` once everything in it is on the disk.

    A manifest of its files is written last, unless they are for people, who may change them. If anything fails,
    `folder` is as it was before.
    """
    _unlink_in_cache(Path(folder).absolute())
    folder = Path(os.path.realpath(folder))  # a link stays, and what it points to is replaced; "." has no name
    with disk_trouble(folder, remedy):
        if folder.exists() and not folder.is_dir():
            raise FileExistsError(errno.EEXIST, "a file stands there", str(folder))
        folder.parent.mkdir(parents=True, exist_ok=True)
        clear_partial(folder.parent, glob.escape(folder.name))
        with _held(lambda: _fresh_folder(folder)) as temporary:
            try:
                yield temporary
                if not for_people:
                    write_manifest(temporary)
                for path in (*temporary.rglob("*"), temporary):
                    _to_disk(path)
                _swap(temporary, folder)
                _to_disk(folder.parent)
            finally:
                shutil.rmtree(temporary, ignore_errors=True)


def _fresh_folder(folder: Path) -> Path:
    """An empty one beside a folder, by a name that keeps it from ever being listed as a finished one."""
    temporary = folder.parent / f".{folder.name}-{secrets.token_hex(4)}.partial"
    temporary.mkdir()
    return temporary


@contextmanager
def _held(make: Callable[[], Path]) -> Iterator[Path]:
    """Lock what is being written, by which others tell it from what a killed process left; freed by any death."""
    while True:
        path = make()
        with _lock_of(path, wait=True):
            if path.exists():  # else somebody took it for such a thing before the lock was held
                yield path
                return


@contextmanager
def _lock_of(path: Path, *, wait: bool) -> Iterator[bool]:
    """Whether the lock of a file or folder itself is held here; True where a disk has no locks and one waits."""
    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW)
    try:
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
            held = True
        except OSError:
            held = wait
        yield held
    finally:
        os.close(descriptor)


def _unlink_in_cache(folder: Path) -> None:
    """Remove links in the way to a folder of the cache, which nothing here makes: what they lead to is not replaced."""
    cache = default_cache().absolute()
    for part in (*reversed(folder.parents), folder):
        if cache in part.parents and part.is_symlink():
            part.unlink(missing_ok=True)


def write_atomically(path: Path, content: str | bytes) -> None:
    """Put `content`, text as UTF-8, in the place of a file once all of it is on the disk.

    If anything fails, the file is as it was before. Trouble with the disk is the caller's to explain: `disk_trouble`.
    """
    clear_partial(path.parent, glob.escape(path.name))
    with _held(lambda: _fresh_file(path)) as partial:
        try:
            partial.write_bytes(content.encode() if isinstance(content, str) else content)
            _to_disk(partial)
            partial.replace(path)
        finally:
            partial.unlink(missing_ok=True)


def _fresh_file(path: Path) -> Path:
    """An empty one beside a file, by a name that no other process writes to."""
    partial = path.with_name(f".{path.name}-{secrets.token_hex(4)}.partial")
    os.close(os.open(partial, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o666))
    return partial


def remove_folder(folder: Path) -> None:
    """Delete a folder that nobody shall ever see half-deleted; of a link, the link alone."""
    if folder.is_symlink():
        folder.unlink()
        return
    hidden = Path(tempfile.mkdtemp(prefix=f".{folder.name}-", suffix=".partial", dir=folder.parent))
    folder.rename(hidden)  # which takes the place of an empty folder
    shutil.rmtree(hidden, ignore_errors=True)


def clear_partial(parent: Path, name: str = "*") -> None:
    """Delete what killed processes left half-written in `parent` of folders and files of that name.

    Of links, which nothing here makes, the link alone. What a process still writes stays.
    """
    for partial in parent.glob(f".{name}-*.partial"):
        if partial.is_symlink():
            partial.unlink(missing_ok=True)
            continue
        with suppress(OSError), _lock_of(partial, wait=False) as free:  # others may delete it too
            if free:
                _remove_partial(partial)


def _remove_partial(partial: Path) -> None:
    folder = partial.parent / partial.name[1:].rpartition("-")[0]
    if partial.is_file():
        partial.unlink(missing_ok=True)
    elif partial.name.endswith(_ASIDE) and not folder.exists():
        partial.rename(folder)  # killed between the two renames of `_swap`
    else:
        shutil.rmtree(partial, ignore_errors=True)


def _swap(new: Path, folder: Path) -> None:
    """Rename `new` to `folder`; what stood there ends up at `new`, to be deleted."""
    if not folder.exists():
        new.rename(folder)
    elif not _exchange(new, folder):
        aside = new.with_suffix(_ASIDE)
        folder.rename(aside)
        try:
            new.rename(folder)
        except OSError:
            aside.rename(folder)
            raise
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


def reserve(path: Path) -> None:
    """Take room on the disk for all of a file before it is written through a mapping, which crashes on a full disk."""
    with path.open("r+b") as file:
        if (size := path.stat().st_size) and hasattr(os, "posix_fallocate"):
            os.posix_fallocate(file.fileno(), 0, size)


@contextmanager
def disk_trouble(where: Path, remedy: str = ANOTHER) -> Iterator[None]:
    """Turn a full or forbidden disk into one sentence."""
    try:
        yield
    except OSError as error:
        if error.errno in FULL:
            raise TrellisError(f"the disk of {where} is full; make room or {remedy}.") from error
        if error.errno in (errno.EACCES, errno.EPERM, errno.EROFS, errno.ENOTDIR, errno.EEXIST, errno.ENAMETOOLONG):
            raise TrellisError(f"{where} cannot be written; {remedy}.") from error
        raise


@contextmanager
def one_at_a_time(path: Path, *, wait: bool = True) -> Iterator[int | None]:
    """Let one process make `path`, by a lock beside it; the system frees the lock of a process that dies.

    Gives the lock's descriptor, which a child process may inherit and so hold on to; None, unless it is to `wait`,
    while another process has it.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    # A link of that name is not followed: it would make a file elsewhere.
    flags = os.O_RDWR | os.O_CREAT | os.O_NOFOLLOW
    with os.fdopen(os.open(path.with_name(f".{path.name}.lock"), flags, 0o666), "wb") as file:
        held = True
        try:
            fcntl.flock(file, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            held = False
        yield file.fileno() if held else None
