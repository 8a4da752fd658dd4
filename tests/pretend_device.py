"""A pretend accelerator, for machines that have none: it computes on the processor, but keeps its tensors apart.

    with pretend_device() as device:
        model.to(device)

A tensor of the device wraps one of the processor. Every operation unwraps, computes and wraps again; one that mixes
devices is refused as CUDA would refuse it, so a test notices each tensor that was left behind.
"""

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from typing import Any
from unittest import mock

import torch
from torch import Tensor, nn
from torch._ops import OpOverload

# A type of device that PyTorch knows and this project does not use. "privateuseone", which is meant for devices from
# outside, runs gradients in a thread of its own: it must be registered before the first of them, and an operation
# that is refused there can end the process.
DEVICE = torch.device("lazy", 0)

aten = torch.ops.aten
CROSSES = {aten.copy_.default, aten._to_copy.default}
# All other functions that make tensors end in one of these, sometimes where PyTorch asks no class of tensors.
MAKES = (aten.empty.memory_format, aten.empty_strided.default, aten.copy_.default)


class PretendTensor(Tensor):
    """A tensor of the device: outside its shape and type, inside the tensor of the processor that has its numbers."""

    __torch_function__ = torch._C._disabled_torch_function_impl

    @staticmethod
    def __new__(cls, inside: Tensor) -> "PretendTensor":
        places = () if inside.is_sparse else (inside.stride(), inside.storage_offset())
        return Tensor._make_wrapper_subclass(
            cls, inside.shape, *places, dtype=inside.dtype, layout=inside.layout, device=DEVICE
        )

    def __init__(self, inside: Tensor) -> None:
        self.inside = inside

    @classmethod
    def __torch_dispatch__(cls, func: OpOverload, types: object, args: Any = (), kwargs: Any = None) -> Any:
        return _run(func, *args, **kwargs or {})

    @property
    def data(self) -> Tensor:
        """The numbers without their history."""
        return Tensor.data.__get__(self)

    @data.setter
    def data(self, new: "PretendTensor") -> None:
        Tensor.data.__set__(self, new)  # which knows the outside only
        self.inside = new.inside

    def tolist(self) -> list:
        """As Python's numbers, which PyTorch refuses to other classes than its own."""
        return self.inside.tolist()

    def data_ptr(self) -> int:
        """Refused: native code of the processor could not read what is there."""
        raise RuntimeError(f"a tensor on {self.device} has no address on the processor")

    def untyped_storage(self) -> torch.UntypedStorage:
        """The memory, by which safetensors knows tensors that share it."""
        return self.inside.untyped_storage()

    def __repr__(self, *, tensor_contents: object = None) -> str:
        return f"PretendTensor({self.inside!r})"


@contextmanager
def pretend_device() -> Iterator[torch.device]:
    """The device, for as long as tensors are made there; those that are left can still be computed with."""
    with torch.library._scoped_library("aten", "IMPL") as library, mock.patch.object(nn.Module, "_apply", _apply):
        for func in MAKES:
            library.impl(func, partial(_run, func), "Lazy")
        yield DEVICE


def _apply(module: nn.Module, *args: Any, _original: Any = nn.Module._apply, **kwargs: Any) -> nn.Module:
    """`Module.to` and its like, made to keep each parameter and change what it holds, as between real devices."""
    before = torch.__future__.get_swap_module_params_on_conversion()
    torch.__future__.set_swap_module_params_on_conversion(True)
    try:
        return _original(module, *args, **kwargs)
    finally:
        torch.__future__.set_swap_module_params_on_conversion(before)


def _run(func: OpOverload, *args: Any, **kwargs: Any) -> Any:
    """Compute on the processor what is asked of the device."""
    if func._can_decompose():  # inference mode does not take apart what is made of other operations
        return func.decompose(*args, **kwargs)
    flat = [*_leaves((args, kwargs))]
    tensors, written = [x for x in flat if isinstance(x, Tensor)], _written(func, args, kwargs)
    if func not in CROSSES:
        _refuse_mixtures(func, tensors, written)
    # A device that is named decides; otherwise the result stays where the arguments are.
    here = DEVICE.type in ([x.type for x in flat if isinstance(x, torch.device)] or [x.device.type for x in tensors])
    if here and any(isinstance(x, torch.Generator) for x in flat):  # there is none but the processor's
        raise RuntimeError(f"Expected a '{DEVICE.type}' device type for generator but found 'cpu' ({func})")
    out = func(*_mapped(_inside, args), **_mapped(_inside, kwargs))
    for x in written:
        if isinstance(x, PretendTensor) and (x.shape, x.stride()) != (x.inside.shape, x.inside.stride()):
            x.data = PretendTensor(x.inside)
    back = {id(_inside(x)): x for x in written}  # what is changed in place is returned itself

    def outside(x: Any) -> Any:
        return back.get(id(x), PretendTensor(x) if here else x) if isinstance(x, Tensor) else x

    return _mapped(outside, out)


def _leaves(x: Any) -> Iterator[Any]:
    """All that an operation is given, out of its lists."""
    if isinstance(x, list | tuple | dict):
        for y in x.values() if isinstance(x, dict) else x:
            yield from _leaves(y)
    else:
        yield x


def _mapped(function: Callable[[Any], Any], x: Any) -> Any:
    """The same with a function of each of these."""
    if isinstance(x, dict):
        return {name: _mapped(function, y) for name, y in x.items()}
    return type(x)(_mapped(function, y) for y in x) if isinstance(x, list | tuple) else function(x)


def _inside(x: Any) -> Any:
    """What the processor is given for this argument."""
    if isinstance(x, torch.device) and x.type == DEVICE.type:
        return torch.device("cpu")
    return x.inside if isinstance(x, PretendTensor) else x


def _written(func: OpOverload, args: Any, kwargs: Any) -> list[Tensor]:
    """The tensors that an operation changes."""
    given = [args[place] if place < len(args) else kwargs.get(name) for place, name in _writes(func)]
    return [x for x in _leaves(given) if isinstance(x, Tensor)]


@functools.cache
def _writes(func: OpOverload) -> list[tuple[int, str]]:
    """Places and names of the arguments that an operation changes."""
    arguments = enumerate(func._schema.arguments)
    return [(place, one.name) for place, one in arguments if one.alias_info and one.alias_info.is_write]


def _refuse_mixtures(func: OpOverload, tensors: list[Tensor], written: list[Tensor]) -> None:
    """Only single numbers may come from the processor, to be read; a stricter rule than CUDA's for indices alone."""
    strangers = [x for x in tensors if not isinstance(x, PretendTensor)]
    if len(strangers) == len(tensors):
        return
    if any(x.dim() > 0 for x in strangers) or not all(isinstance(x, PretendTensor) for x in written):
        shapes = ", ".join(str(tuple(x.shape)) for x in strangers)
        raise RuntimeError(
            f"Expected all tensors to be on the same device, but found at least two devices, {DEVICE} and cpu: {func} "
            f"got {shapes} from the cpu"
        )
