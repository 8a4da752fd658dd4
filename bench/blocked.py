"""Blocked models: how fast they train by states and by kind of transition, and how long their words take to cluster."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from bench.blocked_problem import BlockedProblem, BrownTask
from bench.contenders import Entry
from bench.growth import Point, measure
from bench.quiet import Patience
from bench.worker import ContenderError, Worker

BLOCKED = Entry("Trellis blocked", "trellis_blocked:Blocked", ("torch",), "neural, dropout .5; clipped AdamW")
BROWN = Entry("Brown clustering", "brown_clusters:Brown", (), "128 clusters, every type in one")

# 128 blocks up to 2^15 states, as published; above, a power of two near √states.
BLOCKS = {1 << 12: 128, 1 << 13: 128, 1 << 14: 128, 1 << 15: 128, 1 << 16: 256, 1 << 17: 512, 1 << 18: 512}
LARGEST_FLAT = 1 << 15  # a flat step costs states², and would take minutes above
BATCHES = ((16, 32), (32, 64))  # the published one, and the one our runs use

Sizes = list[tuple[BlockedProblem, ...]]


def sizes() -> Sizes:
    """Each size as the transitions to measure one after the other, so that both find the machine alike."""
    return [
        (BlockedProblem(states, blocks, batch=batch, length=length), *_flat(states, blocks, batch, length))
        for batch, length in BATCHES
        for states, blocks in BLOCKS.items()
    ]


def _flat(states: int, blocks: int, batch: int, length: int) -> Iterator[BlockedProblem]:
    if states <= LARGEST_FLAT:
        yield BlockedProblem(states, blocks, batch=batch, length=length, transition="flat")


def quick_sizes() -> Sizes:
    """The same in seconds."""
    problem = BlockedProblem(64, 8, words=100, batch=2, length=8, width=16)
    return [(problem, BlockedProblem(**{**vars(problem), "transition": "flat"}))]


def measure_all(
    wanted: Sizes, repeats: int, limit: float, patience: Patience, say: Callable[[str], None]
) -> list[dict[str, Any]]:
    """Steps at every size, each in a process of its own."""
    points: list[Point] = []
    for problems in wanted:
        for problem in problems:
            points.append(measure(problem, repeats, limit, patience, BLOCKED))
            say(f"{problem.states:,} {problem.transition}")
    return [point.as_dict() for point in points]


def cluster(task: BrownTask, limit: float, patience: Patience) -> dict[str, Any]:
    """Seconds of one clustering, and of which text."""
    try:
        with Worker(BROWN, task, limit) as worker:
            patience.wait()
            sample = worker.call("step")
            found = {"seconds": sample.seconds, "peak_bytes": sample.peak_bytes, "undisturbed": not sample.disturbed}
            return {**task.described(), **worker.ask("facts"), **found, "failure": None}
    except ContenderError as error:
        return {**task.described(), "failure": str(error)}
