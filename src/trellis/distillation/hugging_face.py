"""Teachers of the transformers library: any causal model's folder or GGUF file, or a random one of its shape."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from trellis.distillation.teachers import Source, Teacher, check_layer, no_tokenizer
from trellis.errors import TrellisError
from trellis.models.model import drawn_from
from trellis.text import SubwordTokenizer, Tokenizer, load_tokenizer
from trellis.text.tokenizer import TOKENIZER_FILE

_FOR_GGUF = ("gguf", "accelerate")  # packages without which transformers reads no such file


def load(source: Source, layer: int) -> Teacher:
    """Load a causal model in float32 on the processor, as far as the layer needs it."""
    transformers = _library()
    with _quiet(transformers):
        model = _random(transformers, source) if source.seed is not None else _pretrained(transformers, source)
        tokenizer = _tokenizer(transformers, source)
    if tokenizer is None and source.seed is None:
        raise no_tokenizer(source)
    config, body = model.config.get_text_config(), model.base_model.eval()
    head = model.get_output_embeddings()
    at = check_layer(layer, config.num_hidden_layers, source.name)
    begin = config.bos_token_id if isinstance(config.bos_token_id, int) else None
    return Teacher(
        name=source.name,
        states=_states_at(body, at, config.num_hidden_layers),
        width=config.hidden_size,
        head_VR=None if head is None or head.weight.shape[1] != config.hidden_size else head.weight.detach(),
        vocab_size=config.vocab_size,
        tokenizer=tokenizer,
        begin=begin if begin is not None and 0 <= begin < config.vocab_size else None,
        longest=getattr(config, "max_position_embeddings", None),
    )


def _library() -> Any:
    try:
        import transformers
    except ImportError:
        raise TrellisError(
            "a teacher of this kind needs the transformers library: run pip install 'trellis-lm[teachers]'."
        ) from None
    return transformers


@contextmanager
def _quiet(transformers: Any) -> Iterator[None]:
    """No bars and advice of the library while it loads: what matters of it is said by our own errors."""
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


def _pretrained(transformers: Any, source: Source) -> Any:
    """Every weight must come from the files: the library would draw missing ones at random and go on."""
    folder, where = _place(source)
    if where and (lacking := [name for name in _FOR_GGUF if importlib.util.find_spec(name) is None]):
        raise TrellisError(
            f"the teacher {source.name} needs the package {lacking[0]}: run pip install 'trellis-lm[gguf]'."
        )
    try:
        model, told = transformers.AutoModelForCausalLM.from_pretrained(
            folder, **where, dtype=torch.float32, local_files_only=True, output_loading_info=True
        )
    except Exception as error:  # the library and what it calls raise a dozen types for a broken folder
        raise TrellisError(
            f"the teacher {source.name} cannot be loaded ({_first_line(error)}): name a causal model's whole folder."
        ) from error
    lacking = [*told["missing_keys"], *(one[0] for one in told["mismatched_keys"])]
    if lacking:
        raise TrellisError(
            f"the teacher {source.name} lacks weights of its shape ({lacking[0]} is one of {len(lacking)}): fetch it "
            f"again, or say random:{source.name} if that is meant."
        )
    return model


def _random(transformers: Any, source: Source) -> Any:
    """A model of the shape, its weights drawn from the seed."""
    try:
        config = transformers.AutoConfig.from_pretrained(source.config_file, local_files_only=True)
        with drawn_from(source.seed):
            return transformers.AutoModelForCausalLM.from_config(config, dtype=torch.float32)
    except Exception as error:  # as above
        raise TrellisError(
            f"no teacher of the shape {source.config_file} can be made ({_first_line(error)}): name a causal model's "
            "config.json."
        ) from error


def _tokenizer(transformers: Any, source: Source) -> Tokenizer | None:
    """Its own, or one that the library makes of older files or of a GGUF file; None if there is none."""
    if not source.path.is_dir() and source.seed is not None:
        return None
    folder, where = _place(source)
    if (folder / TOKENIZER_FILE).is_file() and not where:
        return load_tokenizer(folder)
    try:
        found = transformers.AutoTokenizer.from_pretrained(folder, **where, local_files_only=True)
        return SubwordTokenizer(found.backend_tokenizer, found.eos_token, found.unk_token)
    except Exception:  # as above; without a tokenizer's files the library raises, and its type varies
        return None


def _place(source: Source) -> tuple[Path, dict[str, str]]:
    """The folder, and of a GGUF file its name in it."""
    return (source.path, {}) if source.path.is_dir() else (source.path.parent, {"gguf_file": source.path.name})


def _states_at(body: nn.Module, layer: int, layers: int) -> Callable[[Tensor], Tensor]:
    """The output of a layer; the network stops there, and its output head never runs."""
    stack = next((m for m in body.modules() if isinstance(m, nn.ModuleList) and len(m) == layers), None)

    @torch.inference_mode()
    def states(ids_BT: Tensor) -> Tensor:
        if layer == layers:
            last_BTR: Tensor = body(input_ids=ids_BT, use_cache=False).last_hidden_state
            return last_BTR
        if stack is None:
            all_of_them = body(input_ids=ids_BT, use_cache=False, output_hidden_states=True).hidden_states
            return all_of_them[layer]  # type: ignore[no-any-return]
        return _input_of(stack[layer], lambda: body(input_ids=ids_BT, use_cache=False))

    return states


class _Reached(Exception):  # noqa: N818  # no error: it ends a forward pass where the rest is not needed
    """A layer was reached, with this input."""


def _input_of(module: nn.Module, run: Callable[[], object]) -> Tensor:
    """What a module is given when the network runs, which stops at that."""

    def stop(_: nn.Module, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        raise _Reached(arguments[0] if arguments else named["hidden_states"])

    hook = module.register_forward_pre_hook(stop, with_kwargs=True)
    try:
        run()
    except _Reached as reached:
        found: Tensor = reached.args[0]
        return found
    finally:
        hook.remove()
    raise AssertionError("the network did not run this layer")


def _first_line(error: Exception) -> str:
    return str(error).strip().partition("\n")[0].rstrip(".")[:200] or type(error).__name__
