"""What autocast asks of products on a device, and how to be exempt from it."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext

import torch


def _autocasting(device: torch.device) -> bool:
    """Whether autocast is on; of device types it does not know, PyTorch refuses to say."""
    return torch.amp.is_autocast_available(device.type) and torch.is_autocast_enabled(device.type)


def in_bf16(device: torch.device) -> bool:
    """Whether autocast asks for bf16 products on this type of device."""
    return _autocasting(device) and torch.get_autocast_dtype(device.type) == torch.bfloat16


def full_precision(device: torch.device) -> AbstractContextManager[object]:
    """A context in which products keep the precision of their inputs, whatever autocast asks for.

    Where autocast is off this does nothing, because an autocast object cannot be made for every type of device.
    """
    return torch.autocast(device.type, enabled=False) if _autocasting(device) else nullcontext()


def as_before(device: torch.device, bf16: bool) -> AbstractContextManager[object]:
    """A context in which products on the way back have the precision that they had on the way forward."""
    return torch.autocast(device.type, torch.bfloat16) if bf16 else full_precision(device)


def widened(tensor: torch.Tensor) -> torch.Tensor:
    """The tensor in the widest precision that its device has: float64, but on Apple's GPUs float32."""
    return tensor.to(torch.float32 if tensor.device.type == "mps" else torch.float64)


def at_most_zero(log_prob: torch.Tensor) -> torch.Tensor:
    """Log-probabilities without what rounding put above zero; their gradient is as it was."""
    return log_prob - log_prob.detach().clamp_min(0.0)
