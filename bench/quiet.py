"""Other people's use of the cores: how much there is, and waiting for it to end."""

from __future__ import annotations

import os
import time
from pathlib import Path

DISTURBED = 0.1  # share of the cores that others may take before a timing is not worth much
GLANCE = 0.5  # seconds over which their use is measured
_STAT = Path("/proc/stat")


def busy_seconds() -> float:
    """CPU time that all processes, and the host's other guests, have taken so far; 0 where unknown."""
    if not _STAT.exists():
        return 0.0
    user, nice, system, _idle, _wait, *rest = map(int, _STAT.read_text().split("\n", 1)[0].split()[1:9])
    return float(user + nice + system + sum(rest)) / os.sysconf("SC_CLK_TCK")


def share(cpu_seconds: float, seconds: float) -> float:
    """CPU time as a share of all cores."""
    return max(0.0, cpu_seconds) / seconds / (os.cpu_count() or 1)


class Patience:
    """Waits for a quiet machine, all waits together no longer than the limit."""

    def __init__(self, seconds: float) -> None:
        self.left = seconds

    def wait(self) -> None:
        """Return when others leave the cores alone, or patience is at its end."""
        while self.left > 0:
            before = busy_seconds()
            time.sleep(GLANCE)
            self.left -= GLANCE
            if share(busy_seconds() - before, GLANCE) <= DISTURBED:
                return
