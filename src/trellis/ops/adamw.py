"""One step of AdamW for one parameter: native for contiguous float32 on the CPU, PyTorch's for every other tensor.

Natively, scaling the gradient (clipping), moments and update are one pass.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.autograd.graph import increment_version
from torch.optim.adamw import adamw

from trellis.errors import TrellisError
from trellis.ops.library import run, structure, usable

FUSED = ("cpu", "cuda")  # devices on which PyTorch's fused step is sure to exist


@dataclass
class AdamSteps:
    """What the steps of a parameter have in common, and how many have begun."""

    betas: tuple[float, float]  # how much of the moments of the gradient and of its square is kept
    decay: float  # decoupled weight decay, times the learning rate
    epsilon: float = 1e-8  # added to the root of the second moment
    taken: int = 0  # steps, the present one included

    def take(self) -> None:
        """Begin a step; the updates that follow belong to it."""
        self.taken += 1


_AdamCall = structure("param grad moment square", "numbers threads", "keep size root scale beta1 beta2 epsilon")


@torch.no_grad()
def adamw_(
    param: Tensor,
    grad: Tensor,
    moment: Tensor,
    square: Tensor,
    steps: AdamSteps,
    rate: float,
    *,
    scale: float = 1.0,
) -> None:
    """Move a parameter and its moments, in place, by the present step; the gradient counts `scale` times."""
    if steps.taken < 1:
        raise TrellisError("no step has begun: call take() before the updates of a step.")
    if not param.shape == grad.shape == moment.shape == square.shape:
        raise TrellisError("a parameter, its gradient and its moments have the same shape: mend them.")
    whole = all(tensor.is_contiguous() for tensor in (param, moment, square))
    if whole and usable(param, grad, moment, square):
        _native_step(param, grad, moment, square, steps, rate, scale)
    else:
        _torch_step(param, grad, moment, square, steps, rate, scale, whole and param.device.type in FUSED)
    increment_version((param, moment, square))  # which neither does by itself, and caches look at


def _torch_step(
    param: Tensor, grad: Tensor, moment: Tensor, square: Tensor, steps: AdamSteps, rate: float, scale: float,
    fused: bool,
) -> None:  # fmt: skip
    """For a tensor of any type, memory order and device; fused only if contiguous, or it would mix up the numbers."""
    before = torch.tensor(float(steps.taken - 1), device=param.device if fused else None)  # it counts this one itself
    adamw(
        [param], [(grad * scale).contiguous()], [moment], [square], [], [before], fused=fused,
        foreach=False, amsgrad=False, maximize=False, beta1=steps.betas[0], beta2=steps.betas[1],
        lr=rate, weight_decay=steps.decay, eps=steps.epsilon,
    )  # fmt: skip


def _native_step(
    param: Tensor, grad: Tensor, moment: Tensor, square: Tensor, steps: AdamSteps, rate: float, scale: float
) -> None:
    first, second = (1.0 - beta**steps.taken for beta in steps.betas)
    asked = _AdamCall(
        param=param, grad=grad, moment=moment, square=square, numbers=param.numel(),
        keep=1.0 - rate * steps.decay, size=rate / first, root=math.sqrt(second),
        scale=scale, beta1=steps.betas[0], beta2=steps.betas[1], epsilon=steps.epsilon,
    )  # fmt: skip
    run("adamw_step", asked)
