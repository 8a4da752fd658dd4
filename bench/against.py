"""Training steps of this version of Trellis and of another, in turns within one run."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import replace
from pathlib import Path

from bench.cells import Row, Sheet, number
from bench.contenders import Entry, Task
from bench.growth import WARM_UP
from bench.kernel_tables import problem_title
from bench.quiet import Patience
from bench.race import IN_A_ROW, until_quiet
from bench.worker import ContenderError, Sample, Worker

HEAD = ["model", "problem", "this: ms", "that: ms", "this / that", "of medians", "quiet"]
Match = tuple[Entry, Task]


def duel(entry: Entry, task: Task, other: Path, rounds: int, limit: float, patience: Patience) -> list[list[Sample]]:
    """Steps with this version's sources and with the other's; they have their memory before any counts."""
    with ExitStack() as stack:
        both = [entry, replace(entry, sources=str(other))]
        workers = [stack.enter_context(Worker(one, task, limit)) for one in both]
        found: list[list[Sample]] = [[], []]
        for worker in workers:
            for _ in range(WARM_UP):
                worker.call("step")
        for _ in range(rounds):
            for worker, samples in zip(workers, found, strict=True):
                patience.wait()
                samples += until_quiet(worker, "step", IN_A_ROW)
        return found


def _row(found: list[list[Sample]]) -> Row:
    quiet = [[sample.seconds for sample in samples if not sample.disturbed] for samples in found]
    seconds = [some or [sample.seconds for sample in samples] for some, samples in zip(quiet, found, strict=True)]
    (best, other), (median, others) = ([of(each) for each in seconds] for of in (min, statistics.median))
    calls = f"{sum(map(len, quiet))}/{sum(map(len, found))}"
    return [number(1e3 * best), number(1e3 * other), f"{best / other:.3f}", f"{median / others:.3f}", calls]


def against(
    other: Path, matches: Iterable[Match], rounds: int, limit: float, patience: Patience, say: Callable[[str], None]
) -> Sheet:
    """A row a model and problem; above one, this version is the slower."""
    rows = []
    for entry, task in matches:
        try:
            told = _row(duel(entry, task, other, rounds, limit, patience))
        except ContenderError as error:
            told = [str(error), *["–"] * 4]
        rows.append([entry.name, problem_title(task.described()), *told])
        say(entry.name)
    return Sheet(f"This version against {other}", HEAD, rows)
