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
    epochs: float  # at most: of a small text, more would learn it by heart
    memory: int = 0  # last words that the next state depends on too
    memory_dropout: float = 0.0


SIZES = (
    Size(30_000, 128, 32, 8, 16, 8),
    Size(120_000, 256, 64, 16, 32, 8),
    Size(500_000, 512, 64, 64, 32, 6),
    Size(5_000_000, 512, 64, 128, 32, 8, 1, 0.3),
    Size(math.inf, 512, 64, 128, 64, 8, 1),
)
WORDS = 1_000  # types of a text of words; of fewer symbols, people want a plain HMM's tables
REMEMBERING = 1.45  # times the work of a step, where states remember a word
UPDATES = 300  # at least, in a run, however small the text is
VALIDATIONS = 20  # about, in a long run: each may save a model
WORK = 1.2e13  # multiplications and additions of a run: a minute and a half on two cores
FREE = {
    "kind",
    "states",
    "memory",
    "memory_dropout",
    "memory_words",
    "ngrams",
    "cache",
    "bias",
    "dropout",
    "init_scale",
}  # settings that go with any such choice
CHOSEN = ("batching", "batch_size", "length", "epochs", "lr", "weight_decay", "validations")  # of training


def model_for(tokens: int, types: int, told: Mapping[str, Any], *, scalar: bool = False) -> dict[str, Any]:
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
    return {"states": states, **parts, "width": min(size.width, states), **_memory(size, types, told)}


def _memory(size: Size, types: int, told: Mapping[str, Any]) -> dict[str, Any]:
    """How much states remember: as told, or as suits a text of words, unless what was told does not go with it."""
    suits = types >= WORDS and not {"memory", "memory_dropout", "dropout"} & told.keys()
    memory, dropout = (size.memory, size.memory_dropout) if suits else (0, 0.0)
    return {"memory": told.get("memory", memory), "memory_dropout": told.get("memory_dropout", dropout)}


def training_for(settings: TrainingSettings, text: IdFile, model: ModelConfig) -> CompleteSettings:
    """The settings with all that was left open chosen for this text and model."""
    size = _size(len(text))
    epochs = epochs_for(len(text), text.meta.vocab_size) if settings.epochs is None else settings.epochs
    chosen = {
        "batching": batching_for(text),
        "batch_size": min(size.rows, len(text)),
        "length": size.length,
        "epochs": epochs,
        "lr": rate_for(model),
        "weight_decay": 0.1 if _has_vectors(model) else 0.0,
        "validations": min(4.0, VALIDATIONS / epochs),
    }
    told = {name: value for name, value in _values(settings).items() if value is not None or name not in chosen}
    return CompleteSettings(**(chosen | told))


def batching_for(text: IdFile) -> Batching:
    """Streams for running text; sequences where documents end without a token for it, for then each stands alone."""
    return "streams" if text.meta.eos_id is not None or text.meta.documents == 1 else "sequences"


def rate_for(model: ModelConfig) -> float:
    """A learning rate that suits the parameters of a model."""
    if not isinstance(model, HMMConfig):
        return 3e-3
    if not _has_vectors(model):
        return 0.3
    return 0.05 if model.encoder == "table" else 0.01


def epochs_for(tokens: int, vocab_size: int) -> float:
    """Passes that suit a text: as many as a minute or two allow of the model that would be chosen, if they help."""
    size = _size(tokens)
    # Forward and backward: a step of the recursion, and a share of the emissions, which are made once a batch.
    work = 6.0 * size.states * (size.states + size.width * vocab_size / (size.rows * size.length))
    work *= REMEMBERING if size.memory and vocab_size >= WORDS else 1.0
    updates = max(1.0, tokens / (size.rows * size.length))  # of an epoch
    found = max(min(size.epochs, WORK / work / tokens), UPDATES / updates)
    return float(max(1, round(found))) if found > 0.75 else float(f"{found:.2g}")


def length_for(text: IdFile) -> int:
    """Tokens in a row that suit a text."""
    return _size(len(text)).length


def _has_vectors(model: ModelConfig) -> bool:
    """Whether probabilities are products of vectors, which a decay keeps short; free ones it would make equal."""
    return isinstance(model, HMMConfig) and bool(model.roles())


def _size(tokens: int) -> Size:
    return next(size for size in SIZES if tokens <= size.tokens)


def _values(settings: TrainingSettings) -> dict[str, Any]:
    return {field.name: getattr(settings, field.name) for field in dataclasses.fields(settings)}
