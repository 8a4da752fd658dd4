"""`python -m torture`: faults of every part in turn until the time is up; then what came of them, written down."""

from __future__ import annotations

import os

os.environ["OMP_NUM_THREADS"] = "1"  # before PyTorch is imported: a process that forks has no pool of threads

import argparse
import json
import shlex
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from bench import machine
from torture import corpora, disks, files, kernels, kills, models, report, server, settings, together, workers
from torture.outcomes import BAD
from torture.session import Session, Tally
from torture.trial import Part
from torture.workshop import Workshop

RESULTS = Path(__file__).parent / "results.json"
PAGE = machine.ROOT / "docs" / "reliability.md"
SCRATCH = Path("/dev/shm")  # in memory: a disk would be waited for at every fault
KEPT = Path("torture-kept")
# Each part, and its share of the time.
PARTS: dict[str, tuple[Part, float]] = {
    "kills": (kills.fault, 3.0),
    "files": (files.fault, 3.0),
    "settings": (settings.fault, 2.0),
    "corpora": (corpora.fault, 1.5),
    "models": (models.fault, 1.0),
    "kernels": (kernels.fault, 1.0),
    "disks": (disks.fault, 1.5),
    "together": (together.fault, 1.0),
}
WORKERS = "workers"  # processes of torchrun take seconds each: they have a number of runs, not a share of the time
MINUTES_A_RUN = 5.0  # of the whole, for each run with a killed worker and each with a killed machine
COUNTED = {"stopped": "refused", "same": "unharmed", "different": "silent", "failed": "lost", "hung": "hang",
           "orphans": "orphan", "tracebacks": "traceback"}  # fmt: skip


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torture", description=__doc__)
    parser.add_argument("--minutes", type=float, default=30.0, help="how long to go on (default 30)")
    parser.add_argument("--seed", type=int, default=7, help="of everything that is drawn (default 7)")
    parser.add_argument("--parts", nargs="+", choices=[*PARTS, WORKERS], help="what to do; default all")
    parser.add_argument(
        "--runs", nargs=2, type=int, metavar=("WORKERS", "MACHINES"),
        help="of torchrun that lose a worker, and that lose a machine; default one of each for five minutes",
    )  # fmt: skip
    parser.add_argument("--only", metavar="PART:NUMBER", help="repeat one fault; of a batch, PART:NUMBER:CALL one call")
    parser.add_argument("--kept", type=Path, default=KEPT, help=f"folder of what comes out badly (default {KEPT})")
    parser.add_argument("--write", action="store_true", help="write torture/results.json and docs/reliability.md")
    parser.add_argument("--render", action="store_true", help="write the page anew from the results, and stop")
    parser.add_argument("--quiet", action="store_true", help="no progress")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Run, print, write; 1 if something came out badly."""
    arguments = _arguments(argv)
    if arguments.render:
        report.write(json.loads(RESULTS.read_text("utf-8")), RESULTS, PAGE)
        return 0
    if not arguments.quiet:
        print(f"seed {arguments.seed}", file=sys.stderr)
    server.preload()
    with tempfile.TemporaryDirectory(prefix="torture-", dir=SCRATCH if SCRATCH.is_dir() else None) as top:
        workshop = Workshop(Path(top) / "workshop", arguments.seed)
        if arguments.only:
            return _repeat(arguments, workshop, Path(top) / "faults")
        said = ["FOLDER" if before == "--kept" else word for before, word in zip(["", *argv], argv, strict=False)]
        command = shlex.join(["python", "-m", "torture", *said])
        results = run(arguments, workshop, Path(top) / "faults", command)
    print(report.counts(results["parts"]))
    if arguments.write:
        report.write(_joined(results, alone=arguments.parts == [WORKERS]), RESULTS, PAGE)
    return int(any(part[kind] for part in results["parts"].values() for kind in BAD))


def run(arguments: argparse.Namespace, workshop: Workshop, folder: Path, command: str) -> dict[str, Any]:
    """Faults of the parts that were asked for, and where they were made."""
    began, described = datetime.now(UTC), machine.describe()
    asked = arguments.parts or [*PARTS, WORKERS]
    runs = arguments.runs or [max(1, round(arguments.minutes / MINUTES_A_RUN))] * 2
    killed = _torchrun(runs, arguments.seed, folder) if WORKERS in asked else {}
    session = Session({name: PARTS[name] for name in asked if name in PARTS}, workshop, folder, arguments.kept)
    session.run(arguments.minutes * 60 - (datetime.now(UTC) - began).total_seconds(), arguments.quiet)
    return {
        "command": command,
        "date": began.isoformat(timespec="seconds"),
        "seconds": (datetime.now(UTC) - began).total_seconds(),
        "seed": arguments.seed,
        "minutes": arguments.minutes,
        "machine": {
            **{name: described[name] for name in ("cpu", "cores", "memory_bytes", "system", "python", "commit")},
            "uncommitted_changes": described["uncommitted_changes"],
            "versions": {name: described["versions"][name] for name in ("torch", "numpy")},
        },
        "parts": {**{name: tally.as_dict() for name, tally in session.tallies.items()}, **killed},
    }


def _torchrun(runs: Sequence[int], seed: int, folder: Path) -> dict[str, dict[str, Any]]:
    """Killed processes of torchrun, and killed machines where there can be some, counted as other faults are."""
    found = {}
    kills = {"workers": workers.workers_killed, "machines": workers.nodes_killed}
    for (name, kill), count in zip(kills.items(), runs, strict=True):
        began, losses = time.monotonic(), kill(count, seed, folder / name)
        if isinstance(losses, str):
            print(losses, file=sys.stderr)
            continue
        tally = Tally(Counter({kind: getattr(losses, count) for count, kind in COUNTED.items()}))
        tally.seconds = time.monotonic() - began
        found[name] = tally.as_dict()
    return found


def _repeat(arguments: argparse.Namespace, workshop: Workshop, folder: Path) -> int:
    """One fault again, and all that is to be said of it."""
    name, number, *call = arguments.only.split(":")
    outcome = Session({name: PARTS[name]}, workshop, folder, arguments.kept).one(name, int(number), *map(int, call))
    print("\n".join([f"{outcome.kind}: {outcome.what}", *outcome.commands, outcome.why]))
    return int(outcome.bad)


def _joined(results: dict[str, Any], alone: bool) -> dict[str, Any]:
    """The results with what other runs found and this one did not look for: fuzzing, the calls under sanitizers, and
    many runs that lost a worker, if this is not one of those: they do nothing else, `alone`.
    """
    before = json.loads(RESULTS.read_text("utf-8")) if RESULTS.exists() else {}
    if "asan" in os.environ.get("LD_PRELOAD", ""):
        return {**before, "sanitized": results["parts"]}
    if alone:
        return {**before, "elastic": results}
    return {**results, **{name: before[name] for name in ("elastic", "fuzz", "sanitized") if name in before}}


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
