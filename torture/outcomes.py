"""What may come of a fault, and how to tell from what a command did and left behind."""

from __future__ import annotations

import math
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from torture.server import Ran

REFUSED, UNHARMED = "refused", "unharmed"
# What must not happen, and what each word means.
BAD = {
    "lost": "something finished or checkpointed cannot be gone on with, or is another afterwards",
    "silent": "exit 0 with other answers than the undamaged files give",
    "nan": "exit 0 with answers that are no numbers",
    "crash": "ended by a signal that nobody sent",
    "traceback": "a Python traceback instead of a sentence",
    "unexplained": "another exit code than 0, 2 or 3, or exit 2 without one sentence; or the bench itself failed",
    "memory": "a damaged file that took memory for what it does not hold",
    "outside": "something outside of the command's folder was changed",
    "hang": "no end within the limit",
    "orphan": "a process that outlived the command",
    "partial": "half-written files that the next whole run leaves lying about",
}
KINDS = (REFUSED, UNHARMED, *BAD)
NO_MEMORY = "not enough memory"


@dataclass(frozen=True)
class Outcome:
    """What came of one fault."""

    kind: str  # one of KINDS; of a batch, its worst
    what: str = ""  # the fault, in words
    why: str = ""  # of a bad one, what was seen
    commands: tuple[str, ...] = ()  # those that were run, to be tried again by hand
    counts: Mapping[str, int] = field(default_factory=dict)  # by kind: one fault, or a batch of them

    @property
    def bad(self) -> bool:
        """Whether it must not happen."""
        return self.kind in BAD


class HarmError(Exception):
    """A command ended as none may; carries the kind and what was seen."""

    def __init__(self, kind: str, why: str, before: Mapping[str, int] | None = None) -> None:
        super().__init__(why)
        self.kind, self.why = kind, why
        self.before = before or {}  # of a batch, what came of those before it


def ended_well(ran: Ran, stopped: bool = False) -> bool:
    """Whether the command did its work; False if it refused in one sentence; anything else is raised.

    `stopped` is a command that was asked to stop after a while, and may say so or die of the signal.
    """
    if ran.orphans:
        raise HarmError("orphan", f"still running afterwards: {', '.join(ran.orphans)}")
    if ran.hung:
        raise HarmError("hang", f"no end after {ran.seconds:.0f} s")
    if "Traceback (most recent call last)" in ran.err:
        raise HarmError("traceback", ran.err[-3000:])
    if "Sanitizer: " in ran.err or ": runtime error: " in ran.err:
        raise HarmError("crash", ran.err[-3000:])
    if stopped and ran.code in (3, -15, 130):
        return True
    if ran.code < 0:
        raise HarmError("crash", f"signal {-ran.code}\n{ran.err[-3000:]}")
    if ran.code == 0:
        return True
    if ran.code != 2:
        raise HarmError("unexplained", f"exit code {ran.code}\n{ran.err[-3000:]}")
    if not _one_sentence(ran.err):
        raise HarmError("unexplained", f"exit code 2 without one sentence\n{ran.err[-3000:]}")
    return False


def _one_sentence(said: str) -> bool:
    """Whether the last thing said is an error of one line that ends as sentences do, and the only one."""
    lines = [line for line in said.splitlines() if line.strip()]
    errors = [line for line in lines if line.startswith("error")]
    return len(errors) == 1 and errors[0] == lines[-1] and errors[0].rstrip()[-1] in ".?!…"


def no_numbers(out: str) -> bool:
    """Whether NaN stands among the answers."""
    return re.search(r"(?<![\w<.'\"/-])nan(?![\w>.'\"/-])", out, re.IGNORECASE) is not None


def partials(folders: Iterable[Path]) -> list[Path]:
    """Half-written files and folders that lie about."""
    return sorted(path for folder in folders if folder.exists() for path in folder.rglob("*.partial*"))


def refuse_partials(*folders: Path) -> None:
    """Raise if something half-written lies about."""
    if left := partials(folders):
        raise HarmError("partial", ", ".join(map(str, left)))


def refuse_others(found: Mapping[str, str], wanted: Mapping[str, str]) -> None:
    """Raise unless all that an undisturbed run makes is there, to the bit; what else there is does not matter."""
    if other := sorted(name for name in wanted if found.get(name) != wanted[name]):
        raise HarmError("lost", f"not as an undisturbed run leaves it: {', '.join(other)}")


def same(found: Any, wanted: Any) -> bool:
    """Whether two answers are the same; numbers to a part in a million, since places of files decide how sums group."""
    if isinstance(found, float) and isinstance(wanted, float):
        return math.isclose(found, wanted, rel_tol=1e-6, abs_tol=1e-9) or (math.isnan(found) and math.isnan(wanted))
    if isinstance(found, dict) and isinstance(wanted, dict):
        return found.keys() == wanted.keys() and all(same(found[name], wanted[name]) for name in wanted)
    if isinstance(found, list) and isinstance(wanted, list):
        return len(found) == len(wanted) and all(map(same, found, wanted))
    return bool(found == wanted)
