"""Where the time of a training step goes, as PyTorch's profiler sees it; the native kernels are made visible to it."""

from __future__ import annotations

import functools
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from torch.autograd import Function
from torch.profiler import ProfilerActivity, profile, record_function

# Operations of the products of a step, by the parts of the breakdown they are done in. Three products of the same size
# each, forward and by both factors backward, of two operations a term: six times the terms. What is computed again to
# save memory does not count.
Operations = dict[str, float]

SAMPLES = 4  # calls that are profiled
PARTS = ("recursion", "products", "exponentials", "optimiser", "other")
UPDATE, NATIVE = "bench: update", "native: "
PRODUCTS = {
    f"aten::{name}"
    for name in ("mm", "bmm", "addmm", "addmm_", "baddbmm", "baddbmm_", "mv", "addmv", "addmv_", "dot", "mkldnn_linear")
}
EXPONENTIALS = {
    f"aten::{name}"
    for name in (
        "exp", "exp_", "log", "log_", "logsumexp", "logaddexp", "softmax", "_softmax", "log_softmax", "_log_softmax",
        "_softmax_backward_data", "_log_softmax_backward_data",
    )
}  # fmt: skip


def _recursions() -> set[str]:
    """Names, forward and backward, under which autograd runs what the inference package defines."""
    ours = [kind for kind in Function.__subclasses__() if kind.__module__.startswith("trellis.inference")]
    return {name for kind in ours for name in (kind.__name__, f"{kind.__name__}Backward")}


def part(names: list[str], recursions: set[str]) -> str:
    """What an operation belongs to, by its name and those of the ones it is part of, innermost first."""
    if UPDATE in names:
        return "optimiser"
    if any(name in recursions for name in names):
        return "recursion"
    for name in names:
        if name in PRODUCTS or name.startswith(NATIVE):
            return "products"
        if name in EXPONENTIALS:
            return "exponentials"
    return "other"


@contextmanager
def _named_kernels() -> Iterator[None]:
    """Within, calls into the native library have names that the profiler records."""
    modules = [module for name, module in list(sys.modules.items()) if name.startswith("trellis.ops.")]
    changed = [(module, module.call) for module in modules if hasattr(module, "call")]
    for module, call in changed:
        module.call = functools.partial(_named, call)  # type: ignore[attr-defined]  # every module has its own name for it
    try:
        yield
    finally:
        for module, call in changed:
            module.call = call  # type: ignore[attr-defined]


def _named(call: Callable[..., None], name: str, *arguments: Any) -> None:
    with record_function(NATIVE + name):
        call(name, *arguments)


def _lineage(event: Any) -> list[str]:
    names = []
    while event is not None:
        names.append(event.name)
        event = event.cpu_parent
    return names


def breakdown(step: Callable[[], None]) -> dict[str, float]:
    """Seconds of one call by what it spent them on; a native kernel's exponentials are among its products.

    Of a few calls the quickest: what a profiler keeps displaces a step's memory, and new memory is slow at first.
    """
    return min((_profiled(step) for _ in range(SAMPLES)), key=lambda spent: sum(spent.values()))


def _profiled(step: Callable[[], None]) -> dict[str, float]:
    recursions, spent = _recursions(), dict.fromkeys(PARTS, 0.0)
    with _named_kernels(), torch.enable_grad(), profile(activities=[ProfilerActivity.CPU]) as found:
        began = time.perf_counter()
        step()
        seconds = time.perf_counter() - began
    for event in found.events() or ():
        spent[part(_lineage(event), recursions)] += event.self_cpu_time_total / 1e6
    spent["other"] += max(0.0, seconds - sum(spent.values()))  # Python between the operations
    return spent
