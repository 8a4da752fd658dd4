"""Causal transformers of the Hugging Face library as networks: read from a folder, drawn afresh, or made of a shape."""

from __future__ import annotations

import importlib.util
import json
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.models import storage

RANDOM = "random:"
# Of a shape, what says nothing of the network: where it came from, and what its numbers were kept as.
_NO_SHAPE = ("_name_or_path", "transformers_version", "dtype", "torch_dtype", "id2label", "label2id", "architectures")


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
    """The network of a model's folder, or of a GGUF file in one; `random:` before it draws fresh weights."""
    transformers, random = _library(), name.startswith(RANDOM)
    folder, where = _place(name.removeprefix(RANDOM))
    with quiet(transformers):
        config = _read_config(transformers, name, folder, where)
        _check_positions(config, name, states)
        model = _fresh(transformers, config, name) if random else _with_weights(transformers, name, folder, where)
        return _network(model, name)


def of_shape(architecture: str) -> CausalNetwork:
    """A network of this shape with fresh weights, which a saved model replaces by its own."""
    transformers = _library()
    with quiet(transformers):
        config = transformers.AutoConfig.for_model(**json.loads(architecture))
        return _network(_fresh(transformers, config, "the saved network"), "the saved network")


def shape_of(name: str) -> str:
    """The shape of the network that a folder or GGUF file holds, as JSON."""
    transformers = _library()
    folder, where = _place(name.removeprefix(RANDOM))
    with quiet(transformers):
        return _described(_read_config(transformers, name, folder, where))


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


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise TrellisError(
            "model.encoder=pretrained needs the transformers library: run pip install 'trellis-lm[teachers]'."
        ) from None
    return transformers


def _place(name: str) -> tuple[Path, dict[str, str]]:
    """The folder, as named or so named in the data folder, and of a GGUF file its name there."""
    places = [Path(name).expanduser()]
    if data := os.environ.get("TRELLIS_DATA"):
        places.append(Path(data) / name)
    path = next((place for place in places if place.exists()), None)
    if path is None:
        raise TrellisError(f"there is no network {places[0]}: set model.network to the folder of a causal model.")
    if path.suffix == ".gguf":
        _check_gguf(name)
        return path.parent, {"gguf_file": path.name}
    return storage.model_folder(path), {}


def _check_gguf(name: str) -> None:
    """Both packages are needed by the library, which says so of one at a time, and in many words."""
    for package in ("gguf", "accelerate"):
        if importlib.util.find_spec(package) is None:
            raise TrellisError(f"the network {name} needs the package {package}: run pip install 'trellis-lm[gguf]'.")


def _read_config(transformers: Any, name: str, folder: Path, where: dict[str, str]) -> Any:
    try:
        return transformers.AutoConfig.from_pretrained(folder, **where, local_files_only=True)
    except Exception as error:  # the library and what it calls raise a dozen types for a broken folder
        raise _not_loaded(name, error) from error


def _fresh(transformers: Any, config: Any, name: str) -> Any:
    try:
        return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # as above
        raise _not_loaded(name, error) from error


def _with_weights(transformers: Any, name: str, folder: Path, where: dict[str, str]) -> Any:
    """Every weight must come from the files: the library would draw missing ones at random and go on."""
    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, **where, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # as above
        raise _not_loaded(name, error) from error
    lacking = sorted([*told["missing_keys"], *(one[0] for one in told["mismatched_keys"])])
    if lacking:
        raise TrellisError(
            f"the network {name} lacks weights of its shape ({lacking[0]} is one of {len(lacking)}): fetch it again, "
            f"or say {RANDOM}{name} for fresh ones."
        )
    return model


def _not_loaded(name: str, error: Exception) -> TrellisError:
    why = str(error).strip().partition("\n")[0].rstrip(".")[:200] or type(error).__name__
    return TrellisError(f"the network {name} cannot be loaded ({why}): name the whole folder of a causal model.")


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
