"""Every kind of model by its name: the one table that settings, files and the command line look it up in."""

from __future__ import annotations

import importlib
from os import PathLike
from typing import NamedTuple, cast

from trellis.errors import TrellisError
from trellis.models import storage
from trellis.models.model import Model, ModelConfig
from trellis.settings import nearest


class Kind(NamedTuple):
    """Where a kind of model lives: a module of `trellis.models`, and two of its classes."""

    module: str
    config: str
    model: str


DEFAULT = "hmm"
KINDS = {
    "hmm": Kind("hmm", "HMMConfig", "HMM"),
    "kneser_ney": Kind("kneser_ney", "KneserNeyConfig", "KneserNey"),
    "feed_forward": Kind("feed_forward", "FeedForwardConfig", "FeedForward"),
    "lstm": Kind("lstm", "LSTMConfig", "LSTM"),
    "awd_lstm": Kind("lstm", "AWDLSTMConfig", "AWDLSTM"),
    "transformer": Kind("transformer", "TransformerLMConfig", "TransformerLM"),
    "hmm_rnn": Kind("hmm_rnn", "HMMRNNConfig", "HMMRNN"),
}


def _find(kind: object) -> Kind:
    if not isinstance(kind, str) or kind not in KINDS:
        raise TrellisError(f"there is no kind of model '{kind}': {nearest(str(kind), KINDS)}")
    return KINDS[kind]


def config_class(kind: object) -> type[ModelConfig]:
    """The settings of a kind, imported when first asked for."""
    found = _find(kind)
    return cast(type[ModelConfig], getattr(importlib.import_module(f"trellis.models.{found.module}"), found.config))


def model_class(kind: object) -> type[Model]:
    """The model of a kind, imported when first asked for."""
    found = _find(kind)
    return cast(type[Model], getattr(importlib.import_module(f"trellis.models.{found.module}"), found.model))


def load_model(name: str | PathLike[str]) -> Model:
    """Read a model of any kind from a run's folder, a checkpoint or a saved model; scores are the same to the bit."""
    folder = storage.model_folder(name)
    return model_class(storage.kind_of(folder)).from_pretrained(folder)
