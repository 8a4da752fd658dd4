"""Whether a device can do what was asked of it; of this processor, tried where a crash does no harm."""

from __future__ import annotations

import functools
import subprocess
import sys
import tempfile

import torch

from trellis.errors import TrellisError

PROBE = "import torch; a = torch.ones(64, 64, dtype=torch.bfloat16); (a @ a).sum().item()"


@functools.cache
def bf16_works() -> bool:
    """Whether bfloat16 products survive: on some machines oneDNN dies with an illegal instruction."""
    # -P and a folder of its own: a torch.py that lies where the user works is not what is asked.
    with tempfile.TemporaryDirectory() as nowhere:
        probe = [sys.executable, "-P", "-c", PROBE]
        return subprocess.run(probe, capture_output=True, check=False, cwd=nowhere).returncode == 0


def check_precision(precision: str, device: torch.device = torch.device("cpu")) -> None:  # noqa: B008  # immutable
    """Refuse a precision that this device does not have, or whose products would kill this process."""
    if precision != "bf16":
        return
    if not torch.amp.is_autocast_available(device.type):
        raise TrellisError(f"there are no bf16 products on {device}: set training.precision=float32.")
    if device.type == "cpu" and not bf16_works():
        raise TrellisError(
            "bf16 products crash on this processor: set training.precision=float32, or the environment variable "
            "ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16."
        )
