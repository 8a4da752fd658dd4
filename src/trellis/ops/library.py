"""The library of native kernels: whether it was built, which processor level it uses, and calls into it.

It has a plain C interface and is loaded by ctypes when first asked about. Tensors go in as pointers; the structures
that each operation declares mirror src/native/api.h.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor

from trellis.errors import TrellisError

PATH = Path(__file__).parents[1] / "_kernels.so"
VARIABLE = "TRELLIS_KERNELS"
# In the library's numbering. The last two stand in for other processors, for tests.
LEVELS = {"portable": 0, "avx2": 1, "avx512": 2, "amx": 3, "amx-emulated": 4, "avx512-without-bf16": 5}
FEATURES = ("avx2", "avx512", "avx512_bf16", "amx")  # bits of what the library finds
NO_MEMORY, BAD_INDEX = 2, 3  # what a call that failed returns


@dataclass(frozen=True)
class Status:
    """Which kernels are in use, and why."""

    level: str | None  # processor level; None: PyTorch does the work
    reason: str  # a sentence for people
    features: tuple[str, ...]  # which of FEATURES the processor has, as far as the library could tell


class _Loaded:
    def __init__(self, library: ctypes.CDLL | None, level: str | None, reason: str) -> None:
        self.library, self.level, self.reason, self.told = library, level, reason, False


@functools.cache
def _loaded() -> _Loaded:
    wanted = os.environ.get(VARIABLE, "")
    if wanted == "off":
        return _Loaded(None, None, f"{VARIABLE}=off asks for PyTorch.")
    if wanted and wanted not in LEVELS:
        raise TrellisError(f"{VARIABLE}={wanted} is no level of processor: take one of off, {', '.join(LEVELS)}.")
    if not PATH.exists():
        return _Loaded(None, None, "the native kernels were not built: install a C++ compiler, then Trellis again.")
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        return _Loaded(None, None, f"the native kernels cannot be loaded here ({error}): install Trellis again.")
    library.trellis_products.restype = ctypes.c_double
    library.trellis_use.argtypes = [ctypes.c_int64]
    library.trellis_products.argtypes = [ctypes.c_int64, ctypes.c_int64]
    library.trellis_exponentials.argtypes = [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int64]
    if wanted:
        if not library.trellis_use(LEVELS[wanted]):
            raise TrellisError(f"{VARIABLE}={wanted} is more than this processor has: take less, or unset it.")
        return _Loaded(library, wanted, f"{VARIABLE}={wanted} asks for it.")
    best = next(level for level in ("amx", "avx512", "avx2", "portable") if library.trellis_use(LEVELS[level]))
    return _Loaded(library, best, "the best that this processor has.")


def status() -> Status:
    """Which kernels are in use, and why."""
    loaded = _loaded()
    bits = loaded.library.trellis_features() if loaded.library else 0
    return Status(loaded.level, loaded.reason, tuple(name for i, name in enumerate(FEATURES) if bits >> i & 1))


def usable(*tensors: Tensor) -> bool:
    """Whether the native kernels can take these tensors: float32 on the CPU. If there are no kernels, warns once."""
    loaded = _loaded()
    if loaded.level is None:
        if loaded.library is None and not loaded.told and os.environ.get(VARIABLE) != "off":
            logging.getLogger("trellis").warning("PyTorch does all the work: %s", loaded.reason)
        loaded.told = True
        return False
    return all(tensor.dtype == torch.float32 and tensor.device.type == "cpu" for tensor in tensors)


@contextmanager
def using(level: str | None) -> Iterator[None]:
    """Use another level for a while, or PyTorch (None): for tests and measurements."""
    loaded, before = _loaded(), _loaded().level
    if level is not None and not (loaded.library and loaded.library.trellis_use(LEVELS[level])):
        raise TrellisError(f"there is no {level} here.")
    loaded.level = level
    try:
        yield
    finally:
        loaded.level = before
        if before is not None and loaded.library:
            loaded.library.trellis_use(LEVELS[before])


def levels() -> list[str]:
    """The levels that both this processor and this library have."""
    with using(_loaded().level):
        library = _loaded().library
        return [level for level, number in LEVELS.items() if library and library.trellis_use(number)]


def bare_rate(bf16: bool = False, seconds: float = 0.05) -> float:
    """Operations per second of one thread multiplying matrices that stay in the first-level cache."""
    library, times, operations = _library(), 200, 0.0
    library.trellis_products(bf16, times)
    start = time.perf_counter()
    while operations == 0.0 or time.perf_counter() - start < seconds:  # once at least, however busy the machine
        operations += library.trellis_products(bf16, times)
    return operations / (time.perf_counter() - start)


def exponentials(x_N: Tensor) -> Tensor:
    """e^x as the kernels compute it, for tests."""
    x_N = ready(x_N)
    out_N = torch.empty_like(x_N)
    _library().trellis_exponentials(x_N.data_ptr(), out_N.data_ptr(), x_N.numel())
    return out_N


def _library() -> ctypes.CDLL:
    library = _loaded().library
    if library is None:
        raise TrellisError("there are no native kernels here: ask trellis.ops.usable() before.")
    return library


def ready(tensor: Tensor, dtype: torch.dtype = torch.float32) -> Tensor:
    """The tensor as a kernel reads it: detached and contiguous, copied only if it was not."""
    if tensor.dtype != dtype or tensor.device.type != "cpu":
        raise TrellisError(f"a kernel takes {dtype} on the processor, not {tensor.dtype} on {tensor.device}.")
    return tensor.detach().contiguous()


def check(tensor: Tensor, shape: tuple[int, ...], name: str, dtype: torch.dtype = torch.float32) -> Tensor:
    """The same, after checking its shape: kernels trust the sizes they are given."""
    if tuple(tensor.shape) != shape:
        raise TrellisError(f"{name} has shape {tuple(tensor.shape)}, not {shape}.")
    return ready(tensor, dtype)


def call(name: str, structure: ctypes.Structure) -> None:
    """Run a kernel; the caller must keep the tensors alive until it returns."""
    answer = getattr(_library(), f"trellis_{name}")(ctypes.byref(structure))
    if answer == NO_MEMORY:
        raise MemoryError
    if answer == BAD_INDEX:
        raise IndexError("an index is outside of what it counts")


def fields(pointers: str, numbers: str, reals: str = "") -> list[tuple[str, type]]:
    """Fields of a structure, eight bytes each: pointers, then integers, then reals."""
    kinds = ((pointers, ctypes.c_void_p), (numbers, ctypes.c_int64), (reals, ctypes.c_double))
    return [(name, kind) for names, kind in kinds for name in names.split()]
