"""Two ways to learn from a batch: the gradient of its likelihood, or its expected counts.

Both add up what batches teach and then update once; sums over processes are taken in between, in one place.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from typing import NamedTuple

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.models.model import Model
from trellis.ops.precision import widened
from trellis.text import Batch
from trellis.training.adamw import AdamW
from trellis.training.distributed import World
from trellis.training.memory import keep_freed_memory
from trellis.training.objectives import OBJECTIVES
from trellis.training.phases import Phase
from trellis.training.settings import CompleteSettings
from trellis.training.sgd import SGD

NO_NETWORKS = "training.network_lr is for an encoder with networks: leave it out, or set model.encoder."


class Learnt(NamedTuple):
    """What a batch cost: its nats and tokens in this process, and the state to carry on from."""

    nats: float
    tokens: int
    state: Tensor


class Learner:
    """Learns from batches, then updates the model; this one has nothing to learn.

    For a model that has no parameters: all it will ever know it counted when it was made.
    """

    rate = 0.0  # the highest learning rate, or step size
    bearable = math.inf  # nats a token; a batch that costs more has diverged, and there is no need of its gradient

    def enter(self, phase: Phase, frozen: Sequence[nn.Parameter] = ()) -> None:
        """Learn as this phase says from here on; these parameters stay as they are meanwhile."""

    def learn(self, batch: Batch, state: Tensor | None) -> Learnt:
        """Add what a batch teaches."""
        raise NotImplementedError

    def update(self, tokens: float, multiplier: float) -> None:
        """Move the parameters by what `tokens` tokens in all processes taught, at this share of the full rate."""

    def tensors(self) -> dict[str, Tensor]:
        """What a checkpoint must hold beside the model."""
        return {}

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up where a checkpoint left off."""


def products_in(precision: str, device: torch.device) -> AbstractContextManager[object]:
    """A context in which matrix products on this device have this precision."""
    return torch.autocast(device.type, torch.bfloat16) if precision == "bf16" else nullcontext()


def check_possible(log_prob_BT: Tensor) -> None:
    """Refuse to learn from a token of probability zero, or from numbers that are not numbers."""
    if bool(torch.isfinite(log_prob_BT).all()):
        return
    row, position = (~torch.isfinite(log_prob_BT)).nonzero()[0].cpu().tolist()
    what = "diverged: lower training.lr" if bool(log_prob_BT.isnan().any()) else "impossible: raise training.smoothing"
    raise TrellisError(f"the token at row {row}, position {position} of the batch is {what}.")


def highest_rates(model: Model, settings: CompleteSettings) -> list[float]:
    """The highest learning rate of each parameter: an encoder's networks may have another than all the rest."""
    networks = {id(parameter) for parameter in model.network_parameters()}
    if settings.network_lr is None:
        return [settings.lr for _ in model.parameters()]
    if not networks:
        raise TrellisError(NO_NETWORKS)
    return [settings.network_lr if id(p) in networks else settings.lr for p in model.parameters()]


class GradientLearner(Learner):
    """AdamW, or plain SGD, on the mean of the objective over tokens."""

    def __init__(self, model: Model, settings: CompleteSettings, world: World = World()) -> None:  # noqa: B008  # World is immutable
        self.model, self.settings, self.world = model, settings, world
        self.usual_tokens = settings.batch_size * settings.length * settings.accumulate
        keep_freed_memory()
        self.parameters = list(model.parameters())
        self.enter(Phase(settings.objective, settings.lr))
        self.optimizer: AdamW | SGD
        if settings.method == "sgd":
            self.optimizer = SGD(self.parameters, settings.weight_decay)
        else:
            self.optimizer = AdamW(self.parameters, (settings.betas[0], settings.betas[1]), settings.weight_decay)

    def enter(self, phase: Phase, frozen: Sequence[nn.Parameter] = ()) -> None:
        """Take the phase's objective and rates; frozen parameters count neither in a step nor in clipping."""
        self.objective, self.rate = OBJECTIVES[phase.objective], phase.lr
        self.rates = highest_rates(self.model, replace(self.settings, lr=phase.lr))
        self.frozen = {id(parameter) for parameter in frozen}

    def learn(self, batch: Batch, state: Tensor | None) -> Learnt:
        """Add the gradient of the batch's total, up to the constant that `update` takes out."""
        with products_in(self.settings.precision, self.model.device):
            log_prob_BT, state = self.objective(self.model, batch, state)
            check_possible(log_prob_BT)
            nats = -widened(log_prob_BT).sum()
            self._check_bearable(float(nats.detach()), batch.tokens)
            # Divided by what the tokens of an update usually are: near its final size, it stays within its precision.
            (nats / self.usual_tokens).backward()
        return Learnt(float(nats.detach()), batch.tokens, state.detach())

    def _check_bearable(self, nats: float, tokens: int) -> None:
        """Refuse to go on from where no model comes back: the gradient may be of rows in log space, and take hours."""
        if nats > self.bearable * tokens:
            raise TrellisError(f"training has diverged, at {nats / tokens:.0f} nats a token: lower training.lr.")

    def update(self, tokens: float, multiplier: float) -> None:
        """Sum gradients over processes, make them means, clip, and take a step."""
        # A process whose share of the batch was no rows has nothing to add, but takes part in the sum.
        moving = [p for p in self.parameters if id(p) not in self.frozen]
        gradients = {id(p): torch.zeros_like(p) if p.grad is None else p.grad for p in moving}
        self.world.sum_(gradients.values())
        to_mean = self.usual_tokens / tokens
        norm = float(nn.utils.get_total_norm(gradients.values())) * to_mean
        if not math.isfinite(norm):  # before it reaches the parameters, and a checkpoint
            raise TrellisError("the gradient of this update has diverged: lower training.lr.")
        scale = min(1.0, self.settings.clip / (norm + 1e-12)) * to_mean
        every = [gradients.get(id(p)) for p in self.parameters]
        self.optimizer.step(every, [rate * multiplier for rate in self.rates], scale)
        for parameter in self.parameters:
            parameter.grad = None

    def tensors(self) -> dict[str, Tensor]:
        """AdamW's moments and counts, by parameter; SGD has none."""
        return self.optimizer.tensors()

    def restore(self, tensors: dict[str, Tensor]) -> None:
        """Take up where a checkpoint left off."""
        self.optimizer.restore(tensors)


