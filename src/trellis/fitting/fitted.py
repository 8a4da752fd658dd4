"""What `fit` gives back: a model and its tokenizer, asked about data of the kinds that it learnt from."""

from __future__ import annotations

import html
import shutil
import weakref
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.fitting import asking
from trellis.fitting.checking import Integers
from trellis.fitting.recognising import recognise
from trellis.models import HMM, HMMConfig, storage
from trellis.models.pretrained import FITTED_FILE, Pretrained, load_pretrained
from trellis.text import IntegerTokenizer, Tokenizer

LENGTH = 100  # tokens of a sample, if nothing says how many


class About(NamedTuple):
    """What is to be known of a fitted model besides its numbers and its tokens."""

    kind: str  # of the data: "strings", "tokens" or "integers"
    running: bool  # whether it learnt running text, rather than samples that each begin anew
    column: str | None = None  # of tables
    length: int = LENGTH  # of a sample
    perplexity: float | None = None  # on the validation data
    unigram: float | None = None  # of a unigram there

    @classmethod
    def read(cls, told: dict[str, Any], folder: Path) -> About:
        """What `save` wrote, its types checked."""
        absent = type(None)
        types = {"kind": (str,), "running": (bool,), "column": (str, absent), "length": (int,)}
        types |= {"perplexity": (float, absent), "unigram": (float, absent)}
        sound = all(type(value) in types.get(name, ()) for name, value in told.items()) and "running" in told
        if not sound or told.get("kind") not in ("strings", "tokens", "integers") or told.get("length", 1) < 1:
            raise TrellisError(f"{folder / FITTED_FILE} was not written by trellis.fit: restore it, or delete it.")
        return cls(**told)


