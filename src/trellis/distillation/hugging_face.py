"""Teachers of the transformers library: any causal model's folder or GGUF file, or a random one of its shape."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch
from torch import Tensor, nn

from trellis.distillation.teachers import Source, Teacher, check_layer, no_tokenizer
from trellis.models.hugging_face import CausalFiles, files_at, library, quiet
from trellis.models.model import drawn_from
from trellis.text import SubwordTokenizer, Tokenizer, load_tokenizer
from trellis.text.tokenizer import TOKENIZER_FILE


def load(source: Source, layer: int) -> Teacher:
    """Load a causal model in float32 on the processor, as far as the layer needs it."""
    transformers = library("a teacher of this kind")
    with quiet(transformers):
        files = files_at(transformers, source.path, "teacher", source.name)
        model = files.with_weights() if source.seed is None else _random(files, source.seed)
        tokenizer = tokenizer_of(files)
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


def _random(files: CausalFiles, seed: int) -> Any:
    """A model of the shape, its weights drawn from the seed."""
    config = files.config()
    with drawn_from(seed):
        return files.fresh(config)


def tokenizer_of(files: CausalFiles) -> Tokenizer | None:
    """Its own, or one that the library makes of older files or of a GGUF file; None if there is none."""
    if not files.folder.is_dir():  # but a shape alone
        return None
    if (files.folder / TOKENIZER_FILE).is_file() and not files.gguf:
        return load_tokenizer(files.folder)
    try:
        found = files.transformers.AutoTokenizer.from_pretrained(files.folder, **files.gguf, local_files_only=True)
        return SubwordTokenizer(found.backend_tokenizer, found.eos_token, found.unk_token, found.bos_token)
    except Exception:  # of a dozen types; without a tokenizer's files the library raises
        return None


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
