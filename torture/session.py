"""Faults of several parts in turn until the time is up, and the tally of what came of them."""

from __future__ import annotations

import shutil
import sys
import time
from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path

from torture.outcomes import BAD, KINDS, Outcome
from torture.trial import Part, Trial, attempt, clear, keep
from torture.workshop import Workshop

TELL_EVERY = 10.0  # seconds between lines of progress


@dataclass
class Tally:
    """What came of a part's faults."""

    counts: Counter[str] = field(default_factory=Counter)
    seconds: float = 0.0
    faults: int = 0  # numbers that were used: a batch of calls has one
    bad: list[dict[str, str]] = field(default_factory=list)  # of each bad one: what it was, and how to repeat it

    def as_dict(self) -> dict[str, object]:
        """As results hold it."""
        counted = {kind: self.counts[kind] for kind in KINDS}
        return {"tried": self.counts.total(), **counted, "seconds": round(self.seconds, 1), "worst": self.bad}


class Session:
    """Parts, each with its share of the time, in a folder; bad faults are kept in `kept`."""

    def __init__(self, parts: Mapping[str, tuple[Part, float]], workshop: Workshop, folder: Path, kept: Path) -> None:
        self.parts, self.workshop, self.folder, self.kept = parts, workshop, folder, kept
        self.tallies = {name: Tally() for name in parts}
        self._told = time.monotonic()

    def run(self, seconds: float, quiet: bool = False) -> None:
        """Take the part that has had least of its share, until the time is up; every part has one turn at least."""
        end = time.monotonic() + seconds
        while self.parts and (time.monotonic() < end or any(tally.faults == 0 for tally in self.tallies.values())):
            waiting = [name for name, tally in self.tallies.items() if tally.faults == 0] or [*self.parts]
            name = min(waiting, key=lambda name: self.tallies[name].seconds / self.parts[name][1])
            self.one(name, self.tallies[name].faults)
            if not quiet and time.monotonic() - self._told > TELL_EVERY:
                self._told = time.monotonic()
                print(f"{self.summary()}; {max(0.0, end - self._told):.0f} s left", file=sys.stderr, flush=True)

    def one(self, name: str, number: int, call: int | None = None) -> Outcome:
        """One fault of a part, by its number; of a batch, all its calls or one."""
        began, tally = time.monotonic(), self.tallies[name]
        trial = Trial(self.workshop, name, number, self.folder / f"{name}-{number}", call)
        try:
            outcome = attempt(self.parts[name][0], trial)
            if outcome.bad:
                self._keep(name, number, trial, outcome)
        finally:
            clear(trial.folder)
        tally.counts.update(outcome.counts)
        tally.seconds += time.monotonic() - began
        tally.faults += 1
        return outcome

    def _keep(self, name: str, number: int, trial: Trial, outcome: Outcome) -> None:
        repeat = f"python -m torture --seed {self.workshop.seed} --only {name}:{number}"
        keep(trial, outcome, repeat, self.kept / f"{name}-{number}")
        seen = outcome.why.strip().splitlines()[-1:] or [""]
        told = {"fault": f"{name}:{number}", "kind": outcome.kind, "what": outcome.what, "seen": seen[0][:300]}
        self.tallies[name].bad.append(told)
        print(f"{outcome.kind}: {name}:{number}: {outcome.what}: {seen[0][:300]}", file=sys.stderr, flush=True)

    def summary(self) -> str:
        """How many were tried, and how many of them were bad."""
        counts = sum((tally.counts for tally in self.tallies.values()), Counter[str]())
        bad = sum(counts[kind] for kind in BAD)
        return f"{counts.total():,} faults, {bad:,} bad"

    def close(self) -> None:
        """Delete the scratch folder; what was bad is kept."""
        shutil.rmtree(self.folder, ignore_errors=True)
