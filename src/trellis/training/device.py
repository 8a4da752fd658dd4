"""Where a run computes: a setting that everything follows."""

from __future__ import annotations

import os

import torch

from trellis.errors import TrellisError
from trellis.settings import nearest

DEVICES = ("auto", "cpu", "cuda", "mps")


def choose_device(name: str) -> torch.device:
    """The device of this name, of several GPUs the one that torchrun gave this process; `auto` takes a GPU if any."""
    there = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if name == "auto":
        name = next((gpu for gpu, found in there.items() if found), "cpu")
    try:
        device = torch.device(name)
    except RuntimeError:
        raise TrellisError(f"training.device cannot be '{name}': {nearest(name, DEVICES)}") from None
    if not (there[device.type] if device.type in there else _can_hold_tensors(device)):
        raise TrellisError(f"this machine has no {device.type} device: set training.device=cpu, or auto.")
    if name == "cuda":
        device = torch.device("cuda", int(os.environ.get("LOCAL_RANK", "0")))
    if device.type == "cuda" and device.index >= torch.cuda.device_count():
        raise TrellisError(f"there is no {device}: this machine has {torch.cuda.device_count()} GPUs.")
    return device


def _can_hold_tensors(device: torch.device) -> bool:
    """Whether a tensor can be made there: of types of device that are not ours, the only way to know."""
    try:
        torch.empty(0, device=device)
    except (RuntimeError, AssertionError):
        return False
    return True
