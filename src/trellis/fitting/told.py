"""Settings as arguments: plain names, which this sorts to the text, the model and its training."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any, NamedTuple

from trellis.errors import InputError, TrellisError
from trellis.models import HMMConfig
from trellis.settings import build, nearest
from trellis.text import IdFile
from trellis.text.sources import DataSettings
from trellis.training import TrainingSettings
from trellis.training.defaults import model_for, training_for
from trellis.training.settings import CompleteSettings

ARGUMENTS = ("lengths", "valid", "tokenizer", "column", "quiet", "data_dir")  # of `fit`, for who spells them otherwise
OF_TEXT = ("vocab_size", "min_count")  # what can be told of how a text becomes tokens
OF_MODEL = {field.name for field in dataclasses.fields(HMMConfig)} - {"vocab_size", "architecture"}  # these are found
OF_TRAINING = {field.name for field in dataclasses.fields(TrainingSettings)}


class Told(NamedTuple):
    """What was said, checked as far as it can be before the data is known."""

    data: DataSettings
    model: Mapping[str, Any]
    training: TrainingSettings

    @classmethod
    def of(cls, settings: Mapping[str, Any], states: int | None, seed: int, data_dir: str | None) -> Told:
        """Sort settings by name; an unknown one is refused, with the nearest."""
        known = {*OF_TEXT, *OF_MODEL, *OF_TRAINING, *ARGUMENTS}
        for name in settings:
            if name not in known:
                raise InputError(f"there is no setting '{name}': {nearest(name, known)}")
        text = {name: value for name, value in settings.items() if name in OF_TEXT}
        model = {name: value for name, value in settings.items() if name in OF_MODEL}
        training = {name: value for name, value in settings.items() if name in OF_TRAINING}
        if states is not None:
            model["states"] = states
        try:
            build(HMMConfig, {"vocab_size": 2**31 - 1, "states": 2**10, **model})  # before any slow work
            data = build(DataSettings, {**text, "data_dir": data_dir})
            return cls(data, model, build(TrainingSettings, {**training, "seed": seed}))
        except TrellisError as error:
            raise InputError(str(error)) from error

    def shape(self, text: IdFile) -> HMMConfig:
        """The model: as told, and where nothing was, as suits the text."""
        chosen = model_for(len(text), text.meta.vocab_size, self.model, scalar=self.training.method == "baum_welch")
        return build(HMMConfig, {**chosen, **self.model, "vocab_size": text.meta.vocab_size})

    def learning(self, text: IdFile, shape: HMMConfig, *, running: bool) -> CompleteSettings:
        """The training: samples are learnt from whole, each from its start; a text in streams that carry the belief."""
        batching = self.training.batching or ("streams" if running else "sequences")
        return training_for(dataclasses.replace(self.training, batching=batching), text, shape)
