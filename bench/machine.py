"""Where and on what figures were measured: a figure without its machine says nothing."""

from __future__ import annotations

import os
import platform
import subprocess
from importlib.metadata import PackageNotFoundError, version
from pathlib import Path
from typing import Any

from bench.contenders import THREADS

PACKAGES = (
    "trellis-lm", "torch", "numpy", "scipy", "dynamax", "jax", "jaxlib", "optax", "hmmlearn", "pomegranate",
)  # fmt: skip
ROOT = Path(__file__).parents[1]


def _version(package: str) -> str | None:
    try:
        return version(package)
    except PackageNotFoundError:
        return None


def _git(*arguments: str) -> str:
    done = subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=False)
    return done.stdout.strip()


def cpu_name(info: Path = Path("/proc/cpuinfo")) -> str:
    """The processor as the kernel describes it: its name alone may not tell one generation from the next."""
    lines = info.read_text().splitlines() if info.exists() else []
    said = {name.strip(): value.strip() for name, _, value in (line.partition(":") for line in reversed(lines))}
    if "model name" not in said:
        return platform.processor()
    return f"{said['model name']}, family {said.get('cpu family', '?')}, model {said.get('model', '?')}"


def describe() -> dict[str, Any]:
    """Processor, memory, system, versions, commit, and how busy the machine was with other things."""
    return {
        "cpu": cpu_name(),
        "cores": os.cpu_count(),
        "threads": THREADS,
        "memory_bytes": os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"),
        "system": platform.platform(),
        "python": platform.python_version(),
        "versions": {package: _version(package) for package in PACKAGES},
        "commit": _git("rev-parse", "HEAD") or None,
        "uncommitted_changes": bool(_git("status", "--porcelain", "--untracked-files=no")),
        "load_average": os.getloadavg(),
    }
