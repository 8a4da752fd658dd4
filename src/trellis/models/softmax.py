"""The softmax over all words that ends a neural language model, as far as the words that came need it."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional

from trellis.ops import usable
from trellis.ops.log_totals import log_totals
from trellis.ops.precision import at_most_zero

TOKENS = 1024  # at a time: with 10,000 words, 40 MB of logits


class TiedWords(nn.Module):
    """One vector a word, read when the word comes in and again when it is predicted; and a bias for the latter."""

    def __init__(self, vocab_size: int, width: int) -> None:
        super().__init__()
        self.vectors = nn.Parameter(torch.empty(vocab_size, width).uniform_(-0.1, 0.1))
        self.bias = nn.Parameter(torch.zeros(vocab_size))

    def read(self, ids: Tensor) -> Tensor:
        """The words' vectors, in one more dimension than their ids."""
        return functional.embedding(ids, self.vectors)

    def log_probs(self, hidden_NR: Tensor, ids_N: Tensor) -> Tensor:
        """log softmax(vectors · hidden + bias) of one word each, N."""
        return word_log_probs(hidden_NR, self.vectors, self.bias, ids_N)

    def all_log_probs(self, hidden_NR: Tensor) -> Tensor:
        """The same of every word, N×V."""
        return self.logits(hidden_NR).log_softmax(1)

    def logits(self, hidden_NR: Tensor) -> Tensor:
        """vectors · hidden + bias of every word, N×V."""
        return functional.linear(hidden_NR, self.vectors, self.bias)


def word_log_probs(hidden_NR: Tensor, vectors_VR: Tensor, bias_V: Tensor | None, ids_N: Tensor) -> Tensor:
    """log softmax(vectors · hidden + bias) of one word each, N; the logits of all words are a passing matter.

    Where products may be in bf16, those of the normaliser are, and the words' own logits are not.
    """
    if usable(hidden_NR, vectors_VR):
        logit_N = (hidden_NR * functional.embedding(ids_N, vectors_VR)).sum(1)
        logit_N = logit_N if bias_V is None else logit_N + bias_V[ids_N]
        return at_most_zero(logit_N - log_totals(hidden_NR, vectors_VR, bias_V))
    scores = [
        -functional.cross_entropy(functional.linear(part_NR, vectors_VR, bias_V), part_N, reduction="none")
        for part_NR, part_N in zip(hidden_NR.split(TOKENS), ids_N.split(TOKENS), strict=True)
    ]
    return at_most_zero(torch.cat(scores))
