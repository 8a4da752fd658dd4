"""What every kind of model is made of besides its mathematics: a configuration, a way to be made, and files."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from os import PathLike
from typing import Any, ClassVar, Self

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.inference.draws import draw_softmax
from trellis.models import storage
from trellis.models.asking import checked_state, texts_asked
from trellis.models.generation import Samples, sample_words
from trellis.models.scorer import MaybeTensor
from trellis.models.tensor_files import check_finite
from trellis.progress import counted, short_number
from trellis.settings import check
from trellis.text import IdFile, Tokenizer


@dataclass(frozen=True)
class ModelConfig:
    """The shape of a model: everything but its numbers. Each kind adds its own settings."""

    kind: ClassVar[str]  # its name in `registry.KINDS`, in YAML as model.kind and in a saved config.json
    vocab_size: int  # types, specials included

    def __post_init__(self) -> None:
        check(self, "model.")
        if self.vocab_size < 2:
            raise TrellisError(
                f"a vocabulary of {self.vocab_size} word leaves nothing to predict: give more text or lower "
                "the count limit."
            )


@contextmanager
def drawn_from(seed: int | None) -> Iterator[None]:
    """Draw fresh parameters from a seed, leaving the caller's generator as it was; None draws from that."""
    with torch.random.fork_rng(devices=[], enabled=seed is not None):
        if seed is not None:
            torch.default_generator.manual_seed(seed)  # parameters are drawn on the processor; GPUs keep their own
        yield


class Model(nn.Module):
    """A language model with `score`, as training, evaluation and the command line know it.

    Its state is a tensor of rows, B×N: one row a text, and all there is to know of what came before.
    """

    config_class: ClassVar[type[ModelConfig]]

    def __init__(self, config: ModelConfig, seed: int | None = None) -> None:
        super().__init__()
        self.config = config

    @property
    def device(self) -> torch.device:
        """Where the numbers live."""
        return next(itertools.chain(self.parameters(), self.buffers())).device

    def __repr__(self) -> str:
        """One line; PyTorch's own says which modules hold the parameters, and not how many there are."""
        return f"{type(self).__name__}({', '.join(self.described())})"

    def described(self) -> list[str]:
        """What it is, in few words: its sizes, and how many numbers it has learnt or will."""
        numbers = sum(parameter.numel() for parameter in self.parameters())
        return [counted(self.config.vocab_size, "word"), f"{short_number(numbers)} parameters"]

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from."""
        raise NotImplementedError

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V.

        By the score of every word; kinds that know all words at once say so themselves.
        """
        words_V1 = torch.arange(self.config.vocab_size, device=self.device)[:, None]
        if state is None:
            return self.score(words_V1)[0].T
        state = checked_state(self, state, self.device)
        distinct_UN, place_B = state.unique(dim=0, return_inverse=True)
        scores = [self.score(words_V1, row_N.expand(len(words_V1), -1))[0].squeeze(1) for row_N in distinct_UN]
        return torch.stack(scores)[place_B] if scores else torch.zeros(0, len(words_V1), device=self.device)

    @torch.no_grad()
    def sample(
        self,
        batch: int,
        length: int,
        state: Tensor | None = None,
        end: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Samples:
        """Token sequences drawn from the model; `end` stops a row."""
        batch, length, end = texts_asked(batch, length, end, self.config.vocab_size)
        lengths_B = torch.full((batch,), length, device=self.device)
        state = None if state is None else checked_state(self, state, self.device, batch)
        return sample_words(self, lengths_B, state, end, generator)

    @torch.no_grad()
    def draw_token(
        self, state: Tensor | None, rows: int, generator: torch.Generator | None = None, temperature: float = 1.0
    ) -> Tensor:
        """One token a row, drawn given all before; rows that begin have no state."""
        return draw_softmax((self.next_token(state) / temperature).expand(rows, -1), generator)

    @torch.no_grad()
    def advance(self, ids_BT: Tensor, state: Tensor | None = None) -> Tensor:
        """The state after these tokens."""
        return self.score(ids_BT, state)[1]

    def network_parameters(self) -> list[nn.Parameter]:
        """Parameters of networks that make the model's vectors, and may learn at a rate of their own; mostly none."""
        return []

    @classmethod
    def for_text(
        cls, config: ModelConfig, text: IdFile, tokenizer: Tokenizer, seed: int, data_dir: str | None = None
    ) -> Self:
        """A fresh model to learn this text; most kinds do not look at it before they learn.

        What it is made of besides may lie in the data folder, by default TRELLIS_DATA.
        """
        return cls(config, seed)

    def transformers_config(self) -> dict[str, Any]:
        """Its shape in the words of the transformers library, if that loads its folder too; most kinds have none."""
        return {}

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        """Room for tensors of a model on disk whose sizes its text decided; most kinds have none."""

    def check_tensors(self, tensors: dict[str, Tensor], where: str | PathLike[str]) -> None:
        """Refuse tensors of the right shapes that are not to be computed with: numbers that are none, wrong indices."""
        check_finite(tensors, where)

    def save_pretrained(self, folder: str | PathLike[str], tokenizer: storage.Savable | None = None) -> None:
        """Write `config.json`, `model.safetensors` and the tokenizer, all or nothing."""
        storage.save(self, folder, tokenizer)

    @classmethod
    def from_pretrained(cls, folder: str | PathLike[str]) -> Self:
        """Read what `save_pretrained` wrote, ready for use (`eval`); scores are the same to the bit."""
        config, tensors = storage.load(folder, cls.config_class)
        with torch.device("meta"):  # nothing is drawn, and no memory taken, for what the file does not have
            shape = cls(config, seed=0)
            shape.make_room(tensors)
            storage.check_fits(shape, tensors, folder)
        model = cls(config, seed=0)  # any seed: it keeps the caller's generator as it was
        model.make_room(tensors)
        storage.restore(model, tensors, folder)
        return model.eval()


def by_length(
    score: Callable[[Tensor, Tensor | None], tuple[Tensor, Tensor]],
    ids_BT: Tensor,
    state: Tensor | None,
    lengths_B: Tensor | None,
) -> tuple[Tensor, Tensor]:
    """Score rows of different lengths with a `score` that takes rows of one: those of each length by themselves.

    A batch of training has two lengths at most. Nothing past a row's end is ever looked at.
    """
    time = ids_BT.shape[1]
    if lengths_B is None or bool((lengths_B == time).all()):
        return score(ids_BT, state)
    order_B = lengths_B.argsort(stable=True)
    lengths, rows = lengths_B[order_B].unique_consecutive(return_counts=True)
    found = []
    for length, these in zip(lengths.tolist(), order_B.split(rows.tolist()), strict=True):
        log_prob_BT, after = score(ids_BT[these, :length], None if state is None else state[these])
        found.append((nn.functional.pad(log_prob_BT, (0, time - length)), after))
    back_B = order_B.argsort()
    return torch.cat([log_prob for log_prob, _ in found])[back_B], torch.cat([after for _, after in found])[back_B]


def check_sizes(config: ModelConfig, *names: str) -> None:
    """Refuse a size below one."""
    for name in names:
        if getattr(config, name) < 1:
            raise TrellisError(f"model.{name} must be at least 1, not {getattr(config, name)}.")


def check_dropouts(config: ModelConfig, *names: str) -> None:
    """Refuse a share that is none, or would leave nothing."""
    for name in names:
        if not 0 <= getattr(config, name) < 1:
            raise TrellisError(f"model.{name} must be at least 0 and below 1, not {getattr(config, name)}.")
