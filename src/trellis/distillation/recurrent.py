"""Teachers of our own that are recurrent: the LSTMs that `trellis train` makes."""

from __future__ import annotations

from pathlib import Path
from typing import cast

import torch
from torch import Tensor

from trellis.distillation.teachers import Source, Teacher, check_layer, no_tokenizer
from trellis.errors import TrellisError
from trellis.models import storage
from trellis.models.lstm import LSTM
from trellis.models.model import Model
from trellis.models.registry import config_class, load_model, model_class
from trellis.text import load_tokenizer
from trellis.text.tokenizer import TOKENIZER_FILE

KINDS = ("lstm", "awd_lstm")


def load(source: Source, layer: int) -> Teacher:
    """Load a saved network, or make a random one of its shape; its states are the outputs of its layers."""
    folder = source.config_file.parent
    kind = storage.kind_of(folder)
    if kind not in KINDS:
        raise TrellisError(
            f"{folder} holds a model of kind {kind}, which cannot teach: name a transformer or an LSTM as the teacher."
        )
    model = cast(LSTM, load_model(folder) if source.seed is None else _random(folder, kind, source.seed)).eval()
    tokenizer = load_tokenizer(folder) if (folder / TOKENIZER_FILE).is_file() else None
    if tokenizer is None and source.seed is None:
        raise no_tokenizer(source)
    layers = model.recurrence.layers
    at = check_layer(layer, len(layers), source.name)
    width = model.config.width if at == 0 else model.recurrence.widths[at - 1]

    @torch.inference_mode()
    def states(ids_BT: Tensor) -> Tensor:
        output_BTR = model.words.read(ids_BT)
        for one in layers[:at]:  # each from a state of zeros, where its texts begin
            output_BTR = one(output_BTR)[0]
        return output_BTR

    head_VR = model.words.vectors.detach()
    return Teacher(
        name=source.name,
        states=states,
        width=width,
        head_VR=head_VR if head_VR.shape[1] == width else None,
        vocab_size=model.config.vocab_size,
        tokenizer=tokenizer,
        begin=None,
        longest=None,
    )


def _random(folder: Path, kind: str, seed: int) -> Model:
    """A network of the same shape, its weights drawn from the seed."""
    shape, _ = storage.load(folder, config_class(kind))
    return model_class(kind)(shape, seed)
