"""Many hostile calls in one child process: which one it was that crashed is known, and each can be repeated alone."""

from __future__ import annotations

import json
import mmap
import struct
import traceback
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Any

from torture.outcomes import KINDS, REFUSED, UNHARMED, HarmError, ended_well
from torture.server import Command, run
from torture.trial import Trial

Call = Callable[[Random], tuple[str, Callable[[], Any]]]  # draws a call: what it is in words, and the call itself


class SilentError(Exception):
    """A call that ended well with what must not be."""

    def __init__(self, kind: str, why: str) -> None:
        super().__init__(why)
        self.kind = kind


def batch(
    trial: Trial, prepare: Callable[[], Call], allowed: Callable[[Exception], bool], calls: int
) -> dict[str, int]:
    """Draw and make so many calls in a child; the worst of them is raised.

    `prepare` runs in the child, before the first call. An exception that is `allowed` is a refusal.
    """
    progress = mmap.mmap(-1, 8 * (len(KINDS) + 1))  # the number of the present call, then how often each kind was seen
    numbers = [trial.call] if trial.call is not None else range(calls)
    report = trial.folder / "bad.jsonl"
    present = trial.folder / "call.txt"  # what the present call is
    seed = f"{trial.workshop.seed} {trial.what} {trial.number}"

    def work() -> int:
        draw = prepare()
        for number in numbers:
            _write(progress, 0, number)
            kind, told = _one(draw, Random(f"{seed} {number}"), allowed, present)
            _write(progress, KINDS.index(kind) + 1, _read(progress, KINDS.index(kind) + 1) + 1)
            if told:
                with report.open("a", encoding="utf-8") as file:
                    file.write(json.dumps({"call": number, "kind": kind, "why": told}) + "\n")
        return 0

    trial.commands.append(f"{len(numbers)} calls of {trial.what}")
    ran = run(Command((), trial.folder, function=work))
    counts = Counter({kind: _read(progress, index + 1) for index, kind in enumerate(KINDS)})
    bad = [json.loads(line) for line in report.read_text("utf-8").splitlines()] if report.exists() else []
    try:
        ended_well(ran)
    except HarmError as fell:
        said = present.read_text("utf-8") if present.exists() else "before the first"
        raise HarmError(fell.kind, f"call {_read(progress, 0)}: {said}: {fell.why}", counts) from None
    if bad:
        worst = max(bad, key=lambda one: KINDS.index(one["kind"]))
        counts[worst["kind"]] -= 1
        raise HarmError(worst["kind"], f"call {worst['call']}: {worst['why']}", counts)
    return +counts


def _one(draw: Call, random: Random, allowed: Callable[[Exception], bool], present: Path) -> tuple[str, str]:
    """Make one call: how it ended, and of a bad one what was seen."""
    said = "a call that could not be drawn"
    try:
        said, call = draw(random)
        present.write_text(said, encoding="utf-8", errors="replace")
        call()
    except SilentError as silent:
        return silent.kind, f"{said}: {silent}"
    except Exception as error:
        if allowed(error) or _no_memory(error):
            return REFUSED, ""
        return "traceback", f"{said}\n{traceback.format_exc(limit=-4)}"
    return UNHARMED, ""


def _no_memory(error: Exception) -> bool:
    return isinstance(error, MemoryError) or "can't allocate memory" in str(error)


def _read(memory: mmap.mmap, place: int) -> int:
    return int(struct.unpack_from("<q", memory, 8 * place)[0])


def _write(memory: mmap.mmap, place: int, number: int) -> None:
    struct.pack_into("<q", memory, 8 * place, number)
