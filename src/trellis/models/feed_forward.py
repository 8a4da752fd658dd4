"""A feed-forward n-gram: p(w_t | w_t−4 … w_t−1) = softmax(W · ReLU(H · E(w_t−4 … w_t−1))), with W = E."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.models.asking import NOTHING, Texts, rows_of
from trellis.models.model import Model, ModelConfig, check_dropouts, check_sizes, drawn_from
from trellis.models.scorer import MaybeTensor
from trellis.models.softmax import TiedWords


@dataclass(frozen=True)
class FeedForwardConfig(ModelConfig):
    """The network of Chiu & Rush's appendix."""

    kind: ClassVar[str] = "feed_forward"
    order: int = 5  # the word and its order − 1 predecessors
    width: int = 256  # of word vectors and of the hidden layer
    dropout: float = 0.3  # of word vectors and of the hidden layer; only while learning

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.order < 2:
            raise TrellisError(f"model.order must be at least 2, not {self.order}: a word and one before it.")
        check_sizes(self, "width")
        check_dropouts(self, "dropout")


class FeedForward(Model):
    """A neural n-gram model; its state is each row's last order − 1 words, −1 where there are none."""

    config: FeedForwardConfig
    config_class: ClassVar[type[ModelConfig]] = FeedForwardConfig

    def __init__(self, config: FeedForwardConfig, seed: int | None = None) -> None:
        super().__init__(config)
        with drawn_from(seed):
            self.words = TiedWords(config.vocab_size, config.width)
            self.hidden = nn.Linear((config.order - 1) * config.width, config.width)

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from."""
        before = self.config.order - 1
        texts = Texts.of(ids_BT, state, lengths_B, (self.config.vocab_size, before), self.device)
        ids_BT, _, lengths_B, inside_BT = texts
        all_BN = texts.whole()
        last_BN = all_BN.gather(1, lengths_B[:, None] + torch.arange(before, device=ids_BT.device))
        log_prob_N = self.words.log_probs(self._hidden(all_BN)[inside_BT], ids_BT[inside_BT])
        log_prob_BT = log_prob_N.new_zeros(ids_BT.shape)
        return log_prob_BT.masked_scatter(inside_BT, log_prob_N), last_BN

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""
        any_B1 = torch.zeros(rows_of(state), 1, dtype=torch.int64, device=self.device)
        texts = Texts.of(any_B1, state, None, (self.config.vocab_size, self.config.order - 1), self.device)
        return self.words.all_log_probs(self._hidden(texts.whole()).squeeze(1))

    def _hidden(self, all_BN: Tensor) -> Tensor:
        """The hidden layer before each word that has all its predecessors in the row, B×T×R."""
        vectors_BNR = self.words.read(all_BN.clamp_min(0)) * (all_BN != NOTHING)[..., None]
        vectors_BNR = functional.dropout(vectors_BNR, self.config.dropout, self.training)
        context_BTRN = vectors_BNR.unfold(1, self.config.order - 1, 1)[:, :-1]  # the last is for a word to come
        hidden_BTR = self.hidden(context_BTRN.transpose(2, 3).flatten(2)).relu()
        return functional.dropout(hidden_BTR, self.config.dropout, self.training)
