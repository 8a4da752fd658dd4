"""`trellis doctor`: what this machine lends to Trellis, and what of it is in use."""

from __future__ import annotations

import os
import platform
import time
from typing import TYPE_CHECKING

from trellis.cli.terminal import Json, Threads, report

if TYPE_CHECKING:
    from trellis.ops import Status

EXAMPLE = "Example:\n\ntrellis doctor\n\nTRELLIS_KERNELS=off trellis doctor"


def run(json: Json = False, threads: Threads = None) -> None:
    """Show which kernels do the work and why: the processor's features, threads, a compiler, and measured rates.

    TRELLIS_KERNELS=portable, avx2, avx512, amx or off overrides the choice.
    """
    import torch

    from trellis import ops

    status = ops.status()
    rates = _rates(status)
    values = {
        "kernels": status.level, "reason": status.reason, "processor": platform.machine(),
        "features": status.features, "threads": torch.get_num_threads(), "compiler": ops.compiler(),
        "torch": torch.__version__, "gigaflops_a_thread": rates,
    }  # fmt: skip
    report(
        json,
        values,
        ("kernels", f"{'native, ' + status.level if status.level else 'PyTorch alone'}: {status.reason}"),
        ("processor", f"{platform.machine()} with {', '.join(status.features) or 'nothing that we could find out'}"),
        ("threads", f"{torch.get_num_threads()} of {os.cpu_count()}"),
        ("compiler", ops.compiler() or "none found"),
        ("PyTorch", torch.__version__),
        *((f"{name} products", f"{rate:,.0f} Gflop/s a thread") for name, rate in rates.items()),
    )


def _rates(status: Status) -> dict[str, float]:
    """Matrix products by the kernels and by PyTorch, on one thread, each over before one notices."""
    from trellis.ops import bare_rate

    rates = {"PyTorch": _torch_rate() / 1e9}
    if status.level:
        rates |= {"float32": bare_rate() / 1e9, "bf16": bare_rate(bf16=True) / 1e9}
    return rates


def _torch_rate(size: int = 512, times: int = 8) -> float:
    import torch

    a, out = torch.ones(size, size), torch.empty(size, size)
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    torch.mm(a, a, out=out)
    start = time.perf_counter()
    for _ in range(times):
        torch.mm(a, a, out=out)
    seconds = time.perf_counter() - start
    torch.set_num_threads(before)
    return 2.0 * size**3 * times / seconds
