"""The processor itself: how fast it multiplies what never leaves its first cache."""

from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor
from typing import Any

from bench.contenders import THREADS
from trellis import ops

SECONDS = 0.2  # of each measurement


class Bare:
    """No contender: what contenders are measured against."""

    def __init__(self, task: Any, rows: int) -> None:
        self.task, self.rows = task, rows

    def step(self) -> None:
        """Nothing to learn."""

    def rates(self) -> dict[str, Any]:
        """The level of kernels in use, and operations a second of all threads at once in either precision."""
        level = ops.status().level
        if level is None:
            return {"level": None, "reason": ops.status().reason}
        return {"level": level, "float32": _rate(bf16=False), "bf16": _rate(bf16=True)}


def _rate(bf16: bool) -> float:
    with ThreadPoolExecutor(THREADS) as threads:
        return sum(threads.map(lambda _: ops.bare_rate(bf16, SECONDS), range(THREADS)))
