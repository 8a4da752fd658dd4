"""AdamW: moments of the gradient, and steps by them in native code or, to the same effect, in PyTorch."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor
from torch.optim.adamw import adamw

from trellis import kernels
from trellis.errors import TrellisError
from trellis.kernels import AdamSteps


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
            if kernels.usable(*tensors) and tensors[0].is_contiguous():  # and then its moments are
                kernels.adamw_(*tensors, self.steps, scale=scale)
            else:
                self._step_by_torch(*tensors, rate, scale)

    def _step_by_torch(
        self, parameter: Tensor, gradient: Tensor, moment: Tensor, square: Tensor, rate: float, scale: float
    ) -> None:
        """The same for a tensor of any type, order and place."""
        before = torch.tensor(float(self.steps.taken - 1), device=parameter.device)  # it counts for itself
        adamw(
            [parameter], [(gradient * scale).contiguous()], [moment], [square], [], [before],
            fused=parameter.is_contiguous(),  # or it would pair up wrong numbers, silently
            foreach=False, amsgrad=False, maximize=False, beta1=self.steps.betas[0], beta2=self.steps.betas[1],
            lr=rate, weight_decay=self.steps.decay, eps=self.steps.epsilon,
        )  # fmt: skip

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
