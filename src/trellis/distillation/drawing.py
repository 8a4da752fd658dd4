"""Texts drawn from a causal language model, token by token: many at a time, with what it has read kept."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.distillation.hugging_face import tokenizer_of
from trellis.distillation.streams import Stream, load_stream
from trellis.distillation.teachers import Source, no_tokenizer
from trellis.errors import TrellisError
from trellis.inference.draws import draw
from trellis.models.hugging_face import files_at, library, quiet
from trellis.text import Tokenizer

Advance = Callable[[int], None]  # told of tokens as they are drawn

PRECISIONS = {"float32": torch.float32, "bf16": torch.bfloat16}
_WANTED_BY = "sampling from a language model"
_CROWDED = 0.75  # once fewer of the rows than this go on, those that have ended are left out


@dataclass(frozen=True)
class Speaker:
    """A causal model that texts are drawn from.

    model      of the transformers library
    tokenizer  its own
    begin      id that its texts begin with, which is no part of them
    ends       ids that end a text; beginning another one does too
    longest    tokens it can read at once; None: any number
    """

    model: Any
    tokenizer: Tokenizer
    begin: int
    ends: tuple[int, ...]
    longest: int | None


def load_speaker(source: Source, precision: str = "float32") -> Speaker | Stream:
    """Load a model of ours, or a causal one of the transformers library with its output head.

    A model that cannot say text is refused.
    """
    if source.is_ours():
        return load_stream(source, precision)
    transformers = library(_WANTED_BY)
    with quiet(transformers):
        files = files_at(transformers, source.path, "language model", source.name)
        model = files.with_weights().eval()
        tokenizer = tokenizer_of(files)
    if tokenizer is None:
        raise no_tokenizer(source)
    config = model.config.get_text_config()
    ends = _ids(getattr(model.generation_config, "eos_token_id", None)) or _ids(config.eos_token_id)
    begin = next(iter([*_ids(config.bos_token_id), *ends]), None)
    if begin is None:
        raise TrellisError(f"the language model {source.name} names no token that texts begin with: set bos_token_id.")
    return Speaker(
        model=model.to(PRECISIONS[precision]),
        tokenizer=tokenizer,
        begin=begin,
        ends=tuple(sorted({begin, *ends})),
        longest=getattr(config, "max_position_embeddings", None),
    )


def _ids(named: int | list[int] | None) -> list[int]:
    """Special tokens as a config names them: one, several or none."""
    return [] if named is None else [named] if isinstance(named, int) else list(named)


@torch.inference_mode()
def draw_texts(
    speaker: Speaker | Stream,
    count: int,
    length: int,
    temperature: float,
    generator: torch.Generator,
    advance: Advance = lambda amount: None,
) -> list[NDArray[np.int64]]:
    """So many texts of at most `length` tokens, each drawn from the model's distribution of the next token.

    A text that ends has the tokenizer's end of documents as its last token, whichever token of the model's ended it.
    One that is cut at `length` has not ended, and so has none. Tells `advance` of tokens as they are drawn. Of a model
    of ours, these are the documents of so many streams of that length.
    """
    if isinstance(speaker, Stream):
        return speaker.texts(count, length, temperature, generator, advance)
    drawn_BT = torch.full((count, length), -1)
    row_N = torch.arange(count)  # which texts the rows of the batch are
    last_N = torch.full((count,), speaker.begin)
    going_N = torch.ones(count, dtype=torch.bool)
    ends = torch.tensor(speaker.ends)
    past = None  # each model knows what it carries on
    for place in range(length):
        read = speaker.model(input_ids=last_N[:, None], past_key_values=past, use_cache=True)
        past = read.past_key_values
        logits_NV = read.logits[:, -1, : speaker.tokenizer.vocab_size].float() / temperature
        last_N = draw(logits_NV.softmax(-1), generator)
        drawn_BT[row_N[going_N], place] = last_N[going_N]
        advance(int(going_N.sum()))
        going_N &= ~torch.isin(last_N, ends)
        if not going_N.any():
            break
        if going_N.sum() < _CROWDED * len(going_N):
            past.batch_select_indices(going_N.nonzero()[:, 0])
            row_N, last_N, going_N = row_N[going_N], last_N[going_N], going_N[going_N]
    return [_text(tokens_T[tokens_T >= 0], speaker) for tokens_T in drawn_BT]


def _text(tokens_T: Tensor, speaker: Speaker) -> NDArray[np.int64]:
    """What was drawn as a document: its end, if it has one, as the tokenizer spells it."""
    ids_T = tokens_T.numpy()
    if int(ids_T[-1]) not in speaker.ends:
        return ids_T
    end = [] if speaker.tokenizer.eos_id is None else [speaker.tokenizer.eos_id]
    return np.append(ids_T[:-1], end).astype(np.int64)
