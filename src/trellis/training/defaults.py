"""What is chosen where nothing is said: settings that suit a text of this size, and why.

The rules were found by trials on texts of 12 thousand to 3 million words (docs/notebook.md).
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from trellis.models.hmm_config import HMMConfig
from trellis.models.model import ModelConfig
from trellis.text import IdFile
from trellis.training.settings import Batching, CompleteSettings, TrainingSettings

# What the size of the training text decides: tokens it has at most, states, width, rows, their length, passes.
SIZES: tuple[tuple[float, int, int, int, int, float], ...] = (
    (30_000, 32, 32, 16, 16, 20),
    (120_000, 64, 64, 16, 32, 12),
    (500_000, 128, 64, 32, 32, 8),
    (1_500_000, 256, 64, 32, 32, 4),
    (5_000_000, 256, 64, 64, 32, 2),
    (float("inf"), 256, 64, 64, 64, 1),
)
SHAPE = ("states", "start", "transition", "emission", "width")  # of an HMM: chosen together
FREE = {"kind", "states", "memory", "memory_dropout", "bias", "dropout", "init_scale"}  # go with any such choice
CHOSEN = ("batching", "batch_size", "length", "epochs", "lr")  # of training


def model_for(tokens: int, told: Mapping[str, Any], *, scalar: bool = False) -> dict[str, Any]:
    """Settings of an HMM that suit a text, beside those that were told.

    Nothing is chosen where more than the number of states was told: then every setting's default stands. Where
    probabilities are set one by one, as by Baum–Welch, they are `scalar`.
    """
    if told.get("kind", HMMConfig.kind) != HMMConfig.kind or not told.keys() <= FREE:
        return {}
    _, states, width, *_ = _size(tokens)
    states = told.get("states") or states
    if scalar:
        return {"states": states}
    parts = dict.fromkeys(("start", "transition", "emission"), "low_rank")
    return {"states": states, **parts, "width": min(width, states)}


def training_for(settings: TrainingSettings, text: IdFile, model: ModelConfig) -> CompleteSettings:
    """The settings with all that was left open chosen for this text and model."""
    _, _, _, rows, _, epochs = _size(len(text))
    chosen = {
        "batching": batching_for(text),
        "batch_size": rows,
        "length": length_for(text),
        "epochs": epochs,
        "lr": rate_for(model),
    }
    told = {name: value for name, value in _values(settings).items() if value is not None or name not in chosen}
    return CompleteSettings(**(chosen | told))


def batching_for(text: IdFile) -> Batching:
    """Streams for running text; sequences where no token marks the end of a document, for then each stands alone."""
    return "streams" if text.meta.eos_id is not None else "sequences"


def rate_for(model: ModelConfig) -> float:
    """A learning rate that suits the parameters of a model."""
    if not isinstance(model, HMMConfig):
        return 3e-3
    if not model.roles():
        return 0.1
    return 0.03 if model.encoder == "table" else 0.01


def length_for(text: IdFile) -> int:
    """Tokens in a row that suit a text."""
    return _size(len(text))[4]


def _size(tokens: int) -> tuple[float, int, int, int, int, float]:
    return next(size for size in SIZES if tokens <= size[0])


def _values(settings: TrainingSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