class BaumWelchLearner(Learner):
    """Expectation–maximisation, θ ← step · θ_new + (1 − step) · θ; a step of 1 on all the text is the classic."""

    def __init__(self, model: Model, settings: CompleteSettings, world: World = World()) -> None:  # noqa: B008  # World is immutable
        if not isinstance(model, HMM):
            raise TrellisError(f"Baum–Welch is for kind hmm, not {model.config.kind}: set training.method=adamw.")
        if settings.objective not in ("marginal", "joint"):
            raise TrellisError(f"Baum–Welch cannot learn by training.objective={settings.objective}: set method=adamw.")
        if not model.scalar:
            raise TrellisError(
                "Baum–Welch sets probabilities one by one: make model.support dense, start, transition and emission "
                "scalar."
            )
        self.model, self.settings, self.world = model, settings, world
        self.rate, self.objective = settings.step_size, settings.objective
        keep_freed_memory()
        self.counts: list[Tensor] | None = None

    def enter(self, phase: Phase, frozen: Sequence[nn.Parameter] = ()) -> None:
        """Take the phase's objective; there is no rate but the step size, and there are no embeddings to freeze."""
        self.objective = phase.objective

    def learn(self, batch: Batch, state: Tensor | None) -> Learnt:
        """Add the batch's expected counts."""
        labels_BT = batch.labels if self.objective == "joint" else None
        with products_in(self.settings.precision, self.model.device):
            found = self.model.expected_counts(batch.ids, state, batch.lengths, labels_BT)
        check_possible(found.log_prob_BT)
        new = [found.start_S, found.transition_SS, found.emission_VS]
        self.counts = new if self.counts is None else [a.add_(b) for a, b in zip(self.counts, new, strict=True)]
        return Learnt(-float(widened(found.log_prob_BT).sum()), batch.tokens, found.state)

    def update(self, tokens: float, multiplier: float) -> None:
        """Sum counts over processes, smooth, normalise, and move towards the result."""
        if self.counts is None:  # a process whose share of the batch was no rows
            self.counts = [torch.zeros_like(table) for table in self._tables()]
        self.world.sum_(self.counts)
        step = self.rate * multiplier
        old = self._tables()
        new = [self._normalise(count, dim) for count, dim in zip(self.counts, (0, 1, 0), strict=True)]
        if not self.counts[0].any():  # every row goes on from an earlier batch, which says nothing of starts
            new[0] = old[0]
        start_S, transition_SS, emission_VS = (a.lerp_(b, step) for a, b in zip(old, new, strict=True))
        self.model.set_tables(start_S, transition_SS, emission_VS.T)
        self.counts = None

    def _tables(self) -> list[Tensor]:
        start_S, transition_SS, emission_SV = self.model.tables()
        return [start_S, transition_SS, emission_SV.T]

    def _normalise(self, count: Tensor, dim: int) -> Tensor:
        smoothed = count + self.settings.smoothing
        total = smoothed.sum(dim, keepdim=True)
        # A state that was never visited and not smoothed knows nothing: all outcomes are equal.
        return torch.where(total > 0, smoothed / total, 1.0 / count.shape[dim])
