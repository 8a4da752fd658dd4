"""The library of native kernels: whether it was built, which processor level it uses, and calls into it.

It has a plain C interface and is loaded by ctypes when first asked about. Tensors go in as pointers; the structures
that each operation declares mirror src/native/api.h.
"""

from __future__ import annotations

import ctypes
import functools
import logging
import os
import shlex
import shutil
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from torch import Tensor

from trellis.errors import TrellisError

PATH = Path(__file__).parents[1] / "_kernels.so"
VARIABLE = "TRELLIS_KERNELS"
# In the library's numbering. The last two stand in for other processors, for tests.
LEVELS = {"portable": 0, "avx2": 1, "avx512": 2, "amx": 3, "amx-emulated": 4, "avx512-without-bf16": 5}
FEATURES = ("avx2", "avx512", "avx512_bf16", "amx")  # bits of what the library finds
NO_MEMORY, BAD_INDEX = 2, 3  # what a call that failed returns
# More of a kind is made quickest by itself.
EMPTY = {dtype: torch.empty(0, dtype=dtype, device="cpu") for dtype in (torch.float32, torch.float64, torch.int64)}


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
        return _Loaded(None, None, _not_built())
    try:
        library = ctypes.CDLL(str(PATH))
    except OSError as error:
        return _Loaded(None, None, f"the native kernels cannot be loaded here ({error}): install Trellis again.")
    library.trellis_products.restype = ctypes.c_double
    library.trellis_use.argtypes = [ctypes.c_int64]
    library.trellis_products.argtypes = [ctypes.c_int64, ctypes.c_int64]
    if wanted:
        if not library.trellis_use(LEVELS[wanted]):
            raise TrellisError(f"{VARIABLE}={wanted} is more than this processor has: take less, or unset it.")
        return _Loaded(library, wanted, f"{VARIABLE}={wanted} asks for it.")
    best = next(level for level in ("amx", "avx512", "avx2", "portable") if library.trellis_use(LEVELS[level]))
    return _Loaded(library, best, "the best that this processor has.")


def compiler() -> str | None:
    """The C++ compiler that an installation would use: CXX, or one of the usual names."""
    asked = shlex.split(os.environ.get("CXX", ""))[:1]
    return next(filter(None, map(shutil.which, asked or ("c++", "g++", "clang++"))), None)


def _not_built() -> str:
    """Why there is no library, and what would make one: a checkout has its sources at hand."""
    package, found = PATH.parent, compiler()
    again = "install Trellis again from its sources"
    if (package.parent / "native" / "api.cpp").exists():
        again = f"run pip install --verbose --editable {shlex.quote(str(package.parents[1]))}"
    if found:
        return f"the native kernels were not built, though there is a compiler, {found}: {again}."
    return f"the native kernels were not built: install a C++ compiler, then {again}."


def status() -> Status:
    """Which kernels are in use, and why."""
    loaded = _loaded()
    bits = loaded.library.trellis_features() if loaded.library else 0
    return Status(loaded.level, loaded.reason, tuple(name for i, name in enumerate(FEATURES) if bits >> i & 1))


def usable(*tensors: Tensor | None, dtype: torch.dtype = torch.float32) -> bool:
    """Whether native kernels for this dtype can take these tensors, on the CPU. If there are no kernels, warns once."""
    loaded = _loaded()
    if loaded.level is None:
        if loaded.library is None and not loaded.told and os.environ.get(VARIABLE) != "off":
            logging.getLogger("trellis").warning("PyTorch does all the work: %s", loaded.reason)
        loaded.told = True
        return False
    return all(tensor is None or (tensor.dtype == dtype and tensor.is_cpu) for tensor in tensors)


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


def _library() -> ctypes.CDLL:
    library = _loaded().library
    if library is None:
        raise TrellisError("there are no native kernels here: ask trellis.ops.usable() before.")
    return library


