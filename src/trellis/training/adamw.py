"""AdamW: moments of the gradient, and steps by them."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.ops.adamw import AdamSteps, adamw_


class AdamW:
    """Adam with decoupled weight decay; a parameter without a gradient stays as it is, and so do its moments."""

    def __init__(self, parameters: Sequence[Tensor], betas: tuple[float, float], decay: float) -> None:
        self.parameters = list(parameters)
        self.steps = [AdamSteps(betas, decay) for _ in self.parameters]
        self.moments = [torch.zeros_like(parameter) for parameter in self.parameters]
        self.squares = [torch.zeros_like(parameter) for parameter in self.parameters]

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], rates: Sequence[float], scale: float = 1.0) -> None:
        """Move each parameter, at a learning rate of its own, by gradients that count `scale` times."""
        kept = zip(self.parameters, self.moments, self.squares, self.steps, strict=True)
        for (parameter, moment, square, steps), gradient, rate in zip(kept, gradients, rates, strict=True):
            if gradient is not None:
                steps.take()
                adamw_(parameter, gradient, moment, square, steps, rate, scale=scale)

    def tensors(self) -> dict[str, Tensor]:
        """Moments and counts by parameter, named as `torch.optim.AdamW` does."""
        kept = {f"{i}.step": torch.tensor(float(steps.taken)) for i, steps in enumerate(self.steps)}
        for name, tensors in (("exp_avg", self.moments), ("exp_avg_sq", self.squares)):
            kept |= {f"{i}.{name}": tensor for i, tensor in enumerate(tensors)}
        return kept

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up where `tensors` left off, in the precision that the parameters have by now."""
        wanted, found = ({name: t.shape for name, t in these.items()} for these in (self.tensors(), tensors))
        if wanted != found:
            raise TrellisError("the moments of AdamW in this checkpoint are not those of this model: start a new run.")
        for i, steps in enumerate(self.steps):
            steps.taken = int(tensors[f"{i}.step"])
        for name, kept in (("exp_avg", self.moments), ("exp_avg_sq", self.squares)):
            kept[:] = [torch.empty_like(p).copy_(tensors[f"{i}.{name}"]) for i, p in enumerate(self.parameters)]
