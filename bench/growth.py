"""How Trellis's training step grows along each axis of its size."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, replace
from typing import Any, Protocol

from bench.contenders import TRELLIS, Entry, Task
from bench.problem import Problem
from bench.quiet import Patience
from bench.race import until_quiet
from bench.worker import ContenderError, Sample, Worker

CENTRE = Problem(states=512, words=10_000, batch=64, length=64)
AXES: Mapping[str, tuple[int, ...]] = {
    "states": (64, 128, 256, 512, 1024, 2048, 4096),
    "words": (1_000, 3_200, 10_000, 32_000, 100_000),
    "batch": (1, 4, 16, 64, 256),
    "length": (16, 64, 256, 1024),
}
WARM_UP = 3  # steps that do not count: until then the memory of a fresh process is still growing
QUICK_CENTRE = Problem(states=32, words=200, batch=4, length=8, rank=8)
QUICK_AXES: Mapping[str, tuple[int, ...]] = {"states": (16, 32)}


class SizedTask(Task, Protocol):
    """A task that knows its size."""

    @property
    def tokens(self) -> int:
        """How many tokens the batch holds."""


@dataclass(frozen=True)
class Point:
    """A training step at one size."""

    problem: SizedTask
    samples: tuple[Sample, ...]
    failure: str | None = None

    def as_dict(self) -> dict[str, Any]:
        """Size, speed and memory."""
        known = {**self.problem.described(), "failure": self.failure}
        if not self.samples:
            return known
        best = min(sample.seconds for sample in self.samples)
        return {
            **known,
            "seconds": [sample.seconds for sample in self.samples],
            "undisturbed": sum(not sample.disturbed for sample in self.samples),
            "tokens_per_second": self.problem.tokens / best,
            "peak_bytes": max(sample.peak_bytes for sample in self.samples),
        }


def measure(problem: SizedTask, repeats: int, limit: float, patience: Patience, entry: Entry = TRELLIS) -> Point:
    """Steps at one size in a fresh process, once it has the memory it needs."""
    try:
        with Worker(entry, problem, limit) as worker:
            for _ in range(WARM_UP):
                worker.call("step")
            patience.wait()
            return Point(problem, tuple(until_quiet(worker, "step", repeats)))
    except ContenderError as error:
        return Point(problem, (), str(error))


def sizes(centre: Problem, axes: Mapping[str, Iterable[int]]) -> dict[str, list[Problem]]:
    """Each axis as problems that differ from the centre along it alone."""
    return {axis: [replace(centre, **{axis: value}) for value in values] for axis, values in axes.items()}


def grow(
    axes: Mapping[str, list[Problem]],
    repeats: int,
    limit: float,
    patience: Patience,
    say: Callable[[str], None] = lambda _: None,
) -> dict[str, list[Point]]:
    """Measure every axis; sizes that axes share are measured once."""
    known: dict[Problem, Point] = {}
    for axis, problems in axes.items():
        for problem in problems:
            if problem not in known:
                known[problem] = measure(problem, repeats, limit, patience)
            say(f"{axis} {getattr(problem, axis):,}")
    return {axis: [known[problem] for problem in problems] for axis, problems in axes.items()}
