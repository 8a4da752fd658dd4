"""AdamW: moments of the gradient, and steps by them in native code or, to the same effect, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trellis import kernels
from trellis.errors import TrellisError
from trellis.kernels import AdamSteps


def step_by_torch_(
    param: Tensor, grad: Tensor, moment: Tensor, square: Tensor, steps: AdamSteps, *, scale: float = 1.0
) -> None:
    """The twin of `kernels.adamw_`, for tensors of any type, order and place."""
    (keep, size, root), (beta1, beta2) = steps.recent[-1], steps.betas
    grad = grad * scale
    moment.lerp_(grad, 1.0 - beta1)
    square.mul_(beta2).addcmul_(grad, grad, value=1.0 - beta2)
    param.mul_(keep).addcdiv_(moment, square.sqrt().add_(steps.epsilon * root), value=-size * root)


class AdamW:
    """Adam with decoupled weight decay; all parameters take every step together."""

    def __init__(self, parameters: Sequence[Tensor], betas: tuple[float, float], decay: float) -> None:
        self.parameters, self.steps = list(parameters), AdamSteps(betas, decay)
        self.moments = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor], rate: float, scale: float = 1.0) -> None:
        """Move the parameters, at this learning rate, by gradients that count `scale` times."""
        self.steps.forget()  # every parameter has taken it
        self.steps.take(rate)
        for tensors in zip(self.parameters, gradients, self.moments, self.squares, strict=True):
            native = kernels.usable(*tensors) and tensors[0].is_contiguous()  # and then its moments are
            (kernels.adamw_ if native else step_by_torch_)(*tensors, self.steps, scale=scale)

    def tensors(self) -> dict[str, Tensor]:
        """Moments and counts by parameter, named as `torch.optim.AdamW` does."""
        kept = {f"{i}.step": torch.tensor(float(self.steps.taken)) for i in range(len(self.parameters))}
        for name, tensors in (("exp_avg", self.moments), ("exp_avg_sq", self.squares)):
            kept |= {f"{i}.{name}": tensor for i, tensor in enumerate(tensors)}
        return kept

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up where `tensors` left off, in the precision that the parameters have by now."""
        wanted, found = ({name: t.shape for name, t in these.items()} for these in (self.tensors(), tensors))
        if wanted != found:
            raise TrellisError("the moments of AdamW in this checkpoint are not those of this model: start a new run.")
        self.steps.taken = int(tensors["0.step"])
        for name, kept in (("exp_avg", self.moments), ("exp_avg_sq", self.squares)):
            kept[:] = [torch.empty_like(p).copy_(tensors[f"{i}.{name}"]) for i, p in enumerate(self.parameters)]
