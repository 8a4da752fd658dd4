"""Causal transformers of the Hugging Face library: found and loaded, and their layers as networks.

A model that cannot be loaded whole is an error of one sentence, never silently another.
"""

from __future__ import annotations

import importlib.util
import json
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.models import storage

# Of a shape, what says nothing of the network: where it came from, and what its numbers were kept as.
_NO_SHAPE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id", "architectures")
_ENCODER = "model.encoder=pretrained"
_FOR_GGUF = ("gguf", "accelerate")  # packages without which transformers reads no such file


class CausalFiles(NamedTuple):
    """The files of a causal model, and the library that reads them.

    what    it is to be, for sentences: a teacher or a network
    name    as people gave it
    folder  that it lies in, or its config.json alone
    gguf    of a GGUF file, its name in the folder, as the library's functions take it
    """

    transformers: Any
    what: str
    name: str
    folder: Path
    gguf: dict[str, str]

    def config(self) -> Any:
        """Its shape."""
        try:
            return self.transformers.AutoConfig.from_pretrained(self.folder, **self.gguf, local_files_only=True)
        except Exception as error:  # the library and what it calls raise a dozen types for a broken folder
            raise self._not_loaded(error) from error

    def fresh(self, config: Any) -> Any:
        """A model of this shape, its weights drawn from PyTorch's generator."""
        try:
            return self.transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
        except Exception as error:  # as above
            raise self._not_loaded(error) from error

    def with_weights(self) -> Any:
        """The model itself: every weight must come from its files, as the library would draw missing ones and go on."""
        try:
            model, told = self.transformers.AutoModelForCausalLM.from_pretrained(
                self.folder, **self.gguf, dtype=torch.float32, local_files_only=True, output_loading_info=True
            )
        except Exception as error:  # as above
            raise self._not_loaded(error) from error
        lacking = sorted([*told["missing_keys"], *(one[0] for one in told["mismatched_keys"])])
        if lacking:
            raise TrellisError(
                f"the {self.what} {self.name} lacks weights of its shape ({lacking[0]} is one of {len(lacking)}): "
                f"fetch it again, or say {storage.RANDOM}{self.name} for fresh ones."
            )
        return model

    def _not_loaded(self, error: Exception) -> TrellisError:
        why = str(error).strip().partition("\n")[0].rstrip(".")[:200] or type(error).__name__
        return TrellisError(
            f"the {self.what} {self.name} cannot be loaded ({why}): name the whole folder of a causal model."
        )


def files_at(transformers: Any, path: Path, what: str, name: str) -> CausalFiles:
    """The files of a folder, of a config.json or of a GGUF file, which needs packages of its own.

    The library names one missing package at a time, and in many words.
    """
    if path.suffix != ".gguf":
        return CausalFiles(transformers, what, name, path, {})
    for package in _FOR_GGUF:
        if importlib.util.find_spec(package) is None:
            raise TrellisError(f"the {what} {name} needs the package {package}: run pip install 'trellis-lm[gguf]'.")
    return CausalFiles(transformers, what, name, path.parent, {"gguf_file": path.name})


def library(wanted_by: str) -> Any:
    """The transformers library, which is imported only where something needs it."""
    try:
        import transformers
    except ImportError:
        raise TrellisError(
            f"{wanted_by} needs the transformers library: run pip install 'trellis-lm[teachers]'."
        ) from None
    return transformers


@contextmanager
def quiet(transformers: Any) -> Iterator[None]:
    """No bars and advice of the library meanwhile: what matters of it is said by our own errors."""
    logging = transformers.utils.logging
    level, bars = logging.get_verbosity(), logging.is_progress_bar_enabled()
    logging.set_verbosity_error()
    logging.disable_progress_bar()
    try:
        yield
    finally:
        logging.set_verbosity(level)
        if bars:
            logging.enable_progress_bar()


class CausalNetwork(NamedTuple):
    """The layers of a causal language model, without its words.

    module        takes `inputs_embeds`, B×N×inputs, and gives `last_hidden_state`, B×N×width
    words_VE      the vectors of its tokens, which the module no longer has
    width         of its output
    architecture  its shape as JSON: all that `of_shape` needs
    """

    module: nn.Module
    words_VE: Tensor
    width: int
    architecture: str


def load_network(name: str, states: int) -> CausalNetwork:
    """The network of a model's folder, or of a GGUF file; `random:` before it draws fresh weights."""
    transformers = library(_ENCODER)
    with quiet(transformers):
        files = _files_of(transformers, name)
        config = files.config()
        _check_positions(config, name, states)
        return _network(files.fresh(config) if name.startswith(storage.RANDOM) else files.with_weights(), name)


def of_shape(architecture: str) -> CausalNetwork:
    """A network of this shape with fresh weights, which a saved model replaces by its own."""
    transformers = library(_ENCODER)
    saved = CausalFiles(transformers, "network", "of the saved model", Path(), {})
    with quiet(transformers):
        config = transformers.AutoConfig.for_model(**json.loads(architecture))
        return _network(saved.fresh(config), saved.name)


def shape_of(name: str) -> str:
    """The shape of the network that a folder or GGUF file holds, as JSON."""
    transformers = library(_ENCODER)
    with quiet(transformers):
        return _described(_files_of(transformers, name).config())


def _files_of(transformers: Any, name: str) -> CausalFiles:
    path = storage.find_model(name.removeprefix(storage.RANDOM), "network", "model.network")
    return files_at(transformers, path, "network", name)


def _check_positions(config: Any, name: str, states: int) -> None:
    """Refuse a table of positions that is too short; rotary positions go on for ever."""
    text = config.get_text_config()
    positions, rotary = getattr(text, "max_position_embeddings", None), getattr(text, "rope_parameters", None)
    if positions is not None and not rotary and positions < states:
        raise TrellisError(
            f"the network {name} has {positions:,} positions, too few for {states:,} states: set model.states to "
            f"{positions:,} at most, or name a network with more."
        )


def _network(model: Any, name: str) -> CausalNetwork:
    """The layers of a language model; its word vectors are not needed any longer, nor its output head."""
    layers, words = model.base_model, model.get_input_embeddings()
    if layers is model or not isinstance(words, nn.Embedding):
        raise TrellisError(f"the network {name} cannot be fed with vectors: name the folder of another causal model.")
    width = model.config.get_text_config().hidden_size
    layers.set_input_embeddings(nn.Identity())
    return CausalNetwork(layers, words.weight.detach(), width, _described(model.config))


def _described(config: Any) -> str:
    """A shape as JSON, always in the same order."""
    told = {name: value for name, value in config.to_dict().items() if name not in _NO_SHAPE}
    return json.dumps(told, sort_keys=True)
