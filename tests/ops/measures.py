"""What the tests of several operations have in common."""

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode


def drawn(*shape: int, seed: int = 0, dtype: torch.dtype = torch.float32) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=dtype)


def with_gradients(function: Callable[..., Tensor], inputs: Sequence[Tensor], seed: int = 1) -> list[Tensor]:
    """The function's value and its gradients by all inputs, weighted at random."""
    leaves = [tensor.detach().clone().requires_grad_() for tensor in inputs]
    value = function(*leaves)
    value.backward(drawn(*value.shape, seed=seed).to(value))
    return [value.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)]


def assert_near(found: Sequence[Tensor], wanted: Sequence[Tensor], near: float = 1e-5) -> None:
    """Each within so much of its largest entry, as a sum of products is."""
    assert len(found) == len(wanted)
    for mine, true in zip(found, wanted, strict=True):
        mine, true = mine.detach().double(), true.detach().double()
        assert mine.shape == true.shape
        if true.numel():
            torch.testing.assert_close(mine, true, rtol=0, atol=near * max(1e-30, float(true.abs().max())))


class Operations(TorchDispatchMode):
    """Counts what PyTorch is asked to do."""

    def __init__(self) -> None:
        super().__init__()
        self.names: Counter[str] = Counter()

    def __torch_dispatch__(self, func: Any, types: object, args: Any = (), kwargs: Any = None) -> Any:
        self.names[func.overloadpacket.__name__] += 1
        return func(*args, **(kwargs or {}))


def operations(function: Callable[..., Tensor], inputs: Sequence[Tensor]) -> Counter[str]:
    """How often each operation is asked for, forward and back."""
    with Operations() as asked:
        with_gradients(function, inputs)
    return asked.names


def in_threads(threads: int, function: Callable[[], list[Tensor]]) -> list[Tensor]:
    """What the function answers when there are so many threads."""
    before = torch.get_num_threads()
    torch.set_num_threads(threads)
    try:
        return function()
    finally:
        torch.set_num_threads(before)
