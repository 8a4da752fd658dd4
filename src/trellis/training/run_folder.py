"""A run's folder: written to by one process at a time, only if it is empty or a run's own, and never through links."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from trellis.errors import TrellisError
from trellis.folders import BEST, clear_partial, disk_trouble, one_at_a_time
from trellis.models.storage import RUN_FILE
from trellis.torchrun import job

PATIENCE = 60.0  # seconds that a restarted run waits for the process that it takes the place of to be gone
LOCK = "run"  # of which the lock's file has its name, `.run.lock`; a folder that has one is a run's
HEAD = "# Everything that decided this run."  # begins a run's settings, and tells them from those of anything else
METRICS_FILE, BOARD = "metrics.jsonl", "tensorboard"
WRITTEN = (RUN_FILE, METRICS_FILE, BOARD)  # what a run overwrites or adds to
PATTERNS = (*WRITTEN, BEST, "checkpoint-*", "restart-*", f".{LOCK}.lock")  # all that a run makes

_claimed: dict[Path, int] = {}  # folders that this process has claimed, and the thread that did


@contextmanager
def claimed(folder: Path) -> Iterator[None]:
    """Keep a run's folder for this thread; one that another process writes to, or that is no run's, is refused.

    Claiming what the thread has claimed already does nothing. The system frees the folder of a process that dies.
    """
    place = folder.resolve()
    if _claimed.get(place) == threading.get_ident():
        yield
        return
    check_folder(folder)
    fresh = not folder.exists()
    with disk_trouble(folder), _lock(folder) as lock:
        if lock is None:
            raise TrellisError(f"another process is training in {folder}: wait for it, or choose another folder.")
        _sign(lock)
        _claimed[place] = threading.get_ident()
        try:
            yield
        except BaseException as error:
            if fresh:
                _leave_nothing(folder, refused=isinstance(error, TrellisError))
            raise
        finally:
            del _claimed[place]


def restarted(folder: Path) -> bool:
    """Whether the run there is of the torchrun job that this process belongs to: then it goes on without being told."""
    try:
        signed = (folder / f".{LOCK}.lock").read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False
    return signed == job()


@contextmanager
def _lock(folder: Path) -> Iterator[int | None]:
    """The folder's lock; that of a dying process of the same job is waited for."""
    deadline = time.monotonic() + (PATIENCE if restarted(folder) else 0.0)
    while True:
        with one_at_a_time(folder / LOCK, wait=False) as lock:
            if lock is not None or time.monotonic() > deadline:
                yield lock
                return
        time.sleep(0.2)


def _sign(lock: int) -> None:
    """Write into the lock's file which job of torchrun's the run is of, if any."""
    name = (job() or "").encode()
    os.pwrite(lock, name, 0)
    os.ftruncate(lock, len(name))


def _leave_nothing(folder: Path, refused: bool) -> None:
    """Delete a folder in which a run has left no more than its lock or, if it was refused, its settings besides.

    The settings of a run that was interrupted stay: it is gone on with by them.
    """
    made = {folder / f".{LOCK}.lock", *([folder / RUN_FILE] if refused else [])}
    left = set(folder.iterdir())
    if left <= made:
        for file in left:
            file.unlink()
        folder.rmdir()


def check_folder(folder: Path) -> None:
    """Refuse a folder that a run may not write to, whoever else does."""
    refuse_links(folder)
    _refuse_what_others_made(folder)


def refuse_links(folder: Path) -> None:
    """Refuse links of the names that a run writes to or deletes: they lead outside of its folder."""
    for link in (path for pattern in PATTERNS for path in folder.glob(pattern) if path.is_symlink()):
        raise TrellisError(
            f"{link} is a link, by which a run would write or delete outside of its folder: remove the link, or choose "
            "another folder."
        )


def clear(folder: Path) -> None:
    """Delete what a killed process left half-written of what a run makes, and nothing else."""
    for name in (*WRITTEN, BEST, "checkpoint-*"):
        clear_partial(folder, name)


def _refuse_what_others_made(folder: Path) -> None:
    """Refuse a folder with files that a run would overwrite, unless a run made them."""
    if (folder / f".{LOCK}.lock").exists() or any(folder.glob("checkpoint-*/place.json")):
        return
    if _made_by_a_run(folder / RUN_FILE):
        return
    in_the_way = [folder / name for name in WRITTEN if (folder / name).exists()] + [*folder.glob(".*-*.partial")]
    if in_the_way:
        raise TrellisError(
            f"{folder} is not the folder of a run, and its {in_the_way[0].name} would be lost: choose another folder "
            "with out=…, or move that away."
        )


def _made_by_a_run(settings: Path) -> bool:
    try:
        with settings.open("rb") as file:
            return file.read(len(HEAD)) == HEAD.encode()
    except OSError:
        return False
