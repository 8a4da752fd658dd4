"""Kills: a command is ended by SIGKILL, by the clock or between two things it does to files, and goes on afterwards."""

from __future__ import annotations

import mmap
import os
import shutil
import signal
import struct
import sys
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from torture.outcomes import UNHARMED, HarmError, ended_well, refuse_others, refuse_partials
from torture.server import Command, run
from torture.trial import Trial
from torture.workshop import Workshop, digest, label_arguments, train_arguments

# What Python reports of changes to files; ctypes finds the function that exchanges two folders by its name.
CHANGES = ("os.rename", "os.mkdir", "os.rmdir", "os.remove", "os.truncate", "os.link", "shutil.rmtree", "ctypes.dlsym")
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


@dataclass(frozen=True)
class Work:
    """A command that may be killed at any moment, what it needs and what it makes."""

    arguments: tuple[str, ...]
    makes: tuple[str, ...]
    needs: tuple[str, ...] = ()
    again: tuple[str, ...] = ()  # added when it is run once more
    cached: bool = False  # whether the cache is there already
    model: str | None = None  # what can be asked as soon as it is there


def _training(model: str, *more: str) -> Work:
    arguments = (*train_arguments(model, "run"), *more)
    return Work(arguments, ("run/best", "run/checkpoint-*"), again=("--resume",), cached=True, model="run/best")


WORKS = {
    "training, dense": _training("dense"),
    "training, blocked": _training("blocked"),
    "training, LSTM": _training("lstm"),
    "training, Kneser–Ney": _training("kneser_ney"),
    "restarts": _training("dense", "training.init=restarts", "training.restarts=2", "training.restart_steps=4"),
    "saving": _training("dense", "training.checkpoint_every=1", "training.keep=1", "training.validations=8"),
    "tokenising": Work(("prepare", "train.txt"), ("cache",)),
    "learning pieces": Work(("prepare", "train.txt", "--tokenizer", "bpe", "--vocab-size", "280"), ("cache",)),
    "clustering": Work(("cluster", "train.txt", "--clusters", "4", "--out", "out.paths"), ("out.paths", "cache")),
    "distilling": Work(label_arguments(), ("cache",), ("teacher",)),
    "exporting": Work(("export", "runs/blocked", "plain"), ("plain",), ("runs/blocked",), cached=True, model="plain"),
    "all from nothing": Work((*train_arguments("blocked", "run"),), ("run/best", "cache"), again=("--resume",)),
}


class Trigger:
    """Counts what a process does to files, and calls `act` in it at one of these moments."""

    def __init__(self, at: int | None = None, act: Callable[[], None] | None = None) -> None:
        self.at, self.act, self.memory = at, act, mmap.mmap(-1, 8)  # shared with the child that counts

    @property
    def seen(self) -> int:
        """How many there were."""
        return int(struct.unpack("<q", self.memory[:8])[0])

    def __call__(self) -> None:
        """In the child: listen from now on."""
        sys.addaudithook(self._heard)

    def _heard(self, event: str, given: tuple[Any, ...]) -> None:
        if event in CHANGES or (event == "open" and isinstance(given[2], int) and given[2] & WRITING):
            self.memory[:8] = struct.pack("<q", self.seen + 1)
            if self.seen == self.at and self.act is not None:
                self.act()


def kill_now() -> None:
    """End this process as the power going out would."""
    os.kill(os.getpid(), signal.SIGKILL)


@dataclass(frozen=True)
class Undisturbed:
    """What a command takes and makes when nothing happens to it."""

    seconds: float
    changes: int  # times that it did something to files
    made: dict[str, str]


def prepare(workshop: Workshop, work: Work, folder: Path) -> None:
    """What a command needs, in a folder."""
    workshop.copy(folder, *work.needs)
    if not work.cached:
        shutil.rmtree(folder / "cache", ignore_errors=True)


def made(folder: Path, work: Work) -> dict[str, str]:
    """Hashes of what a command makes."""
    names = [str(path.relative_to(folder)) for name in work.makes for path in sorted(folder.glob(name))]
    return digest(folder, *names) if names else {}


@cache
def undisturbed(workshop: Workshop, name: str) -> Undisturbed:
    """Run a command in peace, once."""
    work, place, count = WORKS[name], workshop.folder / "peace", Trigger()
    for need in work.needs:
        workshop.make(need)
    if work.cached:
        workshop.must(*work.arguments)  # which fills the workshop's cache
        for top in ("run", "plain"):
            shutil.rmtree(workshop.folder / top, ignore_errors=True)
    prepare(workshop, work, place)
    ran = run(Command(work.arguments, place, before=count))
    if not ended_well(ran):
        raise RuntimeError(f"{name}, undisturbed: {ran.err}")
    found = Undisturbed(ran.seconds, count.seen, made(place, work))
    shutil.rmtree(place)
    return found


def fault(trial: Trial) -> str:
    """Kill a command once or a few times, then let it end; what it makes is what it makes in peace."""
    name = trial.random.choice([*WORKS])
    work, peace = WORKS[name], undisturbed(trial.workshop, name)
    prepare(trial.workshop, work, trial.folder)
    said = []
    for number in range(trial.random.choices((1, 2, 4), (6, 2, 1))[0]):
        again = work.again if number else ()
        said.append(_kill(trial, (*work.arguments, *again), peace))
        _ask(trial, work)
    trial.what = f"{name}: killed {', then '.join(said)}"
    trial.must(*work.arguments, *work.again)
    refuse_others(made(trial.folder, work), peace.made)
    refuse_partials(trial.folder)
    return UNHARMED


def _kill(trial: Trial, arguments: tuple[str, ...], peace: Undisturbed) -> str:
    """Run it and kill it; that it ended before that is as good."""
    if trial.random.random() < 0.7:
        at = trial.random.randrange(1, peace.changes + 1)
        ran, said = trial.run(*arguments, before=Trigger(at, kill_now), fresh=False), f"at change {at} of files"
    else:
        share = trial.random.random()
        ran = trial.run(*arguments, kill_after=share * peace.seconds)
        said = f"after {share:.0%} of its time"
    if ran.orphans:
        raise HarmError("orphan", f"{said}: {', '.join(ran.orphans)}")
    if ran.code != -signal.SIGKILL:
        ended_well(ran)
    return said


def _ask(trial: Trial, work: Work) -> None:
    """What there is of a model must answer at any moment."""
    if work.model is not None and (trial.folder / work.model).exists():
        trial.must("score", work.model, "lines.txt")