class Fitted:
    """A model that was fitted to data, and answers about data of the same kinds.

    Every question takes whatever `trellis.fit` takes and has one answer a sequence. `model` is the `trellis.HMM`,
    `tokenizer` what turns data into its ids, `config` its shape. `perplexity` is that on the validation data, and
    `unigram` that of a unigram there; None without such data.
    """

    def __init__(self, model: HMM, tokenizer: Tokenizer, about: About, folder: Path | None = None) -> None:
        self.model, self.tokenizer, self.about = model, tokenizer, about
        self.folder = folder  # the run, with its metrics, for as long as this object lives
        if folder is not None:
            weakref.finalize(self, shutil.rmtree, folder.parent, ignore_errors=True)

    @property
    def config(self) -> HMMConfig:
        """The shape of the model."""
        return self.model.config

    @property
    def perplexity(self) -> float | None:
        """On the validation data."""
        return self.about.perplexity

    @property
    def unigram(self) -> float | None:
        """The perplexity of a unigram on the validation data."""
        return self.about.unigram

    def score(self, data: Any, lengths: Any = None) -> NDArray[np.float64]:
        """The log-likelihood of each sequence, in nats, its end included where the model knows ends."""
        return asking.log_likelihoods(self.model, self._ids(data, lengths, end=True), self._begin())

    def decode(self, data: Any, lengths: Any = None) -> list[Integers]:
        """The most probable path of states through each sequence: an array of one state a token."""
        sequences = self._ids(data, lengths, end=True)
        return [path[: self._own(path)] for path in asking.paths(self.model, sequences, self._begin())]

    states = decode  # what people from other libraries may look for

    def posteriors(self, data: Any, lengths: Any = None) -> list[NDArray[Any]]:
        """p(state | whole sequence) at each token of each sequence: an array of tokens × states."""
        sequences = self._ids(data, lengths, end=True)
        return [found[: self._own(found)] for found in asking.posteriors(self.model, sequences, self._begin())]

    def next(self, data: Any, n: int = 5, lengths: Any = None) -> list[list[tuple[Any, float]]]:
        """The `n` most probable next tokens after each sequence, with their probabilities."""
        if not isinstance(n, int) or n < 1:
            raise InputError(f"n={n!r} is not possible: give a whole number of at least 1.")
        sequences = self._ids(data, lengths, end=False)
        found = asking.most_probable_next(self.model, sequences, self._begin(), n)
        return [[(self._spelt(id), probability) for id, probability in best] for best in found]

    def sample(self, n: int = 1, length: int | None = None, seed: int = 0) -> list[Any]:
        """Draw `n` sequences of the kind that the model learnt from: strings, lists of tokens, or arrays.

        A model that knows ends of sequences ends them, at the latest after `length` tokens; others draw just so many,
        by default as many as the training sequences had on average, or 100 of one text.
        """
        for name, value in (("n", n), ("length", 1 if length is None else length)):
            if not isinstance(value, int | np.integer) or value < 1:
                raise InputError(f"{name}={value!r} is not possible: give a whole number of at least 1.")
        generator, begin = torch.Generator().manual_seed(seed), self._begin()
        state = None if begin is None else begin.expand(n, -1)
        drawn = self.model.sample(n, length or self.about.length, state, self.tokenizer.eos_id, generator)
        rows = zip(drawn.tokens_BT.numpy(), drawn.lengths_B.tolist(), strict=True)
        return [self._in_kind(ids[:count]) for ids, count in rows]

    def save(self, folder: str | PathLike[str]) -> None:
        """Write the model for `Fitted.load`, `trellis.load_model` and every command."""
        storage.save(self.model, folder, self.tokenizer, {FITTED_FILE: self.about._asdict()})

    @classmethod
    def load(cls, folder: str | PathLike[str]) -> Fitted:
        """Read what `save` wrote, or any HMM that a run ended with."""
        loaded = load_pretrained(folder)
        model, tokenizer = loaded.model, loaded.tokenizer
        if not isinstance(model, HMM):
            raise TrellisError(f"{folder} holds a model without hidden states, {model.config.kind}: use load_model.")
        if told := loaded.fitted():
            return cls(model, tokenizer, About.read(told, loaded.folder))
        return cls(model, tokenizer, About("integers" if isinstance(tokenizer, IntegerTokenizer) else "strings", True))

    def _ids(self, data: Any, lengths: Any, *, end: bool) -> list[Integers]:
        """The ids of each sequence of some data, and their ends, if the model knows such."""
        given = recognise(data, lengths, column=self.about.column if _has_columns(data) else None, asked=True)
        if (given.kind == "integers") != (self.about.kind == "integers"):
            what = {"integers": "whole numbers", "tokens": "lists of tokens"}
            raise InputError(
                f"data holds {what.get(given.kind, given.kind)}, but the model was fitted to "
                f"{what.get(self.about.kind, self.about.kind)}: give such."
            )
        sequences = given.encoded(self.tokenizer)
        if not end or self.tokenizer.eos_id is None:
            return sequences
        return [np.append(sequence, self.tokenizer.eos_id) for sequence in sequences]

    def _begin(self) -> Tensor | None:
        """Where a sequence begins: after another's end, in running text, or else (None) at the start distribution."""
        return Pretrained(Path(), self.model, self.tokenizer).after_eos() if self.about.running else None

    def _own(self, found: NDArray[Any]) -> int:
        """How many of the answers are about tokens of the data, and not about the end that was added to them."""
        return len(found) - (self.tokenizer.eos_id is not None)

    def _spelt(self, id: int) -> Any:
        return id if self.about.kind == "integers" else self.tokenizer.token(id)

    def _in_kind(self, ids: Integers) -> Any:
        """Ids as data of the kind that the model learnt from, without the end."""
        if len(ids) and ids[-1] == self.tokenizer.eos_id:
            ids = ids[:-1]
        if self.about.kind == "integers":
            return ids
        return self.tokenizer.decode(ids) if self.about.kind == "strings" else [self._spelt(int(id)) for id in ids]

    def _figures(self) -> list[tuple[str, str]]:
        """What to know at a glance."""
        known = [("perplexity", self.perplexity), ("unigram's perplexity", self.unigram)]
        return [
            ("states", f"{self.config.states:,}"),
            ("types of tokens", f"{self.config.vocab_size:,}"),
            ("fitted to", "running text" if self.about.running else self.about.kind),
            *((name, f"{value:.4g}") for name, value in known if value is not None),
        ]

    def __repr__(self) -> str:
        return f"Fitted({', '.join(f'{name}: {value}' for name, value in self._figures())})"

    def _repr_html_(self) -> str:
        rows = (
            f"<tr><th>{html.escape(name)}</th><td>{html.escape(value)}</td></tr>" for name, value in self._figures()
        )
        return f"<table>{''.join(rows)}</table>"


def _has_columns(data: Any) -> bool:
    return hasattr(data, "column_names") or hasattr(data, "columns")
