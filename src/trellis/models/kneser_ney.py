"""Interpolated modified Kneser–Ney n-grams (Chen & Goodman 1999): the baseline that counts, at its best.

    p(w | h) = (a(h w) − D(a(h w))) / a(h ·) + γ(h) · p(w | h without its first word)

a(h w) is how often h w was seen where h is as long as can be, and how many different words were seen before h w where
there is something to leave out. Each length of h w has its own discounts for one, two, and three or more. Under the
unigram lies a uniform distribution.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, NamedTuple, Self

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import storage
from trellis.models.asking import Texts
from trellis.models.model import Model, ModelConfig
from trellis.models.ngram_counts import LAST_KEY, NOTHING, Ints, Order, count, discounts
from trellis.models.scorer import MaybeTensor, check_ids
from trellis.models.tensor_files import check_finite
from trellis.ops.precision import at_most_zero
from trellis.progress import Progress
from trellis.text import IdFile, Tokenizer


@dataclass(frozen=True)
class KneserNeyConfig(ModelConfig):
    """An n-gram model's shape."""

    kind: ClassVar[str] = "kneser_ney"
    order: int = 5  # longest n-gram: the word and its order − 1 predecessors
    sentences: bool = True  # no n-gram reaches back over an <eos>, as in the n-gram toolkits; else one running text

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 2 <= self.order <= 9:
            raise TrellisError(f"model.order must lie between 2 and 9, not {self.order}.")


