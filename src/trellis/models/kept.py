"""What was made of a model's parameters, kept as long as they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import nn

from trellis.ops import status
from trellis.ops.precision import in_bf16

T = TypeVar("T")


class Kept:
    """Things by name; all are dropped when a parameter or buffer has changed, moved, or is computed with otherwise."""

    def __init__(self) -> None:
        self.key: Hashable = None
        self.found: dict[str, Any] = {}

    def get(self, module: nn.Module, name: str, make: Callable[[], T]) -> T:
        """The thing of this name, made if it is not there."""
        key = _state_of(module)
        if key is None:
            return make()
        if key != self.key:
            self.key, self.found = key, {}
        if name not in self.found:
            self.found[name] = make()
        thing: T = self.found[name]
        return thing


def _state_of(module: nn.Module) -> Hashable:
    """A key that changes with every update of the module's numbers: PyTorch counts those in place.

    None where it does not: of a module that was made in inference mode.
    """
    tensors = [*module.parameters(), *module.buffers()]
    if any(tensor.is_inference() for tensor in tensors):
        return None
    devices = {tensor.device for tensor in tensors}
    how = status().level, *(in_bf16(device) for device in sorted(devices, key=str)), torch.is_inference_mode_enabled()
    return how, tuple((id(tensor), tensor._version, tensor.dtype, tensor.device) for tensor in tensors)
