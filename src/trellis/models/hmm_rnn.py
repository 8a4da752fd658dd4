"""An HMM whose transitions read an RNN over all past words (Buys et al. 2018), and so are no longer Markov.

    p(z_t = j | z_t−1 = i, w_<t) = softmax over j of (a_ij + u_j · h_t),    h_t = LSTM(w_<t)

The RNN moves the logits of the states it leads to, whichever state they are reached from. With T = softmax(a) and
e_t = exp(u · h_t) that is T_ij e_tj / Σ_k T_ik e_tk, exactly: all the normalisers of a batch are one product with T, a
step of the recursion is one more, and nothing holds batch × time × states². Emissions are those of a dense scalar HMM.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, nn
from torch.nn import functional

from trellis.models.asking import asked_rows
from trellis.models.model import Model, ModelConfig, by_length, check_dropouts, check_sizes, drawn_from
from trellis.models.recurrence import Recurrence
from trellis.models.scorer import MaybeTensor, check_ids
from trellis.ops.columns import scalar_columns
from trellis.ops.precision import at_most_zero

TINY = 1e-30  # the least that a float32 is divided by here, and the least probability of a word given its best state
SPREAD = 10.0  # AdamW moves all parameters alike, but free logits must go farther than the weights of an RNN


@dataclass(frozen=True)
class HMMRNNConfig(ModelConfig):
    """The shape of an HMM with an RNN beside it."""

    kind: ClassVar[str] = "hmm_rnn"
    states: int = 900  # hidden states
    width: int = 128  # of the RNN: its word vectors and its hidden vector
    dropout: float = 0.3  # of the RNN's word vectors and hidden vector; only while learning

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "states", "width")
        check_dropouts(self, "dropout")


class HMMRNN(Model):
    """A recurrent HMM; its state is the belief over hidden states and the RNN's h and c, side by side in a row."""

    config: HMMRNNConfig
    config_class: ClassVar[type[ModelConfig]] = HMMRNNConfig

    def __init__(self, config: HMMRNNConfig, seed: int | None = None) -> None:
        super().__init__(config)
        with drawn_from(seed):
            self.start_logits = nn.Parameter(torch.randn(config.states) / SPREAD)
            self.transition_logits = nn.Parameter(torch.randn(config.states, config.states) / SPREAD)
            self.emission_logits = nn.Parameter(torch.randn(config.vocab_size, config.states) / SPREAD)
            self.vectors = nn.Parameter(torch.empty(config.vocab_size, config.width).uniform_(-0.1, 0.1))
            self.recurrence = Recurrence([config.width, config.width], dropout=0.0)
            self.lead = nn.Linear(config.width, config.states, bias=False)

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from."""
        width = self.config.states + self.recurrence.width
        return by_length(self._score, *asked_rows(ids_BT, state, lengths_B, width, self.start_logits))

    def _score(self, ids_BT: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        check_ids(ids_BT, self.config.vocab_size)
        states = self.config.states
        rnn = None if state is None else state[:, states:]
        belief_BS = self.start_logits.new_zeros(len(ids_BT), states) if state is None else state[:, :states]
        lead_TBS, rnn = self._lead(ids_BT, rnn)
        columns_NS, log_peak_N, index_BT = self._emission(ids_BT)
        transition_SS = (SPREAD * self.transition_logits).softmax(-1)
        # What each state leads to in all, where the RNN leads; for every step at once.
        total_TBS = (lead_TBS @ transition_SS.T).clamp_min(TINY)
        scales: list[Tensor] = []
        for lead_BS, total_BS, index_B in zip(lead_TBS, total_TBS, index_BT.T, strict=True):
            predicted_BS = ((belief_BS / total_BS) @ transition_SS) * lead_BS
            if not scales:  # a row that believes in nothing has not begun
                begun_B1 = belief_BS.sum(1, keepdim=True) > 0
                predicted_BS = torch.where(begun_B1, predicted_BS, (SPREAD * self.start_logits).softmax(-1))
            joint_BS = predicted_BS * columns_NS[index_B]
            scales.append(joint_BS.sum(1).clamp_min(TINY))
            belief_BS = joint_BS / scales[-1][:, None]
        log_scale_BT = torch.stack(scales, 1).log() if scales else lead_TBS.new_zeros(ids_BT.shape)
        return at_most_zero(log_scale_BT + log_peak_N[index_BT]), torch.cat([belief_BS, rnn], 1)

    def _emission(self, ids_BT: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """p(word | state) of each distinct word over its best state's, N×S; log of that; and each token's row."""
        distinct, index_BT = ids_BT.unique(return_inverse=True)
        log_columns_NS = scalar_columns(SPREAD * self.emission_logits, distinct)
        log_peak_N = log_columns_NS.detach().amax(1)
        return (log_columns_NS - log_peak_N[:, None]).exp(), log_peak_N, index_BT

    def _lead(self, ids_BT: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """Where the RNN leads at each token, T×B×S, at most one; and its state after the last."""
        vectors_BTR = functional.dropout(functional.embedding(ids_BT, self.vectors), self.config.dropout, self.training)
        hidden_BTR, state = self.recurrence(vectors_BTR, state)
        logits_BTS = self.lead(functional.dropout(hidden_BTR, self.config.dropout, self.training))
        return (logits_BTS - logits_BTS.detach().amax(-1, keepdim=True)).exp().transpose(0, 1), state
