"""Recurrent baselines: p(w_t | w_<t) = softmax(W · LSTM(E(w_<t))), with W the word vectors E themselves."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, cast

import torch
from torch import Tensor
from torch.nn import functional

from trellis.inference.draws import draw_softmax
from trellis.models.asking import asked_rows, rows_of
from trellis.models.model import Model, ModelConfig, by_length, check_dropouts, check_sizes, drawn_from
from trellis.models.recurrence import Recurrence, locked_dropout
from trellis.models.scorer import MaybeTensor, check_ids
from trellis.models.softmax import TiedWords


@dataclass(frozen=True)
class LSTMConfig(ModelConfig):
    """The plain network of Chiu & Rush's appendix."""

    kind: ClassVar[str] = "lstm"
    width: int = 256  # of the word vectors and of every layer
    layers: int = 2  # of LSTM
    dropout: float = 0.3  # of word vectors, between layers, and before the softmax; only while learning

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "width", "layers")
        check_dropouts(self, "dropout")


@dataclass(frozen=True)
class AWDLSTMConfig(ModelConfig):
    """Merity et al.'s (2017) network, by default as large and as regularised as theirs on the Penn Treebank.

    Their optimiser, its averaging, varying lengths and penalties on activations belong to training, and are not here.
    """

    kind: ClassVar[str] = "awd_lstm"
    width: int = 400  # of the word vectors and of the last layer
    hidden: int = 1150  # of the layers before it
    layers: int = 3  # of LSTM
    word_dropout: float = 0.1  # of whole words, for all the places of a batch where they are read
    input_dropout: float = 0.4  # of word vectors; here and below, one mask for all tokens of a row
    dropout: float = 0.25  # between layers
    output_dropout: float = 0.4  # before the softmax
    weight_dropout: float = 0.5  # of the hidden-to-hidden weights, one mask a batch

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "width", "hidden", "layers")
        check_dropouts(self, "word_dropout", "input_dropout", "dropout", "output_dropout", "weight_dropout")


class _Recurrent(Model):
    """What both have in common; their state is h and c of every layer after the last token."""

    words: TiedWords
    recurrence: Recurrence

    def _read(self, ids_BT: Tensor) -> Tensor:
        """The words' vectors, B×T×R, with their dropout."""
        raise NotImplementedError

    def _thin(self, hidden_BTR: Tensor) -> Tensor:
        """Dropout before the softmax."""
        raise NotImplementedError

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from."""
        return by_length(self._score, *asked_rows(ids_BT, state, lengths_B, self.recurrence.width, self.words.vectors))

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""
        return self.words.all_log_probs(self._hidden(state))

    def _hidden(self, state: Tensor | None) -> Tensor:
        """What the next token's softmax is of, B×R: the last layer's output, which is part of the state."""
        any_B1 = torch.zeros(rows_of(state), 1, dtype=torch.int64, device=self.device)
        _, state, _ = asked_rows(any_B1, state, None, self.recurrence.width, self.words.vectors)
        return self.recurrence.output(state, len(any_B1), self.words.vectors)

    @torch.no_grad()
    def draw_token(
        self, state: Tensor | None, rows: int, generator: torch.Generator | None = None, temperature: float = 1.0
    ) -> Tensor:
        """One token a row, drawn given all before; rows that begin have no state."""
        logits_BV = self.words.logits(self._hidden(state))
        logits_BV = logits_BV.to(torch.promote_types(logits_BV.dtype, torch.float32)) / temperature
        return draw_softmax(logits_BV.expand(rows, -1), generator)

    @torch.no_grad()
    def advance(self, ids_BT: Tensor, state: Tensor | None = None) -> Tensor:
        """The state after these tokens, without their probabilities."""
        _, after_BN = self.recurrence(self._read(ids_BT), state)
        return cast(Tensor, after_BN)

    def _score(self, ids_BT: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        check_ids(ids_BT, self.config.vocab_size)
        hidden_BTR, state = self.recurrence(self._read(ids_BT), state)
        hidden_NR = self._thin(hidden_BTR).flatten(0, 1)
        return self.words.log_probs(hidden_NR, ids_BT.flatten()).view(ids_BT.shape), state


class LSTM(_Recurrent):
    """A recurrent language model."""

    config: LSTMConfig
    config_class: ClassVar[type[ModelConfig]] = LSTMConfig

    def __init__(self, config: LSTMConfig, seed: int | None = None) -> None:
        super().__init__(config)
        with drawn_from(seed):
            self.words = TiedWords(config.vocab_size, config.width)
            self.recurrence = Recurrence([config.width] * (config.layers + 1), config.dropout)

    def _read(self, ids_BT: Tensor) -> Tensor:
        return self._thin(self.words.read(ids_BT))

    def _thin(self, hidden_BTR: Tensor) -> Tensor:
        return functional.dropout(hidden_BTR, self.config.dropout, self.training)


class AWDLSTM(_Recurrent):
    """A recurrent language model with every dropout of Merity et al."""

    config: AWDLSTMConfig
    config_class: ClassVar[type[ModelConfig]] = AWDLSTMConfig

    def __init__(self, config: AWDLSTMConfig, seed: int | None = None) -> None:
        super().__init__(config)
        widths = [config.width, *[config.hidden] * (config.layers - 1), config.width]
        with drawn_from(seed):
            self.words = TiedWords(config.vocab_size, config.width)
            self.recurrence = Recurrence(widths, config.dropout, locked=True, weights=config.weight_dropout)

    def _read(self, ids_BT: Tensor) -> Tensor:
        vectors_BTR = self.words.read(ids_BT)
        if self.training:  # some words read as zero everywhere in the batch
            kept_V = functional.dropout(
                torch.ones(self.config.vocab_size, device=ids_BT.device), self.config.word_dropout
            )
            vectors_BTR = vectors_BTR * kept_V[ids_BT][..., None]
        return locked_dropout(vectors_BTR, self.config.input_dropout, self.training)

    def _thin(self, hidden_BTR: Tensor) -> Tensor:
        return locked_dropout(hidden_BTR, self.config.output_dropout, self.training)
