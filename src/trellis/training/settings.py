"""How to train: every setting, with its meaning."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Literal

from trellis.errors import TrellisError
from trellis.settings import nearest
from trellis.training.initialisers import INITIALISERS
from trellis.training.objectives import OBJECTIVES

Batching = Literal["windows", "streams", "sequences"]

RESTARTS = 5  # seeds, if nothing is said
BOUNDS = {  # beyond which a number is not meant, and a run would never end or never begin
    "epochs": (1e-6, 1e6), "validations": (1e-6, 1e9), "accumulate": (1, 10**6), "batch_size": (1, 2**31),
    "length": (1, 2**31),
}  # fmt: skip


@dataclass(frozen=True)
class TrainingSettings:
    """A training run. `epochs`, `batch_size` and the rest count over all processes together."""

    method: Literal["adamw", "sgd", "baum_welch"] = "adamw"  # by the gradient of the likelihood, or expected counts
    batching: Batching | None = None  # streams that carry the belief, independent windows, or sequences: every document
    # whole, from its start; by default streams, or sequences where the text has no mark for a document's end
    batch_size: int | None = None  # rows in a batch; by default from the size of the text
    length: int | None = None  # tokens in a row; of sequences, batch_size × length tokens are a batch, however long its
    # rows are; by default 32, and 16 of a small text
    shuffle: bool = True  # windows, or streams' documents, in another order every epoch; or the text as it stands
    accumulate: int = 1  # batches to one update
    epochs: float | None = None  # passes over the training text; by default from its size
    seed: int = 0  # of the parameters, the order of the text and everything else

    lr: float | None = None  # AdamW, SGD: highest learning rate; by default what suits the model's parameters
    network_lr: float | None = None  # the same for the networks of an HMM's encoder; by default training.lr
    betas: tuple[float, ...] = (0.9, 0.95)  # AdamW: decay of the gradient's first and second moment
    weight_decay: float | None = None  # AdamW, SGD: decoupled weight decay; by default 0.1 of an HMM's vectors, else 0
    clip: float = 5.0  # AdamW, SGD: largest norm of the gradient of the mean loss
    schedule: Literal["cosine", "plateau", "constant"] = "cosine"  # how the rate falls after the warm-up
    warmup: float = 0.05  # share of the run over which the rate, or the step size, rises from zero
    final: float = 0.1  # cosine: the last rate, as a share of the highest
    patience: int = 4  # plateau: validations without improvement before the rate falls
    factor: float = 0.25  # plateau: by what it falls

    full_batch: bool = False  # Baum–Welch: one update an epoch, from the counts of all of it
    step_size: float = 1.0  # Baum–Welch: θ ← step · θ_new + (1 − step) · θ; scheduled like the rate unless full-batch
    tolerance: float = 0.0  # Baum–Welch, full-batch: stop when an update gains less than so many nats a token
    smoothing: float = 1e-3  # Baum–Welch, counted labels: added to every count, so that no probability locks at zero

    objective: str = "marginal"  # likelihood of the tokens, or of tokens and given states (data.labels): joint
    init: str = "random"  # the first parameters: random, restarts (best seed on validation text), distill (a
    # teacher's), counts (of data.labels)
    restarts: int | None = None  # init=restarts: seeds to try; by default 5
    restart_steps: int = 100  # init=restarts: updates each of them gets before the choice, at most those of the run

    validations: float | None = None  # validations an epoch; by default 4, or so many that a run has about 20
    checkpoint_every: int = 200  # updates between checkpoints
    keep: int = 2  # newest checkpoints kept
    precision: Literal["float32", "bf16"] = "float32"  # of the matrix products
    device: str = "auto"  # where to compute: cpu, cuda, mps; auto takes a GPU if there is one

    def __post_init__(self) -> None:
        for name, value in vars(self).items():
            if isinstance(value, float) and not math.isfinite(value):
                raise TrellisError(f"training.{name} must be a finite number, not {value}.")
        for name in ("batch_size", "length", "accumulate", "restart_steps", "checkpoint_every", "keep"):
            value = getattr(self, name)
            if value is not None and value < 1:
                raise TrellisError(f"training.{name} must be at least 1, not {value}.")
        for name in ("epochs", "lr", "network_lr", "clip", "step_size", "validations"):
            value = getattr(self, name)
            if value is not None and not value > 0:
                raise TrellisError(f"training.{name} must be above 0, not {value}.")
        for name, (least, most) in BOUNDS.items():
            value = getattr(self, name)
            if value is not None and not least <= value <= most:
                raise TrellisError(
                    f"training.{name}={value:g} cannot be meant: give a number from {least:g} to {most:g}."
                )
        for name in ("warmup", "final", "step_size", "factor"):
            if not 0 <= getattr(self, name) <= 1:
                raise TrellisError(f"training.{name} must lie between 0 and 1, not {getattr(self, name)}.")
        for name in ("smoothing", "weight_decay", "patience", "tolerance"):
            value = getattr(self, name)
            if value is not None and value < 0:
                raise TrellisError(f"training.{name} cannot be negative, as {value} is.")
        if len(self.betas) != 2 or not all(0 <= beta < 1 for beta in self.betas):
            raise TrellisError(f"training.betas must be two numbers from 0 up to 1, not {list(self.betas)}.")
        for name, known in (("objective", OBJECTIVES), ("init", INITIALISERS)):
            if getattr(self, name) not in known:
                chosen = getattr(self, name)
                raise TrellisError(f"'training.{name}' cannot be {chosen!r}: {nearest(str(chosen), known)}")
        if self.restarts is not None and (self.restarts < 1 or (self.restarts > 1 and self.init != "restarts")):
            raise TrellisError(
                f"training.restarts={self.restarts} needs training.init=restarts, and at least 1: set both or neither."
            )
        if not 0 <= self.seed < 2**63 - (self.restarts or RESTARTS):
            raise TrellisError(f"training.seed must be a whole number from 0 to 2^63, not {self.seed}.")
        if self.full_batch and self.method != "baum_welch":
            raise TrellisError("training.full_batch is for Baum–Welch: set training.method=baum_welch too.")
        if self.tolerance and not self.full_batch:
            raise TrellisError("training.tolerance compares passes over all of the text: set training.full_batch=true.")


@dataclass(frozen=True)
class CompleteSettings(TrainingSettings):
    """Settings in which nothing is left to be chosen."""

    batching: Batching = "windows"
    batch_size: int = 200
    length: int = 64
    epochs: float = 1.0
    lr: float = 0.05
    weight_decay: float = 0.0
    validations: float = 4.0
