"""The race: every contender on the same problem, timed only once it has given the right answer."""

from __future__ import annotations

import statistics
from collections.abc import Callable, Iterable
from contextlib import ExitStack
from dataclasses import dataclass, field, replace
from typing import Any, Protocol

from bench.contenders import FAST, SLOW, Entry, Task
from bench.quiet import Patience
from bench.worker import PASSES, ContenderError, Pass, Sample, Worker

IN_A_ROW = 2  # calls at each turn, so that half of them find caches as they left them
AGAIN = 2  # calls in place of each one that was disturbed, at most
LONG = 5.0  # seconds of calls after which they are not repeated for being disturbed


class RaceTask(Task, Protocol):
    """A task that says what the right answer is."""

    @property
    def length(self) -> int:
        """How many tokens a sequence has."""

    def log_likelihoods(self) -> Any:
        """Each sequence's log-likelihood, in double precision."""


@dataclass
class Timing:
    """The samples of one pass of one contender."""

    tokens: int  # of the batch it was given
    samples: list[Sample] = field(default_factory=list)
    failure: str | None = None  # why there are no samples, or no more

    def as_dict(self) -> dict[str, Any]:
        """Best and median of the undisturbed samples, or of all if there are none."""
        if not self.samples:
            return {"failure": self.failure or "not timed"}
        quiet = [sample for sample in self.samples if not sample.disturbed]
        seconds = [sample.seconds for sample in quiet or self.samples]
        best, median = min(seconds), statistics.median(seconds)
        return {
            "seconds": seconds,
            "samples": len(self.samples),
            "undisturbed": len(quiet),
            "best_seconds": best,
            "median_seconds": median,
            "tokens_per_second": self.tokens / best,
            "median_tokens_per_second": self.tokens / median,
            "peak_bytes": max(sample.peak_bytes for sample in self.samples),
        }


@dataclass
class Lap:
    """One contender on one problem."""

    entry: Entry
    rows: int
    tokens: int
    truth: float
    found: float | None = None
    failure: str | None = None
    passes: tuple[Pass, ...] = PASSES
    timings: dict[Pass, Timing] = field(default_factory=dict)
    facts: dict[str, Any] = field(default_factory=dict)  # what else is known of it

    def __post_init__(self) -> None:
        self.timings = {name: Timing(self.tokens) for name in self.passes}

    def check(self, found: float) -> None:
        """Take the contender's log-likelihood, and refuse to time one that computes something else."""
        self.found = found
        if not abs(found - self.truth) <= self.entry.tolerance * abs(self.truth):
            raise ContenderError(f"computes a log-likelihood of {found:.2f}, not {self.truth:.2f}")

    def as_dict(self) -> dict[str, Any]:
        """Everything known about it."""
        return {
            "contender": self.entry.name,
            "note": self.entry.note,
            "sequences": self.rows,
            "tokens": self.tokens,
            "environment": dict(self.entry.environment),
            "log_likelihood": self.found,
            "expected_log_likelihood": self.truth,
            "failure": self.failure,
            **self.facts,
            **{name: timing.as_dict() for name, timing in self.timings.items()},
        }


def until_quiet(worker: Worker, wanted: Pass, calls: int) -> list[Sample]:
    """This many calls that nobody disturbed, or `AGAIN` times as many of any kind."""
    samples: list[Sample] = []
    while len(samples) < AGAIN * calls and sum(not sample.disturbed for sample in samples) < calls:
        samples.append(worker.call(wanted))
        if sum(sample.seconds for sample in samples) > LONG:
            break
    return samples


def _lap(entry: Entry, task: RaceTask, log_likelihood_B: Any, passes: tuple[Pass, ...]) -> Lap:
    rows = entry.rows_of(task)
    return Lap(entry, rows, rows * task.length, float(log_likelihood_B[:rows].sum()), passes=passes)


def _warm_up(worker: Worker, lap: Lap) -> None:
    """The answer, and one uncounted call of each pass: first calls compile and fault in memory."""
    lap.check(float(worker.call("evaluate").value or 0.0))
    if worker.entry.warm_up:
        worker.call("step")


def _enter(stack: ExitStack, worker: Worker, lap: Lap) -> bool:
    """Wait for the worker, check it and warm it up; say whether it may race."""
    try:
        stack.enter_context(worker)
        _warm_up(worker, lap)
    except ContenderError as error:
        lap.failure = str(error)
    return lap.failure is None


@dataclass(frozen=True)
class Rules:
    """How a race is run."""

    rounds: int  # turns each fast contender has
    limit: float  # seconds after which a single call is given up
    patience: Patience = field(default_factory=lambda: Patience(0.0))
    passes: tuple[Pass, ...] = PASSES  # what is timed; evaluations first, as they are likelier to survive
    say: Callable[[str], None] = lambda _: None  # told who has had a turn
    after: Callable[[Worker, Lap], None] = lambda worker, lap: None  # with those still alive at the end


def take_turns(laps: list[Lap], task: Task, rules: Rules) -> None:
    """All these contenders at once, taking turns; only one ever computes."""
    with ExitStack() as stack:
        workers = [(Worker(lap.entry, task, rules.limit), lap) for lap in laps]  # which import at the same time
        running = [(worker, lap) for worker, lap in workers if _enter(stack, worker, lap)]
        for turn in range(rules.rounds):
            for worker, lap in list(running):
                if lap.entry.repeats is not None and turn:
                    continue
                rules.patience.wait()
                if not _turn(worker, lap, lap.entry.repeats or IN_A_ROW):
                    running.remove((worker, lap))
                rules.say(lap.entry.name)
        for worker, lap in running:
            rules.after(worker, lap)


def _turn(worker: Worker, lap: Lap, calls: int) -> bool:
    """Time the passes, and say whether the worker lived."""
    for wanted, timing in lap.timings.items():
        try:
            timing.samples += until_quiet(worker, wanted, calls)
        except ContenderError as error:
            timing.failure = str(error)
            return False
    return True


def race(task: RaceTask, rules: Rules, entries: Iterable[Entry] = (*FAST, *SLOW)) -> list[Lap]:
    """Time the passes of each contender; the fast ones in turns, the slow, which say their repeats, alone."""
    log_likelihood_B = task.log_likelihoods()
    laps = [_lap(entry, task, log_likelihood_B, rules.passes) for entry in entries]
    for lap in laps:
        lap.failure = lap.entry.excuse(task)
    present = [lap for lap in laps if lap.failure is None]
    take_turns([lap for lap in present if lap.entry.repeats is None], task, rules)
    for lap in present:
        if lap.entry.repeats is not None:
            take_turns([lap], task, replace(rules, rounds=1))
    return laps
