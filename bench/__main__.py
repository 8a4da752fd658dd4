"""`python -m bench`: race the peers, grow Trellis, time its parts, the estimator too, and write it all down."""

from __future__ import annotations

import argparse
import json
import shlex
import sys
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import blocked, categorical, encoders, growth, kernels, machine, memory, report, steering
from bench.against import against
from bench.blocked_problem import BrownTask
from bench.contenders import DYNAMAX_PLAIN, FAST, SLOW, Entry
from bench.problem import Problem
from bench.quiet import Patience
from bench.race import Rules, race
from trellis.progress import Progress

QUICK = tuple(entry for entry in (*FAST, *SLOW) if entry is not DYNAMAX_PLAIN)  # which is the same code again
DEFAULT_OUT = machine.ROOT / "docs" / "bench"
TINY = Problem(states=16, words=50, batch=4, length=8, rank=8)
PARTS = ("race", "growth", "blocked", "kernels", "encoders", "memory", "categorical", "steering")


@dataclass(frozen=True)
class Plan:
    """What a run measures."""

    problems: tuple[Problem, ...]
    growth: dict[str, list[Problem]]
    blocked: blocked.Sizes
    brown: BrownTask
    matches: tuple[kernels.Match, ...]  # native kernels against PyTorch
    encoders: Problem
    memory: memory.Sizes  # of models whose states remember a word
    categorical: tuple[categorical.Task, ...]  # the estimator beside hmmlearn's
    steering: steering.Task  # guidance of a language model
    entries: tuple[Entry, ...]
    rounds: int  # turns each fast contender has
    repeats: int  # timed steps at each size of growth and blocked models
    wait: float  # seconds, all in all and for each part, to wait for other processes to leave the cores alone
    limit: float  # seconds after which a single call is given up


def full(data_dir: str | None = None) -> Plan:
    """The figures to cite."""
    return Plan(
        problems=(Problem(words=10_000), Problem(words=32_000)),
        growth=growth.sizes(growth.CENTRE, growth.AXES),
        blocked=blocked.sizes(),
        brown=BrownTask(data_dir=data_dir),
        matches=kernels.matches(),
        encoders=Problem(words=32_000),
        memory=memory.sizes(),
        categorical=categorical.tasks(),
        steering=steering.task(data_dir),
        entries=(*FAST, *SLOW),
        rounds=5,
        repeats=3,
        wait=240.0,
        limit=120.0,
    )


def quick(data_dir: str | None = None) -> Plan:
    """The same code in seconds; the figures mean nothing."""
    return Plan(
        problems=(TINY,),
        growth=growth.sizes(growth.QUICK_CENTRE, growth.QUICK_AXES),
        blocked=blocked.quick_sizes(),
        brown=BrownTask(clusters=4, data_dir=data_dir, tokens=1000),
        matches=kernels.quick_matches(),
        encoders=TINY,
        memory=memory.quick_sizes(),
        categorical=categorical.quick_tasks(),
        steering=steering.quick_task(),
        entries=QUICK,
        rounds=1,
        repeats=1,
        wait=0.0,
        limit=120.0,
    )


def _race(plan: Plan, patience: Patience, quiet: bool) -> list[dict[str, Any]]:
    turns = sum(plan.rounds if entry.repeats is None else 1 for entry in plan.entries)
    with Progress("race", turns * len(plan.problems), unit="turns", quiet=quiet) as bar:
        rules = Rules(plan.rounds, plan.limit, patience, say=_teller(bar))
        results = []
        for problem in plan.problems:
            laps = race(problem, rules, plan.entries)
            results.append({"problem": asdict(problem), "contenders": [lap.as_dict() for lap in laps]})
        return results


def _grow(plan: Plan, patience: Patience, quiet: bool) -> dict[str, list[dict[str, Any]]]:
    with Progress("growth", sum(map(len, plan.growth.values())), unit="sizes", quiet=quiet) as bar:
        found = growth.grow(plan.growth, plan.repeats, plan.limit, patience, _teller(bar))
    return {axis: [point.as_dict() for point in points] for axis, points in found.items()}


def _blocked(plan: Plan, patience: Patience, quiet: bool) -> dict[str, Any]:
    with Progress("blocked models", sum(map(len, plan.blocked)) + 1, unit="sizes", quiet=quiet) as bar:
        say = _teller(bar)
        points = blocked.measure_all(plan.blocked, plan.repeats, plan.limit, patience, say)
        brown = blocked.cluster(plan.brown, plan.limit, patience)
        say("clustering")
    return {"points": points, "brown": brown}


