"""`python -m bench`: race the peers, grow Trellis, and write down both."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import growth, machine, report
from bench.contenders import DYNAMAX_PLAIN, FAST, SLOW, Entry
from bench.problem import Problem
from bench.quiet import Patience
from bench.race import race
from trellis.progress import Progress

QUICK = tuple(entry for entry in (*FAST, *SLOW) if entry is not DYNAMAX_PLAIN)  # which is the same code again
DEFAULT_OUT = machine.ROOT / "docs" / "bench"


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    problems: tuple[Problem, ...]
    growth: dict[str, list[Problem]]
    entries: tuple[Entry, ...]
    rounds: int  # turns each fast contender has
    repeats: int  # timed steps at each size of the growth
    wait: (
        float  # seconds, all in all and for race and growth each, to wait for other processes to leave the cores alone
    )
    limit: float  # seconds after which a single call is given up


def full() -> Plan:
    """The figures to cite."""
    problems = (Problem(words=10_000), Problem(words=32_000))
    axes = growth.sizes(growth.CENTRE, growth.AXES)
    return Plan(problems, axes, (*FAST, *SLOW), rounds=5, repeats=3, wait=240.0, limit=120.0)


def quick() -> Plan:
    """The same code in seconds; the figures mean nothing."""
    axes = growth.sizes(growth.QUICK_CENTRE, growth.QUICK_AXES)
    problem = Problem(states=16, words=50, batch=4, length=8, rank=8)
    return Plan((problem,), axes, QUICK, rounds=1, repeats=1, wait=0.0, limit=60.0)


def _race(plan: Plan, patience: Patience, quiet: bool) -> list[dict[str, Any]]:
    turns = sum(plan.rounds if entry.repeats is None else 1 for entry in plan.entries)
    with Progress("race", turns * len(plan.problems), unit="turns", quiet=quiet) as bar:
        results = []
        for problem in plan.problems:
            laps = race(problem, plan.rounds, plan.limit, plan.entries, patience, lambda name: bar.advance(1, name))
            results.append({"problem": asdict(problem), "contenders": [lap.as_dict() for lap in laps]})
        return results


def _grow(plan: Plan, patience: Patience, quiet: bool) -> dict[str, list[dict[str, Any]]]:
    with Progress("growth", sum(map(len, plan.growth.values())), unit="sizes", quiet=quiet) as bar:
        found = growth.grow(plan.growth, plan.repeats, plan.limit, patience, lambda name: bar.advance(1, name))
    return {axis: [point.as_dict() for point in points] for axis, points in found.items()}


def run(plan: Plan, command: str, quiet: bool = False) -> dict[str, Any]:
    """Measure everything, and say where."""
    began = datetime.now(UTC)
    described = machine.describe()
    races, grown = _race(plan, Patience(plan.wait), quiet), _grow(plan, Patience(plan.wait), quiet)
    return {
        "command": command,
        "date": began.isoformat(timespec="seconds"),
        "seconds": (datetime.now(UTC) - began).total_seconds(),
        "seeds": sorted({problem.seed for problem in plan.problems}),
        "machine": described,
        "races": races,
        "growth": grown,
    }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: check that everything runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders to race, by name; default all")
    parser.add_argument("--no-growth", action="store_true", help="race only")
    parser.add_argument("--out", type=Path, help=f"folder of the results (default {DEFAULT_OUT.name} in docs/)")
    parser.add_argument("--render", action="store_true", help="redraw page and plot from the results in --out")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(argv)


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = quick() if arguments.quick else full()
    if arguments.no_growth:
        plan = replace(plan, growth={})
    if arguments.only:
        plan = replace(plan, entries=tuple(entry for entry in plan.entries if entry.name in arguments.only))
    return plan


def main(argv: Sequence[str]) -> None:
    """Run, print, write."""
    arguments = _arguments(argv)
    # Figures of partial runs go to the screen alone, unless a folder is named: cited ones are never half new.
    partial = arguments.quick or arguments.only or arguments.no_growth
    out = arguments.out or (None if partial else DEFAULT_OUT)
    if arguments.render:
        results = json.loads(((out or DEFAULT_OUT) / "bench.json").read_text("utf-8"))
    else:
        results = run(_plan(arguments), shlex.join(["python", "-m", "bench", *argv]), arguments.quiet)
    report.show(results)
    if out is not None:
        report.write(results, out)


if __name__ == "__main__":
    main(sys.argv[1:])
