"""What is chosen where nothing is said: settings that suit a text of this size, and why.

The rules were found by trials on texts of 12 thousand to 3 million words (docs/notebook.md).
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from typing import Any, NamedTuple

from trellis.models.hmm_config import HMMConfig
from trellis.models.model import ModelConfig
from trellis.text import IdFile
from trellis.training.settings import Batching, CompleteSettings, TrainingSettings


class Size(NamedTuple):
    """What suits texts up to some size."""

    tokens: float  # that a text has at most
    states: int
    width: int
    rows: int  # of a batch
    length: int  # of a row
    epochs: float
    lr: float  # of vectors


SIZES = (
    Size(30_000, 128, 32, 8, 16, 8, 0.05),
    Size(120_000, 256, 64, 16, 32, 8, 0.05),
    Size(500_000, 512, 64, 64, 32, 5, 0.05),
    Size(1_500_000, 512, 64, 64, 32, 3, 0.03),
    Size(5_000_000, 512, 64, 128, 32, 1, 0.03),
    Size(math.inf, 512, 128, 200, 64, 1, 0.03),
)
LONG = 8_000_000  # tokens that are learnt from in a few minutes: of more text, a part
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
    size = _size(tokens)
    states = told.get("states") or size.states
    if scalar:
        return {"states": states}
    parts = dict.fromkeys(("start", "transition", "emission"), "low_rank")
    return {"states": states, **parts, "width": min(size.width, states)}


def training_for(settings: TrainingSettings, text: IdFile, model: ModelConfig) -> CompleteSettings:
    """The settings with all that was left open chosen for this text and model."""
    size = _size(len(text))
    chosen = {
        "batching": batching_for(text),
        "batch_size": size.rows,
        "length": size.length,
        "epochs": size.epochs if len(text) <= LONG else float(f"{LONG / len(text):.2g}"),
        "lr": rate_for(model, len(text)),
    }
    told = {name: value for name, value in _values(settings).items() if value is not None or name not in chosen}
    return CompleteSettings(**(chosen | told))


def batching_for(text: IdFile) -> Batching:
    """Streams for running text; sequences where no token marks the end of a document, for then each stands alone."""
    return "streams" if text.meta.eos_id is not None else "sequences"


def rate_for(model: ModelConfig, tokens: int) -> float:
    """A learning rate that suits the parameters of a model, and the size of its text."""
    if not isinstance(model, HMMConfig):
        return 3e-3
    if not model.roles():
        return 0.3
    return _size(tokens).lr if model.encoder == "table" else 0.01


def length_for(text: IdFile) -> int:
    """Tokens in a row that suit a text."""
    return _size(len(text)).length


def _size(tokens: int) -> Size:
    return next(size for size in SIZES if tokens <= size.tokens)


def _values(settings: TrainingSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