def _compare(plan: Plan, patience: Patience, quiet: bool) -> dict[str, Any]:
    turns = plan.rounds * sum(len(match.entries()) for match in plan.matches)
    with Progress("kernels", turns, unit="turns", quiet=quiet) as bar:
        return kernels.compare(plan.matches, plan.rounds, plan.limit, patience, _teller(bar))


def _encode(plan: Plan, patience: Patience, quiet: bool) -> dict[str, Any]:
    with Progress("encoders", plan.rounds * encoders.CONTENDERS, unit="turns", quiet=quiet) as bar:
        return encoders.compare(plan.encoders, plan.rounds, plan.limit, patience, _teller(bar))


def _remember(plan: Plan, patience: Patience, quiet: bool) -> list[dict[str, Any]]:
    turns = plan.rounds * sum(len(memory.entries(problem)) for problem in plan.memory)
    with Progress("memory", turns, unit="turns", quiet=quiet) as bar:
        return memory.compare(plan.memory, plan.rounds, plan.limit, patience, _teller(bar))


def _estimate(plan: Plan, quiet: bool) -> list[dict[str, Any]] | None:
    with Progress("categorical", len(plan.categorical), unit="sizes", quiet=quiet) as bar:
        return categorical.compare(plan.categorical, plan.rounds, plan.wait, _teller(bar))


def _teller(bar: Progress) -> Callable[[str], None]:
    return lambda name: bar.advance(1, name)


def run(plan: Plan, command: str, parts: Sequence[str] = PARTS, quiet: bool = False) -> dict[str, Any]:
    """Measure these parts, and say where."""
    began = datetime.now(UTC)
    described = machine.describe()
    measured = {
        "races": _race(plan, Patience(plan.wait), quiet) if "race" in parts else [],
        "growth": _grow(plan, Patience(plan.wait), quiet) if "growth" in parts else {},
        "blocked": _blocked(plan, Patience(plan.wait), quiet) if "blocked" in parts else None,
        "kernels": _compare(plan, Patience(plan.wait), quiet) if "kernels" in parts else None,
        "encoders": _encode(plan, Patience(plan.wait), quiet) if "encoders" in parts else None,
        "memory": _remember(plan, Patience(plan.wait), quiet) if "memory" in parts else None,
        "categorical": _estimate(plan, quiet) if "categorical" in parts else None,
        "steering": steering.compare(plan.steering, plan.rounds, plan.wait) if "steering" in parts else None,
    }
    return {
        "command": command,
        "date": began.isoformat(timespec="seconds"),
        "seconds": (datetime.now(UTC) - began).total_seconds(),
        "seeds": sorted({problem.seed for problem in plan.problems}),
        "machine": described,
        **measured,
    }


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench", description=__doc__)
    parser.add_argument("--quick", action="store_true", help="tiny sizes: check that everything runs")
    parser.add_argument("--only", nargs="+", metavar="NAME", help="contenders to race, by name; default all")
    parser.add_argument("--parts", nargs="+", choices=PARTS, default=PARTS, help="what to measure; default all")
    parser.add_argument("--data-dir", help="where the Penn Treebank to cluster may lie (default TRELLIS_DATA)")
    parser.add_argument("--out", type=Path, help=f"folder of the results (default {DEFAULT_OUT.name} in docs/)")
    parser.add_argument("--render", action="store_true", help="redraw page and plot from the results in --out")
    parser.add_argument("--against", type=Path, help="only time training beside the Trellis in this src folder")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(argv)


def _plan(arguments: argparse.Namespace) -> Plan:
    plan = (quick if arguments.quick else full)(arguments.data_dir)
    if arguments.only:
        plan = replace(plan, entries=tuple(entry for entry in plan.entries if entry.name in arguments.only))
    return plan


def main(argv: Sequence[str]) -> None:
    """Run, print, write."""
    arguments = _arguments(argv)
    if arguments.against:
        against(arguments.against, _plan(arguments), arguments.parts)
        return
    # Figures of partial runs go to the screen alone, unless a folder is named: cited ones are never half new.
    partial = arguments.quick or arguments.only or set(arguments.parts) != set(PARTS)
    out = arguments.out or (None if partial else DEFAULT_OUT)
    if arguments.render:
        results = json.loads(((out or DEFAULT_OUT) / "bench.json").read_text("utf-8"))
    else:
        command = shlex.join(["python", "-m", "bench", *_sayable(argv)])
        results = run(_plan(arguments), command, arguments.parts, arguments.quiet)
    report.show(results)
    if out is not None:
        report.write(results, out)


def _sayable(argv: Sequence[str]) -> list[str]:
    """The command as the page gives it: a folder of this machine is nobody else's business."""
    before = ["", *argv]
    return ["DATA" if last == "--data-dir" else word for last, word in zip(before, argv, strict=False)]


if __name__ == "__main__":
    main(sys.argv[1:])
