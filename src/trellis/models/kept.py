"""What was made of a model's parameters, kept as long as they stay as they are."""

from __future__ import annotations

from collections.abc import Callable, Hashable
from typing import Any, TypeVar

import torch
from torch import Tensor, nn

from trellis.ops import status
from trellis.ops.precision import in_bf16

T = TypeVar("T")


class Kept:
    """Things by name; all are dropped when a parameter or buffer has changed, moved, or is computed with otherwise.

    PyTorch counts changes in place, but for those made through `.data`. Whoever writes a training loop may make such
    ones, so that of a module in training mode the numbers themselves are kept too, and compared.
    """

    def __init__(self) -> None:
        self.key: Hashable = None
        self.found: dict[str, Any] = {}
        self.numbers: list[Tensor] = []

    def get(self, module: nn.Module, name: str, make: Callable[[], T]) -> T:
        """The thing of this name, made if it is not there."""
        key = _state_of(module)
        if key is None:
            return make()
        numbers = [tensor.detach() for tensor in _tensors(module)] if module.training else []
        if key != self.key or not _same(numbers, self.numbers):
            self.key, self.found, self.numbers = key, {}, [tensor.clone() for tensor in numbers]
        if name not in self.found:
            self.found[name] = make()
        thing: T = self.found[name]
        return thing


def _state_of(module: nn.Module) -> Hashable:
    """A key that changes with every update of the module's numbers: PyTorch counts those in place.

    None where it does not: of a module that was made in inference mode.
    """
    tensors = _tensors(module)
    if any(tensor.is_inference() for tensor in tensors):
        return None
    devices = {tensor.device for tensor in tensors}
    how = status().level, *(in_bf16(device) for device in sorted(devices, key=str)), torch.is_inference_mode_enabled()
    return how, tuple((id(tensor), tensor._version, tensor.dtype, tensor.device) for tensor in tensors)


def _tensors(module: nn.Module) -> list[Tensor]:
    return [*module.parameters(), *module.buffers()]


def _same(tensors: list[Tensor], others: list[Tensor]) -> bool:
    return len(tensors) == len(others) and all(map(torch.equal, tensors, others))