class KneserNey(Model):
    """An n-gram model; its state is each row's last order − 1 words, −1 where there are none.

    `key_k` are the n-grams of length k, sorted; `kept_k` what the discount left of their probability; `left_k` what
    each, as a context, leaves to the next shorter one. A last row stands for n-grams never seen.
    """

    config: KneserNeyConfig
    config_class: ClassVar[type[ModelConfig]] = KneserNeyConfig
    unigram: Tensor  # p(word) with nothing before it, V
    end: Tensor  # the id of <eos>, or −1: a sentence ends there, and the next knows nothing of it

    def __init__(self, config: KneserNeyConfig, tables: dict[str, Tensor]) -> None:
        super().__init__(config)
        for name, table in tables.items():
            self.register_buffer(name, table)

    @classmethod
    def for_text(
        cls, config: ModelConfig, text: IdFile, tokenizer: Tokenizer, seed: int = 0, data_dir: str | None = None
    ) -> Self:
        """Count a text; the seed decides nothing."""
        assert isinstance(config, KneserNeyConfig)
        return cls.fit(config, text.ids, tokenizer.eos_id if config.sentences else None)

    @classmethod
    def fit(cls, config: KneserNeyConfig, ids: NDArray[Any], end: int | None = None, quiet: bool = False) -> Self:
        """Count ids, in which `end` ends every sentence."""
        if len(ids) == 0:
            raise TrellisError("there are no tokens to count: give a corpus with text in it.")
        check_ids(torch.from_numpy(np.asarray([ids.min(), ids.max()], dtype=np.int64)), config.vocab_size)
        end = NOTHING if end is None else end
        with Progress("counting", config.order, unit="orders", quiet=quiet) as bar:
            orders = list(count(np.asarray(ids, dtype=np.int64), config.vocab_size, config.order, end, bar))
            tables = _tables(orders, config.vocab_size) | {"end": np.array(end)}
        return cls(config, {name: torch.from_numpy(table) for name, table in tables.items()})

    @classmethod
    def from_pretrained(cls, folder: str | PathLike[str]) -> Self:
        """Read what `save_pretrained` wrote; the tables are as large as the text made them."""
        config, tensors = storage.load(folder, KneserNeyConfig)
        check_finite(tensors, folder)
        if not _fit(config, tensors):
            raise TrellisError(f"the tables in {folder} do not fit its config.json: restore both.")
        return cls(config, tensors).eval()

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from."""
        before = self.config.order - 1
        texts = Texts.of(ids_BT, state, lengths_B, (self.config.vocab_size, before), self.device)
        texts = texts if state is not None else texts._replace(before_BN=self._beginning(len(texts.ids_BT)))
        ids_BT, _, lengths_B, inside_BT = texts
        all_BN = texts.whole()
        last_BN = all_BN.gather(1, lengths_B[:, None] + torch.arange(before, device=ids_BT.device))
        return at_most_zero(self._prob(all_BN)[:, before:].log()).masked_fill(~inside_BT, 0.0), last_BN

    def _beginning(self, rows: int) -> Tensor:
        """The state where a text begins: after the end of a sentence, if there are sentences."""
        state_BN = self.end.new_full((rows, self.config.order - 1), NOTHING)
        state_BN[:, -1] = self.end
        return state_BN

    def _prob(self, ids_BN: Tensor) -> Tensor:
        """p(word | words before it in the row), of every word but those that are not there."""
        prob_BN = self.unigram[ids_BN]
        context_BN = ids_BN  # the number of the n-gram that ends here, as a context of the next word
        for length in range(2, self.config.order + 1):
            key_N, kept_N, left_N = (getattr(self, f"{name}_{length}") for name in ("key", "kept", "left"))
            context_BN = torch.nn.functional.pad(context_BN[:, :-1], (1, 0), value=NOTHING)
            wanted_BN = context_BN * self.config.vocab_size + ids_BN  # below zero with no context: never found
            at_BN = torch.searchsorted(key_N, wanted_BN)
            prob_BN = torch.where(key_N[at_BN] == wanted_BN, kept_N[at_BN], 0.0) + left_N[context_BN] * prob_BN
            context_BN = at_BN.masked_fill((key_N[at_BN] != wanted_BN) | (ids_BN == self.end), NOTHING)
        return prob_BN


def _fit(config: KneserNeyConfig, tables: dict[str, Tensor]) -> bool:
    """Whether tables are those of such a model, and lead nowhere outside of each other."""
    lengths, contexts = range(2, config.order + 1), config.vocab_size + 1
    kinds = {"key": torch.int64, "kept": torch.float64, "left": torch.float64}
    named = {"unigram", "end", *(f"{what}_{length}" for length in lengths for what in kinds)}
    if set(tables) != named or tables["unigram"].shape != (config.vocab_size,) or tables["end"].shape != ():
        return False
    if tables["end"].dtype != torch.int64 or not NOTHING <= int(tables["end"]) < config.vocab_size:
        return False
    for length in lengths:
        key_N, kept_N, left_C = these = [tables[f"{what}_{length}"] for what in kinds]
        if [table.dtype for table in these] != list(kinds.values()) or any(table.dim() != 1 for table in these):
            return False
        if len(kept_N) != len(key_N) or len(left_C) != contexts or int(key_N[-1:].sum()) != LAST_KEY:
            return False
        if bool((key_N.diff() <= 0).any()):
            return False
        contexts = len(key_N)
    return True


def _tables(orders: Sequence[Order], vocab_size: int) -> dict[str, NDArray[Any]]:
    """What `score` looks up: shares and what is left of them, with a last row for what was never seen."""
    unigram = _interpolate(orders[0].counts(), np.zeros(vocab_size, int), 1)
    tables: dict[str, NDArray[Any]] = {"unigram": unigram.kept_N + unigram.left_C[0] / vocab_size}
    for length, (shorter, longer) in enumerate(itertools.pairwise(orders), start=2):
        found = _interpolate(longer.counts(), longer.key_N // vocab_size, len(shorter.key_N))
        tables[f"key_{length}"] = np.append(longer.key_N, LAST_KEY)
        tables[f"kept_{length}"] = np.append(found.kept_N, 0.0)
        tables[f"left_{length}"] = np.append(found.left_C, 1.0)
    return tables


class _Shares(NamedTuple):
    kept_N: NDArray[np.float64]  # of each n-gram, what the discount left of its share of its context
    left_C: NDArray[np.float64]  # of each context, what the discounts took: all of it if it was never seen


def _interpolate(count_N: Ints, context_N: Ints, contexts: int) -> _Shares:
    discount_N = np.array([0.0, *discounts(count_N)])[np.minimum(count_N, 3)]
    total_C = np.bincount(context_N, count_N, minlength=contexts)
    taken_C = np.bincount(context_N, discount_N, minlength=contexts)
    left_C = np.divide(taken_C, total_C, out=np.ones(contexts), where=total_C > 0)
    return _Shares((count_N - discount_N) / np.maximum(total_C, 1.0)[context_N], left_C)
