"""What torchrun tells the processes that it starts, and how they end with it."""

from __future__ import annotations

import ctypes
import os
import signal
from typing import NamedTuple

_JOB = "TORCHELASTIC_RUN_ID"


class Restarts(NamedTuple):
    """How often torchrun has started all processes again, and how often it will at most."""

    made: int
    allowed: int


def job() -> str | None:
    """The name of torchrun's job, the same after a restart; None outside of one, or if it was given no name."""
    name = os.environ.get(_JOB, "none")  # which is what torchrun itself calls a job without a name
    return None if name == "none" else name


def restarts() -> Restarts:
    """What torchrun says of restarts; none outside of it."""
    counts = (os.environ.get(f"TORCHELASTIC_{name}", "0") for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    return Restarts(*map(int, counts))


def end_with_torchrun() -> None:
    """Have the system kill this process when its torchrun is killed, which can no longer do it. On Linux alone."""
    if _JOB not in os.environ:
        return
    try:
        control = ctypes.CDLL(None).prctl
    except (OSError, AttributeError):
        return
    control(1, int(signal.SIGKILL))  # PR_SET_PDEATHSIG
