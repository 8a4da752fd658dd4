"""Whether this processor can do what was asked of it, tried where a crash does no harm."""

from __future__ import annotations

import functools
import subprocess
import sys

from trellis.errors import TrellisError

PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum().item()"


@functools.cache
def bf16_works() -> bool:
    """Whether bfloat16 products survive: on some machines oneDNN dies with an illegal instruction."""
    return subprocess.run([sys.executable, "-c", PROBE], capture_output=True, check=False).returncode == 0


def check_precision(precision: str) -> None:
    """Refuse a precision whose products would kill this process."""
    if precision == "bf16" and not bf16_works():
        raise TrellisError(
            "bf16 products crash on this processor: set training.precision=float32, or the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16."
        )
