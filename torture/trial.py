"""One fault: its generator, its folder, the commands that it ran, and what came of them."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import traceback
from collections import Counter
from collections.abc import Callable, Mapping
from pathlib import Path
from random import Random
from typing import Any

from torture.damage import PRECIOUS
from torture.outcomes import KINDS, NO_MEMORY, REFUSED, HarmError, Outcome, ended_well, no_numbers
from torture.server import FRESH, Command, Ran, run
from torture.workshop import Workshop

# Makes one fault, or a batch, and returns how it ended, or how often in which way; what must not happen is raised.
Part = Callable[["Trial"], str | Mapping[str, int]]


class Trial:
    """One fault of a part: everything that it decides, it decides by `random`."""

    def __init__(self, workshop: Workshop, part: str, number: int, folder: Path, call: int | None = None) -> None:
        self.workshop, self.number, self.folder = workshop, number, folder
        self.call = call  # of a batch, the only one to make
        self.random = Random(f"{workshop.seed} {part} {number}")
        self.fresh = self.random.random() < FRESH
        self.what = ""
        self.commands: list[str] = []
        self._precious: dict[str, str] = {}

    def guard(self) -> None:
        """Set up a folder that nothing may touch; `settle` looks at it again."""
        place = self.folder / PRECIOUS
        place.mkdir(parents=True)
        (place / "kept.txt").write_text("what nobody may change\n", encoding="utf-8")
        (place / "config.json").write_text("{}\n", encoding="utf-8")
        (place / "config.yaml").write_text("model: {}\n", encoding="utf-8")
        self._precious = _everything(place)

    def command(self, *arguments: str, **given: Any) -> Command:
        """A command in the fault's folder, noted down."""
        made = Command(arguments, self.folder, **{"fresh": self.fresh, **given})
        self.commands.append(str(made))
        return made

    def run(self, *arguments: str, **given: Any) -> Ran:
        """Run a command in the fault's folder."""
        return run(self.command(*arguments, **given))

    def well(self, *arguments: str, **given: Any) -> bool:
        """Whether a command did its work; False if it refused in one sentence."""
        return self.judged(self.run(*arguments, **given), stopped=given.get("stop_after") is not None)

    def judged(self, ran: Ran, stopped: bool = False) -> bool:
        """The same of a command that was run."""
        well = ended_well(ran, stopped)
        self.look_around()
        if well and no_numbers(ran.out):
            raise HarmError("nan", ran.out[-2000:])
        return well

    def must(self, *arguments: str, **given: Any) -> None:
        """Run a command that has no reason to refuse: what it needs is whole, or else lost."""
        ran = self.run(*arguments, **given)
        if not self.judged(ran):
            raise HarmError("lost", f"{self.commands[-1]}: {ran.err[-2000:]}")

    def look_around(self) -> None:
        """Raise if the precious folder is not as it was."""
        if self._precious and _everything(self.folder / PRECIOUS) != self._precious:
            raise HarmError("outside", "the folder that nobody may touch has changed")


def _everything(folder: Path) -> dict[str, str]:
    """What a folder holds, to the bit."""
    paths = sorted(folder.rglob("*"))
    return {str(path.relative_to(folder)): "" if path.is_dir() else path.read_bytes().hex() for path in paths}


def refusal(ran: Ran) -> str:
    """A refusal of damaged files: for want of memory it would be none."""
    if NO_MEMORY in ran.err:
        raise HarmError("memory", ran.err[-2000:])
    return REFUSED


def attempt(part: Part, trial: Trial) -> Outcome:
    """Make the fault, and tell what came of it."""
    trial.folder.mkdir(parents=True)
    try:
        ended = part(trial)
        counts, why = Counter({ended: 1} if isinstance(ended, str) else ended), ""
    except HarmError as fell:
        counts, why = Counter(fell.before) + Counter([fell.kind]), fell.why
    except Exception:  # of the bench: a fault that could not be made must not end the others
        counts, why = Counter(["unexplained"]), f"the bench itself failed:\n{traceback.format_exc()}"
    worst = max(counts, key=KINDS.index)
    return Outcome(worst, trial.what, why, tuple(trial.commands), dict(counts))


def clear(folder: Path) -> None:
    """Delete a fault's folder, with what is mounted in it."""
    if os.path.ismount(folder / "disk"):
        subprocess.run(["umount", "-l", str(folder / "disk")], check=False)
    for path in folder.rglob("*"):
        with contextlib.suppress(OSError):
            if path.is_dir() and not path.is_symlink():
                path.chmod(0o755)
    shutil.rmtree(folder, ignore_errors=True)


def keep(trial: Trial, outcome: Outcome, repeat: str, to: Path) -> None:
    """Move a fault's folder to where bad ones are kept, with what is needed to repeat it."""
    shutil.rmtree(to, ignore_errors=True)
    to.parent.mkdir(parents=True, exist_ok=True)
    with contextlib.suppress(OSError, shutil.Error):
        shutil.copytree(trial.folder, to, symlinks=True)
    to.mkdir(exist_ok=True)
    about = {"repeat": repeat, **dataclasses.asdict(outcome)}
    (to / "fault.json").write_text(json.dumps(about, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")
