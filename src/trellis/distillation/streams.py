"""Text of a model of ours as it goes on and on: documents follow one another as in the text that it learnt."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.distillation.teachers import Source, no_tokenizer
from trellis.models.model import Model
from trellis.models.registry import load_model
from trellis.text import Tokenizer, load_tokenizer
from trellis.text.tokenizer import TOKENIZER_FILE


@dataclass(frozen=True)
class Stream:
    """A model of ours that text is drawn from.

    model      any kind
    tokenizer  its own
    bf16       whether the products of its softmax are in bf16
    longest    tokens it can read at once: any number
    """

    model: Model
    tokenizer: Tokenizer
    bf16: bool = False
    longest: int | None = None

    @torch.inference_mode()
    def texts(
        self, count: int, length: int, temperature: float, generator: torch.Generator, advance: Callable[[int], None]
    ) -> list[NDArray[np.int64]]:
        """The documents of so many streams of `length` tokens, each of which begins where a document has ended.

        The last one of a stream is cut off, and left out unless it is the only one.
        """
        end = self.tokenizer.eos_id
        state = None if end is None else self.model.advance(torch.full((count, 1), end), None)
        drawn = []
        for _ in range(length):
            with torch.autocast(self.model.device.type, torch.bfloat16, enabled=self.bf16):
                token_B = self.model.draw_token(state, count, generator, temperature)
            state = self.model.advance(token_B[:, None], state)
            drawn.append(token_B)
            advance(count)
        return [document for tokens_T in torch.stack(drawn, 1) for document in _documents(tokens_T, end)]


def load_stream(source: Source, precision: str) -> Stream:
    """Load a model that `trellis train` made."""
    if not (source.path / TOKENIZER_FILE).is_file():
        raise no_tokenizer(source)
    return Stream(load_model(source.path).eval(), load_tokenizer(source.path), precision == "bf16")


def _documents(tokens_T: Tensor, end: int | None) -> list[NDArray[np.int64]]:
    """Cut after each end of a document."""
    ids_T = tokens_T.numpy()
    pieces = np.split(ids_T, np.flatnonzero(ids_T == end) + 1) if end is not None else [ids_T]
    return pieces[:-1] or pieces
