"""`python -m torture.fuzz`: each target for minutes under atheris, which draws inputs by the branches they reach."""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
import traceback
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from torture.fuzz.targets import TARGETS, run

RESULTS = Path(__file__).parents[1] / "results.json"
PAGE = Path(__file__).parents[2] / "docs" / "reliability.md"
KEPT = Path("torture-kept")
SLOWEST = 30  # seconds for one input
LARGEST = 4096  # megabytes of memory
MEMORY = Path("/dev/shm")  # a disk in it


def _arguments(argv: Sequence[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m torture.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=int, default=150, help="for each target (default 150)")
    parser.add_argument("--seed", type=int, default=7, help="of what is drawn (default 7)")
    parser.add_argument("--targets", nargs="+", choices=TARGETS, default=[*TARGETS], help="which; default all")
    parser.add_argument("--kept", type=Path, default=KEPT, help=f"folder of findings (default {KEPT})")
    parser.add_argument("--write", action="store_true", help="write torture/results.json and docs/reliability.md")
    parser.add_argument("--here", action="store_true", help="fuzz the one target in this process")
    return parser.parse_args(argv)


def main(argv: Sequence[str]) -> int:
    """Fuzz each target in a process of its own; 1 if there were findings."""
    arguments = _arguments(argv)
    if arguments.here:
        _fuzz(arguments.targets[0], arguments.kept, arguments.seconds, arguments.seed)
    found = {}
    for name in arguments.targets:
        found[name] = _started(name, arguments)
        print(f"{name}: {found[name]}", file=sys.stderr, flush=True)
    if arguments.write:
        from torture import report  # which imports readers: before fuzzing, they would not be watched

        results = json.loads(RESULTS.read_text("utf-8"))
        report.write({**results, "fuzz": {**results.get("fuzz", {}), **found}}, RESULTS, PAGE)
    return int(any(one["findings"] for one in found.values()))


def _started(name: str, arguments: argparse.Namespace) -> dict[str, Any]:
    """Fuzz a target in a process of its own, and read what libFuzzer said."""
    kept = arguments.kept / f"fuzz-{name.replace(' ', '-')}"
    options = ["--seconds", str(arguments.seconds), "--seed", str(arguments.seed), "--kept", str(kept)]
    began = time.monotonic()
    with tempfile.TemporaryDirectory(dir=MEMORY if MEMORY.is_dir() else None) as scratch:
        done = subprocess.run(
            [sys.executable, "-m", "torture.fuzz", "--here", "--targets", name, *options],
            stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", check=False,
            env={**os.environ, "TMPDIR": scratch},  # libFuzzer ends the process before it could tidy up
        )  # fmt: skip
    executions = [int(number) for number in re.findall(r"(?:^#|executed_units: +)(\d+)", done.stdout, re.MULTILINE)]
    coverage = [int(number) for number in re.findall(r"cov: (\d+)", done.stdout)]
    if not coverage:
        raise SystemExit(f"{name} could not be fuzzed:\n{done.stdout[-3000:]}")
    return {
        "executions": max(executions),
        "coverage": max(coverage),
        "seconds": round(time.monotonic() - began, 1),
        "findings": len([*kept.glob("*.txt"), *kept.glob("crash-*"), *kept.glob("timeout-*"), *kept.glob("oom-*")]),
    }


def _fuzz(name: str, kept: Path, seconds: int, seed: int) -> None:
    """In a process of its own: fuzz until the time is up; this never returns."""
    try:
        import atheris  # which has no wheels for every system: no part of the development extra
    except ImportError:
        raise SystemExit("fuzzing needs atheris: pip install atheris.") from None

    with atheris.instrument_imports(include=["trellis"]):
        for seed_input in TARGETS[name].seeds():  # which imports all that the target needs
            run(name, seed_input)
    kept.mkdir(parents=True, exist_ok=True)
    place = Path(tempfile.mkdtemp(prefix="fuzz-seeds-"))
    for number, content in enumerate(TARGETS[name].seeds()):
        (place / str(number)).write_bytes(content)
    options = [f"-max_total_time={seconds}", f"-seed={seed}", f"-artifact_prefix={kept}/", "-max_len=600"]
    atheris.Setup(
        [sys.argv[0], str(place), *options, f"-timeout={SLOWEST}", f"-rss_limit_mb={LARGEST}", "-print_final_stats=1"],
        lambda data: try_input(name, bytes(data), kept),
    )
    atheris.Fuzz()


def try_input(name: str, data: bytes, kept: Path) -> None:
    """Try an input; a finding is kept with its traceback, one for each place it comes from, and fuzzing goes on."""
    try:
        run(name, data)
    except Exception as error:
        frames = traceback.extract_tb(error.__traceback__)
        where = [f"{frame.filename}:{frame.lineno}" for frame in frames if "trellis" in frame.filename][-1:]
        print_of = hashlib.sha256(f"{type(error).__name__} {where}".encode()).hexdigest()[:12]
        (kept / f"{print_of}.input").write_bytes(data)
        (kept / f"{print_of}.txt").write_text("".join(traceback.format_exception(error)), encoding="utf-8")


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
