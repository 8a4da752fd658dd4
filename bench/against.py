"""`python -m bench --against FOLDER`: training steps of this version of Trellis and of another, in turns."""

from __future__ import annotations

import statistics
from dataclasses import replace
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

from bench import memory
from bench.blocked import BLOCKED
from bench.contenders import BAUM_WELCH, DYNAMAX, LOW_RANK, TRELLIS, Entry, Task
from bench.encoders import encoder_entries
from bench.growth import WARM_UP
from bench.kernel_tables import problem_title
from bench.quiet import Patience
from bench.race import IN_A_ROW, until_quiet
from bench.worker import ContenderError, Sample, Worker

if TYPE_CHECKING:
    from bench.__main__ import Plan


def training_rows(plan: Plan) -> dict[str, list[tuple[Entry, Task]]]:
    """What Trellis trains in each part of a run."""
    from trellis.training.precision import bf16_works  # imports torch

    entries = [(match, entry) for match in plan.matches for entry in match.entries(not bf16_works())]
    return {
        "race": [(entry, problem) for problem in plan.problems for entry in (TRELLIS, LOW_RANK, BAUM_WELCH)],
        "growth": [(TRELLIS, problem) for problem in dict.fromkeys(chain(*plan.growth.values()))],
        "blocked": [(replace(BLOCKED, name=f"{BLOCKED.name}, {p.transition}"), p) for p in chain(*plan.blocked)],
        "kernels": [(entry, match.problem) for match, entry in entries if entry is not DYNAMAX],
        "encoders": [(entry, plan.encoders) for entry in encoder_entries()],
        "memory": [(entry, problem) for problem in plan.memory for entry in memory.entries(problem)],
        "steering": [],  # trains nothing
        "categorical": [],  # is timed beside hmmlearn, in one process, which can import one Trellis only
    }


def duel(entry: Entry, task: Task, other: Path, plan: Plan, patience: Patience) -> str:
    """Best steps by these sources and by the other's, and ratios: above one, this version is the slower."""
    both = (entry, replace(entry, sources=str(other)))
    with Worker(both[0], task, plan.limit) as this, Worker(both[1], task, plan.limit) as that:
        found: dict[Worker, list[Sample]] = {this: [], that: []}
        for worker in WARM_UP * [this, that]:
            worker.call("step")
        for worker in plan.rounds * [this, that]:
            patience.wait()
            found[worker] += until_quiet(worker, "step", IN_A_ROW)
    return told(found[this], found[that])


def told(this: list[Sample], that: list[Sample]) -> str:
    """Two versions' samples in a line; disturbed ones count where there are no others."""
    quiet = [[sample.seconds for sample in samples if not sample.disturbed] for samples in (this, that)]
    ours, theirs = (some or [sample.seconds for sample in all_] for some, all_ in zip(quiet, (this, that), strict=True))
    ratios = [of(ours) / of(theirs) for of in (min, statistics.median)]
    calls = f"{sum(map(len, quiet))}/{len(this) + len(that)} quiet"
    return f"{1e3 * min(ours):.4g} / {1e3 * min(theirs):.4g} ms = {ratios[0]:.3f}, medians {ratios[1]:.3f}, {calls}"


def against(other: Path, plan: Plan, parts: list[str]) -> None:
    """Print a line for each model and problem of these parts."""
    if not (other / "trellis" / "__init__.py").exists():
        raise SystemExit(f"{other} holds no Trellis: name the src folder of another checkout, its kernels built.")
    patience, rows = Patience(plan.wait), training_rows(plan)
    for entry, task in chain.from_iterable(rows[part] for part in parts):
        try:
            line = duel(entry, task, other, plan, patience)
        except ContenderError as error:
            line = str(error)
        print(f"{entry.name:30}  {problem_title(task.described()):48}  {line}", flush=True)
