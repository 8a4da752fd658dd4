"""Perplexity, defined once.

Four protocols. `stream`: the text is one stream, its belief carried from the first token to the last; exact, and the
figure to quote. `streams`: 16 parallel streams, as Chiu & Rush's authors measured. `windows`: independent windows of 64
tokens, each from the start distribution, as Lee & Berg-Kirkpatrick measured. `sequences`: every document by itself,
from the start distribution.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import nn

from trellis.errors import TrellisError
from trellis.models.scorer import Scorer, carry, check_answer
from trellis.notebook import html_table
from trellis.ops.precision import widened
from trellis.progress import Progress, counted
from trellis.settings import nearest
from trellis.text import Batching, IdFile, Sequences, Streams, Windows

# Each protocol's full name, its way of cutting the text, the most rows, and their length.
PROTOCOLS: dict[str, tuple[str, type[Batching], int, int]] = {
    "stream": ("one stream", Streams, 1, 1024),
    "streams": ("{rows} streams", Streams, 16, 1024),
    "windows": ("windows of 64 tokens", Windows, 200, 64),
    "sequences": ("every document from its start", Sequences, 200, 64),
}


@dataclass(frozen=True)
class Evaluation:
    """What a model makes of a text: the total, and what it was divided by."""

    protocol: str  # how the text was cut, e.g. "windows of 64 tokens"
    nats: float  # −log p(text), all tokens
    tokens: int  # all of them: <eos> and <unk> count
    unknown: int  # how many were <unk>
    words: int  # whitespace words, and one a document for its end
    bytes: int  # UTF-8 bytes, and one a document for its end
    impossible_at: int | None = None  # the first token the model gives no probability, if any

    def __repr__(self) -> str:
        size = f"{counted(self.tokens, 'token')}, {self.unknown_rate:.2%} unknown"
        return f"Evaluation(perplexity={self.perplexity:,.2f}, {self.protocol}, {size})"

    def _repr_html_(self) -> str:
        return html_table(
            ("perplexity", f"{self.perplexity:,.2f} a token"),
            ("protocol", self.protocol),
            ("tokens", f"{self.tokens:,}, of which {self.unknown_rate:.2%} unknown"),
            ("word perplexity", f"{self.word_perplexity:,.2f}"),
            ("bits per byte", f"{self.bits_per_byte:.4f}"),
        )

    @property
    def perplexity(self) -> float:
        """exp(nats / tokens)."""
        return perplexity_of(self.nats / self.tokens)

    @property
    def word_perplexity(self) -> float:
        """exp(nats / words): comparable between vocabularies."""
        return perplexity_of(self.nats / self.words)

    @property
    def bits_per_byte(self) -> float:
        """Nats in bits, over bytes: comparable between vocabularies."""
        return self.nats / math.log(2) / self.bytes

    @property
    def unknown_rate(self) -> float:
        """The share of tokens that were <unk>."""
        return self.unknown / self.tokens

    def as_dict(self) -> dict[str, Any]:
        """Every figure, for JSON."""
        return {
            "protocol": self.protocol,
            "perplexity": self.perplexity,
            "nats": self.nats,
            "tokens": self.tokens,
            "unknown_rate": self.unknown_rate,
            "bits_per_byte": self.bits_per_byte,
            "word_perplexity": self.word_perplexity,
            "impossible_at": self.impossible_at,
        }


def perplexity_of(loss: float) -> float:
    """exp(nats a token), infinite where a float cannot hold it."""
    return math.exp(loss) if loss < 700 else math.inf


def check_protocol(protocol: str) -> None:
    """Refuse a protocol that there is not."""
    if protocol not in PROTOCOLS:
        raise TrellisError(f"unknown protocol '{protocol}': {nearest(protocol, PROTOCOLS)}")


@torch.no_grad()
def evaluate(
    model: Scorer, ids: IdFile, protocol: str = "stream", quiet: bool = False, within: Progress | None = None
) -> Evaluation:
    """Score every token of a text once, by one of the protocols; `within` shows how far, if it is part of more work."""
    if not isinstance(ids, IdFile):
        raise TrellisError(
            f"evaluate measures text that was tokenised, not {type(ids).__name__}: give prepare(corpus, tokenizer), or "
            "use trellis.fit, whose result scores data of any kind."
        )
    check_protocol(protocol)
    name, cut, rows, length = PROTOCOLS[protocol]
    rows = min(rows, len(ids))  # a batching never has more rows than tokens
    batching = cut(ids, batch_size=rows, length=length, shuffle=False)
    nats, seen = 0.0, 0
    impossible_at: int | None = None
    state = None
    own = Progress("evaluating", len(ids), unit="tokens", quiet=quiet or within is not None)
    with _without_dropout(model), own as bar:
        for step, batch in enumerate(batching.epoch(0)):
            state = carry(state, batch.carried, len(batch.ids))
            batch = batch.to(getattr(model, "device", torch.device("cpu")))
            log_prob_BT, state = model.score(batch.ids, state, batch.lengths)
            check_answer(log_prob_BT)
            nats -= float(widened(log_prob_BT).sum())
            if math.isinf(nats):
                places = [impossible_at, _first_impossible(batching, step, log_prob_BT)]
                impossible_at = min(place for place in places if place is not None)
            seen += batch.tokens
            status = f"perplexity {perplexity_of(nats / seen):.1f}"
            bar.advance(batch.tokens, status=status)
            if within is not None:
                within.advance(0, status=f"validating {seen / len(ids):.0%}, {status}")
    meta = ids.meta
    return Evaluation(name.format(rows=rows), nats, seen, meta.unknown, meta.words, meta.bytes, impossible_at)


@contextmanager
def _without_dropout(model: Scorer) -> Iterator[None]:
    """Put a module in evaluation mode, and back into the mode it was found in."""
    if not isinstance(model, nn.Module):
        yield
        return
    training = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(training)


def _first_impossible(batching: Batching, step: int, log_prob_BT: torch.Tensor) -> int | None:
    """The place in the text of a batch's first impossible token."""
    rows, columns = (log_prob_BT == -torch.inf).nonzero(as_tuple=True)
    if len(rows) == 0:
        return None
    begins_B = torch.from_numpy(batching.begins(step)).to(rows.device)
    return int((begins_B[rows] + columns).min())