class Arguments(ctypes.Structure):
    """What a kernel is given: tensors, the sizes that they have by their names, and numbers; see `structure`.

    Kernels trust it, so tensors are checked here, copied if they are not contiguous, and kept alive. A tensor that the
    kernel writes to must be contiguous, or the copy is written to; what `empty` makes is.
    """

    __slots__ = ("_kept", "_sizes")  # and no others: a name that is no field is an error
    dtypes: ClassVar[dict[str, torch.dtype]]  # of the tensors
    optional: ClassVar[frozenset[str]]  # tensors for which None may be given

    def __init__(self, **given: Any) -> None:
        self._kept: list[Tensor] = []
        self._sizes = {name: number for name, number in given.items() if name not in self.dtypes}
        pointers = {}
        for name, tensor in given.items():
            if name in self.dtypes and not (tensor is None and name in self.optional):
                _fit(self._sizes, name, tensor)
                self._kept.append(tensor := ready(tensor, self.dtypes[name]))
                pointers[name] = tensor.data_ptr()
        super().__init__(threads=torch.get_num_threads(), **self._sizes, **pointers)

    def empty(self, name: str) -> Tensor:
        """New memory for a result, of the shape that its name says."""
        made = EMPTY[self.dtypes[name]].new_empty(*[self._sizes[letter] for letter in _letters(name)])
        self._kept.append(made)
        setattr(self, name, made.data_ptr())
        return made


def structure(pointers: str, numbers: str, reals: str = "", dtype: torch.dtype = torch.float32) -> type[Arguments]:
    """The mirror of a struct of api.h, by the names of its pointers, integers and reals.

    A pointer leads to numbers of `dtype`, or to int64 or float64 if `:int` or `:double` follows its name; it is null if
    no tensor is given. Where a `?` ends it, None may be given too.
    """
    known = {"": dtype, "int": torch.int64, "double": torch.float64}
    optional = frozenset(one.rstrip("?").partition(":")[0] for one in pointers.split() if one.endswith("?"))
    dtypes = {name: known[kind] for name, _, kind in (one.rstrip("?").partition(":") for one in pointers.split())}
    kinds = ((dtypes, ctypes.c_void_p), (numbers.split(), ctypes.c_int64), (reals.split(), ctypes.c_double))
    fields = [(name, kind) for names, kind in kinds for name in names]
    return type(
        "Arguments", (Arguments,), {"_fields_": fields, "__slots__": (), "dtypes": dtypes, "optional": optional}
    )


def both_structures(pointers: str, numbers: str) -> dict[torch.dtype, type[Arguments]]:
    """The mirrors of a struct that is there for float32 and for float64."""
    return {dtype: structure(pointers, numbers, dtype=dtype) for dtype in (torch.float32, torch.float64)}


def check(**tensors: Tensor | None) -> None:
    """Refuse tensors that disagree about the sizes in their names: rows_NR and columns_VR have the same R."""
    sizes: dict[str, int] = {}
    for name, tensor in tensors.items():
        if tensor is not None:
            _fit(sizes, name, tensor)


def _fit(sizes: dict[str, int], name: str, tensor: Tensor) -> None:
    """Add a tensor's sizes to those known, which it must agree with."""
    if not isinstance(tensor, Tensor):
        raise TrellisError(f"{name} cannot be {type(tensor).__name__}: give a tensor.")
    if letters := _letters(name):
        fits = len(letters) == tensor.dim()
        for letter, size in zip(letters, tensor.shape, strict=False):
            fits &= sizes.setdefault(letter, size) == size
        if not fits:
            wanted = tuple(sizes.get(letter, letter) for letter in letters)
            raise TrellisError(f"{name} has shape {tuple(tensor.shape)}, not {wanted}.")


@functools.cache
def _letters(name: str) -> str:
    """The shape in a tensor's name: NR of rows_NR, none of start."""
    end = name.rpartition("_")[2]
    return end if end.isupper() else ""


def ready(tensor: Tensor, dtype: torch.dtype) -> Tensor:
    """The tensor as a kernel reads it: contiguous, copied only if it was not."""
    if tensor.dtype != dtype or not tensor.is_cpu:
        raise TrellisError(f"a kernel takes {dtype} on the processor, not {tensor.dtype} on {tensor.device}.")
    return tensor.contiguous()


def run(name: str, arguments: Arguments, *results: str) -> list[Tensor]:
    """Run a kernel, and return the results that it writes."""
    made = [arguments.empty(result) for result in results]
    call(name, arguments)
    return made


def named(name: str, dtype: torch.dtype) -> str:
    """The kernel of this name for numbers of this kind."""
    return f"{name}_float64" if dtype == torch.float64 else name


def call(name: str, arguments: Arguments) -> None:
    """Run a kernel on memory that is there; every call passes here, where benchmarks measure."""
    answer = getattr(_library(), f"trellis_{name}")(ctypes.byref(arguments))
    if answer == NO_MEMORY:
        raise MemoryError
    if answer == BAD_INDEX:
        raise IndexError("an index is outside of what it counts")
