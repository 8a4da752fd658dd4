"""Plain steps along the gradient, by which recurrent networks of words are often trained."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from trellis.errors import TrellisError


class SGD:
    """Stochastic gradient descent without momentum, with decoupled weight decay; it remembers nothing."""

    def __init__(self, parameters: Sequence[Tensor], decay: float) -> None:
        self.parameters, self.decay = list(parameters), decay

    @torch.no_grad()
    def step(self, gradients: Sequence[Tensor | None], rates: Sequence[float], scale: float = 1.0) -> None:
        """Move each parameter, at a learning rate of its own, by gradients that count `scale` times."""
        for parameter, gradient, rate in zip(self.parameters, gradients, rates, strict=True):
            if gradient is None:  # which stays as it is
                continue
            if self.decay:
                parameter.mul_(1.0 - rate * self.decay)
            parameter.add_(gradient, alpha=-rate * scale)

    def tensors(self) -> dict[str, Tensor]:
        """Nothing: between steps the parameters are all there is."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Nothing to take up; what another method left is refused."""
        if tensors:
            raise TrellisError("this checkpoint is not one of SGD: go on with the method it began with.")
