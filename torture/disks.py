"""Full disks: a file system in memory that ends somewhere within what a command writes, or a limit on a file's size."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

from torture.kills import WORKS, Undisturbed, Work, made, prepare, undisturbed
from torture.outcomes import REFUSED, UNHARMED, refuse_others, refuse_partials
from torture.trial import Trial

DISK = "disk"
SPARE = 64 << 20  # bytes of a disk with room
_PAGE = 4096


def can_mount() -> bool:
    """Whether this user may mount a file system."""
    return os.geteuid() == 0 and shutil.which("mount") is not None


def fault(trial: Trial) -> str:
    """Fill the disk in the middle of a command; with room again, it ends as in peace, and leaves nothing else."""
    name = trial.random.choice([*WORKS])
    work, peace = WORKS[name], undisturbed(trial.workshop, name)
    if can_mount() and trial.random.random() < 0.7:
        return _small_disk(trial, name, work, peace)
    prepare(trial.workshop, work, trial.folder)
    limit = trial.random.randrange(4000, 30_000)  # what a command says goes to a file too
    trial.what = f"{name}: no file beyond {limit} bytes"
    well = trial.well(*work.arguments, file_size=limit, fresh=False)
    return _afterwards(trial, work, peace, well)


def _small_disk(trial: Trial, name: str, work: Work, peace: Undisturbed) -> str:
    top, disk = trial.folder, trial.folder / DISK
    disk.mkdir()
    if not _mount(disk, SPARE):
        return UNHARMED  # this user may not, after all
    trial.folder = disk
    try:
        prepare(trial.workshop, work, disk)
        room = trial.random.randrange(1, max(2, _needed(trial, work) // _PAGE)) * _PAGE
        used = shutil.disk_usage(disk).used
        trial.what = f"{name}: {room} bytes of room"
        _resize(disk, used + room)
        well = trial.well(*work.arguments, fresh=False)
        _resize(disk, SPARE)
        return _afterwards(trial, work, peace, well)
    finally:
        trial.folder = top
        subprocess.run(["umount", "-l", str(disk)], check=False)


def _needed(trial: Trial, work: Work) -> int:
    """About as many bytes as the command writes, and a little more."""
    return 300_000 if work.again else 150_000


def _mount(disk: Path, size: int) -> bool:
    options = f"size={size},nr_inodes=0,mode=755"
    done = subprocess.run(
        ["mount", "-t", "tmpfs", "-o", options, "torture", str(disk)], capture_output=True, check=False
    )
    return done.returncode == 0


def _resize(disk: Path, size: int) -> None:
    subprocess.run(["mount", "-o", f"remount,size={size}", str(disk)], check=True, capture_output=True)


def _afterwards(trial: Trial, work: Work, peace: Undisturbed, well: bool) -> str:
    """With room, the same command ends as in peace."""
    if work.model is not None and (trial.folder / work.model).exists():
        trial.must("score", work.model, "lines.txt")
    trial.must(*work.arguments, *work.again)
    refuse_others(made(trial.folder, work), peace.made)
    refuse_partials(trial.folder)
    return UNHARMED if well else REFUSED
