"""Tensors on disk, which are safetensors: what a file says of itself is checked before memory is taken for it."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import NamedTuple

import torch
from safetensors import SafetensorError, safe_open
from safetensors.torch import load_file, save_file
from torch import Tensor

from trellis.errors import TrellisError
from trellis.manifests import check_listed, checksum

DAMAGED = "is cut short or damaged: restore it or use an older checkpoint"


class Shape(NamedTuple):
    """What a file says of one of its tensors."""

    sizes: tuple[int, ...]
    whole: str | None  # the kind of numbers that count rather than measure; None: they measure

    def __str__(self) -> str:
        shape = "×".join(map(str, self.sizes)) or "one number"
        return shape if self.whole is None else f"{shape} of {self.whole}"

    @classmethod
    def of(cls, tensor: Tensor) -> Shape:
        """Of a tensor; what measures may be of any precision."""
        kind = None if tensor.is_floating_point() else str(tensor.dtype).removeprefix("torch.")
        return cls(tuple(tensor.shape), kind)


def write_tensors(path: Path, tensors: dict[str, Tensor]) -> None:
    """Write tensors as safetensors, with the operating system's own error if the disk is full."""
    path.touch()
    permissions = path.stat().st_mode & 0o777  # those of any new file; the library's are for the owner alone
    try:
        save_file({name: t.detach().contiguous() for name, t in tensors.items()}, path)
    except SafetensorError as error:  # it wraps every error of the disk in a type of its own
        if number := re.search(r"os error (\d+)", str(error)):
            raise OSError(int(number[1]), os.strerror(int(number[1]))) from error
        raise
    path.chmod(permissions)


def numbers_in(path: Path) -> int:
    """How many numbers the tensors of a file have in all, by its header alone."""
    try:
        with safe_open(path, "pt") as file:
            shapes = [file.get_slice(name).get_shape() for name in file.keys()]  # noqa: SIM118  # it is no dict
    except FileNotFoundError:
        raise _missing(path) from None
    except (SafetensorError, OSError, ValueError):
        raise TrellisError(f"{path} {DAMAGED}.") from None
    return sum(int(torch.Size(shape).numel()) for shape in shapes)


def read_tensors(path: Path, told: object = None) -> dict[str, Tensor]:
    """Read safetensors, refusing a file that is missing, cut short, or not as the folder's manifest says.

    Folders of older versions have no manifest; some of them told the file's SHA-256 beside it.
    """
    numbers_in(path)  # which refuses what is no such file at all, and says so rather than that it changed
    check_listed(path)
    try:
        if told is not None and checksum(path) != told:
            raise TrellisError(f"{path} has changed since it was written: restore it or use an older checkpoint.")
        return load_file(path)
    except FileNotFoundError:
        raise _missing(path) from None
    except (SafetensorError, OSError, ValueError):
        raise TrellisError(f"{path} {DAMAGED}.") from None


def _missing(path: Path) -> TrellisError:
    return TrellisError(f"{path.parent} has no {path.name}: it is not a whole model or checkpoint.")


def check_finite(tensors: dict[str, Tensor], where: object, impossible: frozenset[str] = frozenset()) -> None:
    """Refuse numbers that are none, naming the tensor; in logits of these names, −inf stands for impossible."""
    for name, tensor in tensors.items():
        if not tensor.is_floating_point() or bool(torch.isfinite(tensor).all()):
            continue
        bad = ~torch.isfinite(tensor)
        if name in impossible:
            bad &= tensor != -torch.inf
        if bool(bad.any()):
            raise TrellisError(
                f"{name} in {where} holds {float(tensor[bad].flatten()[0])}, which is no number to compute with: use "
                "an older checkpoint, or train again at a lower training.lr."
            )
