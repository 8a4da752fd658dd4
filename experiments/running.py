"""Runs of a study, each in a process of its own, by the same command that people train with."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import FrameType
from typing import Literal

from experiments import results
from experiments.recipes import HERE, Budget, Recipe, settings_of, unlike
from trellis import TrellisError
from trellis.config import RunConfig, load, save
from trellis.folders import one_at_a_time, write_atomically
from trellis.training import checkpoints

State = Literal["recorded", "outdated", "finished", "running", "interrupted", "missing"]
End = Literal["finished", "stopped", "busy", "failed"]
STOPPED = 3  # how `trellis train` says that it was asked to stop, and did


@dataclass(frozen=True)
class Place:
    """Where runs go, and what they may use."""

    budget: Budget
    runs: Path  # a folder a run
    results: Path  # a JSON file a recorded run
    rates: Path  # the outcomes of searches for learning rates
    data_dir: str | None = None  # where the corpora lie; None is the environment's TRELLIS_DATA
    threads: int = 1  # of every run
    precision: str | None = (
        None  # of every run's products, where this processor is quicker in another; None: as written
    )

    def result(self, name: str) -> Path:
        """The file of a recorded run."""
        return self.results / f"{name}.json"

    def finished(self, name: str) -> Path:
        """The file that says that a run came to its end."""
        return self.runs / name / "finished.json"


def default_place(
    budget: Budget, runs: Path, data_dir: str | None = None, threads: int = 1, precision: str | None = None
) -> Place:
    """Where results that count are committed; those of the smoke budget stay beside their runs."""
    home = runs if budget == "smoke" else HERE
    results = home / "results" if budget == "smoke" else home / "results" / budget
    return Place(budget, runs, results, home / "rates.yaml", data_dir, threads, precision)


def state_of(recipe: Recipe, place: Place) -> State:
    """How far a run is."""
    if place.result(recipe.name).exists():
        recorded = results.load(place.result(recipe.name))["config"]
        if not unlike(recorded, settings_of(recipe.config)):
            return "recorded"
    if place.finished(recipe.name).exists():
        return "finished"
    with one_at_a_time(place.runs / recipe.name, wait=False) as free:
        if free is None:
            return "running"
    if checkpoints.begun(place.runs / recipe.name):
        return "interrupted"
    return "outdated" if place.result(recipe.name).exists() else "missing"


def train(name: str, config: RunConfig, place: Place) -> End:
    """Train one run to its end, from wherever it stands; one that another process trains is left alone."""
    folder = place.runs / name
    data = dataclasses.replace(config.data, data_dir=place.data_dir)
    training = dataclasses.replace(config.training, precision=place.precision or config.training.precision)
    config = dataclasses.replace(config, data=data, training=training, out=str(folder))
    if place.finished(name).exists():
        _check_same(folder, config)
        return "finished"
    with one_at_a_time(folder, wait=False) as lock:
        if lock is None:
            return "busy"
        wanted = place.runs / f"{name}.yaml"
        save(config, wanted)
        resume = ["--resume"] if checkpoints.begun(folder) else []
        command = [sys.executable, "-m", "trellis", "train", str(wanted), "--json", *resume]
        code, said = _child([*command, "--threads", str(place.threads)], lock, place)
        if code == 0:
            about = {**json.loads(said), "threads": place.threads}
            write_atomically(place.finished(name), json.dumps(about) + "\n")
            return "finished"
        return "stopped" if code in (STOPPED, -signal.SIGTERM, -signal.SIGINT, 130) else "failed"


def check_code(name: str, commit: str, place: Place) -> None:
    """Note the commit that a run begins with, and refuse to go on with another: nobody could repeat that."""
    note = place.runs / f"{name}.commit"
    if checkpoints.begun(place.runs / name) and note.exists() and note.read_text() != commit:
        raise TrellisError(
            f"it began with commit {note.read_text()} and the code is now {commit}: go on in a checkout of the former, "
            f"or delete {place.runs / name}."
        )
    note.parent.mkdir(parents=True, exist_ok=True)
    note.write_text(commit)


def _check_same(folder: Path, config: RunConfig) -> None:
    for difference in unlike(settings_of(load(folder / "config.yaml")), settings_of(config)):
        raise TrellisError(f"{folder} holds another run, with {difference}: move it away or choose another --runs.")


def _child(command: list[str], lock: int, place: Place) -> tuple[int, str]:
    """Run a command to its end among the runs, handing on requests to stop; it keeps the lock as long as it lives."""
    environment = os.environ if place.data_dir is None else {**os.environ, "TRELLIS_DATA": place.data_dir}
    # A session of its own, or Ctrl-C would reach it twice, which is a demand to stop without a checkpoint.
    with subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        text=True,
        start_new_session=True,
        pass_fds=(lock,),
        cwd=place.runs,
        env=environment,
    ) as child:
        with _handing_on(child):
            said, _ = child.communicate()
        return child.returncode, said


@contextmanager
def _handing_on(child: subprocess.Popen[str]) -> Iterator[None]:
    """Let signals ask the child to stop after its update; a second Ctrl-C makes it stop at once."""
    asked: list[int] = []

    def hand_on(number: int, frame: FrameType | None) -> None:
        child.send_signal(signal.SIGINT if asked and number == signal.SIGINT else signal.SIGTERM)
        asked.append(number)

    before = {number: signal.signal(number, hand_on) for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
