"""Hostile values in the place of good ones: shapes, types, indices, numbers that are none; whatever holds them."""

from __future__ import annotations

from collections.abc import Callable
from random import Random
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from torch import Tensor

INTEGERS = (0, 1, -1, 2, 3, 1000, 2**31, 2**40, 2**62, -(2**63))
OTHERS: tuple[Any, ...] = (None, "", "text", b"x", 1.5, float("nan"), True, [], [[1, 2], [3]], {}, object(), 10**30)


def hostile_tensor(tensor: Tensor, random: Random) -> Tensor:
    """Another tensor in the place of this one."""
    import torch

    whole = not tensor.is_floating_point()
    ways: list[Callable[[], Tensor]] = [
        lambda: tensor[:0],
        lambda: tensor.unsqueeze(random.randrange(tensor.dim() + 1)),
        lambda: tensor.flatten(),
        lambda: torch.cat([tensor, tensor]) if tensor.dim() else tensor,
        lambda: tensor[: max(1, len(tensor) // 2)] if tensor.dim() else tensor,
        lambda: tensor.transpose(0, -1) if tensor.dim() > 1 else tensor.flip(0) if tensor.dim() else tensor,
        lambda: tensor.repeat_interleave(2, -1)[..., ::2] if tensor.dim() else tensor,  # not contiguous, else the same
        lambda: tensor[:1].expand_as(tensor) if tensor.dim() and len(tensor) else tensor,
        lambda: tensor[..., :0],
        lambda: tensor.to(random.choice((torch.float64, torch.float16, torch.bfloat16, torch.int32, torch.int64,
                                         torch.bool, torch.uint8, torch.complex64))),
        lambda: torch.full_like(tensor, random.choice(INTEGERS) if whole and tensor.dtype == torch.int64 else 1),
        lambda: tensor.new_zeros(tensor.shape),
        *([_with_strange_numbers(tensor, random)] * 6),
    ]  # fmt: skip
    return random.choice(ways)()


def _with_strange_numbers(tensor: Tensor, random: Random) -> Callable[[], Tensor]:
    """The same with some of its numbers replaced."""
    import torch

    def make() -> Tensor:
        changed = tensor.detach().clone()
        flat = changed.reshape(-1)
        for _ in range(random.choice((1, 1, 3))):
            if not flat.numel():
                return changed
            place = random.randrange(flat.numel())
            if changed.is_floating_point():
                flat[place] = random.choice((float("nan"), float("inf"), -float("inf"), -1.0, 0.0, 1e-45, 3e38, 2.0))
            elif changed.dtype == torch.bool:
                flat[place] = not bool(flat[place])
            else:
                largest = int(flat.max())
                wanted = random.choice((-1, largest + 1, largest, 0, *INTEGERS))
                limits = torch.iinfo(changed.dtype)
                flat[place] = max(limits.min, min(limits.max, wanted))
        return flat.reshape(changed.shape)

    return make


def hostile(value: Any, random: Random) -> Any:
    """A hostile value in the place of this one; of what holds others, one of them is replaced."""
    import torch

    if random.random() < 0.05:
        return random.choice(OTHERS)
    if isinstance(value, torch.Tensor):
        return hostile_tensor(value, random)
    if isinstance(value, bool):
        return not value
    if isinstance(value, int):
        return random.choice((value + 1, value - 1, *INTEGERS))
    if isinstance(value, float):
        return random.choice((0.0, -1.0, float("nan"), float("inf"), 1e300, -value))
    if isinstance(value, tuple | list) and len(value):
        place = random.randrange(len(value))
        changed = [*value[:place], hostile(value[place], random), *value[place + 1 :]]
        if hasattr(value, "_fields"):
            return type(value)(*changed)
        return type(value)(changed)
    return random.choice(OTHERS)


def described(value: Any) -> str:
    """A value in a few words."""
    import torch

    if isinstance(value, torch.Tensor):
        small = value.flatten().tolist() if value.device.type == "cpu" and value.numel() <= 8 else "…"
        return f"{str(value.dtype).removeprefix('torch.')}{tuple(value.shape)}{small}"
    if isinstance(value, tuple | list):
        return f"{type(value).__name__}({', '.join(map(described, value[:12]))})"
    return repr(value)[:80]
