"""An HMM whose transitions read an RNN over all past words (Buys et al. 2018), and so are no longer Markov.

    p(z_t = j | z_t−1 = i, w_<t) = softmax over j of (a_ij + u_j · h_t),    h_t = LSTM(w_<t)

The RNN moves the logits of the states it leads to, whichever state they are reached from. With T = softmax(a) and
e_t = exp(u · h_t) that is T_ij e_tj / Σ_k T_ik e_tk, exactly: all the normalisers of a batch are one product with T, a
step of the recursion is one more, and nothing holds batch × time × states². Emissions are those of a dense HMM: free
logits, or inner products of vectors of states and words.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor, nn
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trellis.models.asking import asked_rows
from trellis.models.model import Model, ModelConfig, by_length, check_dropouts, check_sizes, drawn_from
from trellis.models.recurrence import Recurrence
from trellis.models.scorer import MaybeTensor, check_ids
from trellis.ops import walks
from trellis.ops.columns import low_rank_columns, scalar_columns
from trellis.ops.evidence import Evidence, scaled
from trellis.ops.precision import at_most_zero
from trellis.ops.products import counts, inner, product_with_transpose

TINY = 1e-30  # the least that a float32 is divided by here, and the least probability of a word given its best state
SPREAD = 10.0  # AdamW moves all parameters alike, but free logits must go farther than the weights of an RNN


@dataclass(frozen=True)
class HMMRNNConfig(ModelConfig):
    """The shape of an HMM with an RNN beside it."""

    kind: ClassVar[str] = "hmm_rnn"
    states: int = 900  # hidden states
    width: int = 128  # of the RNN: its word vectors and its hidden vector
    dropout: float = 0.3  # of the RNN's word vectors and hidden vector; only while learning
    rank: int | None = None  # of the emissions' logits, with vectors of this width; none: a table of free logits

    def __post_init__(self) -> None:
        super().__post_init__()
        check_sizes(self, "states", "width", *(() if self.rank is None else ("rank",)))
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
            if config.rank is None:
                self.emission_logits = nn.Parameter(torch.randn(config.vocab_size, config.states) / SPREAD)
            else:  # of products, whose logits have the same spread
                size = config.rank**-0.25
                self.emitting = nn.Parameter(torch.randn(config.states, config.rank) * size)
                self.emitted = nn.Parameter(torch.randn(config.vocab_size, config.rank) * size)
                self.emitted_bias = nn.Parameter(torch.zeros(config.vocab_size))
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
        log_lead_TBS, rnn = self._lead(ids_BT, rnn)
        if ids_BT.shape[1] == 0:
            return log_lead_TBS.new_zeros(ids_BT.shape), torch.cat([belief_BS, rnn], 1)
        matrix_SS = (SPREAD * self.transition_logits).softmax(-1)
        # What each state leads to in all, where the RNN leads; for every step at once.
        total_TBS = inner(log_lead_TBS.exp().flatten(0, 1), matrix_SS).view_as(log_lead_TBS).clamp_min(TINY)
        begun_B1 = belief_BS.sum(1, keepdim=True) > 0  # a row that believes in nothing has not
        start_S = (SPREAD * self.start_logits).softmax(-1)
        first_BS = torch.where(begun_B1, (belief_BS / total_TBS[0]) @ matrix_SS, start_S)
        led_TB1 = torch.ones_like(begun_B1).expand(len(log_lead_TBS), -1, -1).clone()
        led_TB1[0] = begun_B1
        log_evidence_TBS = torch.where(led_TB1, log_lead_TBS, 0.0) + self._log_emission(ids_BT.T)
        log_scale_TB, final_BS = _Recursion.apply(first_BS, matrix_SS, total_TBS, log_evidence_TBS)  # type: ignore[no-untyped-call]  # apply is untyped
        return at_most_zero(log_scale_TB.T), torch.cat([final_BS, rnn], 1)

    def _log_emission(self, ids_TB: Tensor) -> Tensor:
        """log p(word | state) of each token, T×B×S."""
        distinct, index_TB = ids_TB.unique(return_inverse=True)
        if self.config.rank is None:
            log_columns_NS = scalar_columns(SPREAD * self.emission_logits, distinct)
        else:
            log_columns_NS = low_rank_columns(self.emitted, self.emitting, self.emitted_bias, distinct)
        return functional.embedding(index_TB, log_columns_NS)

    def _lead(self, ids_BT: Tensor, state: Tensor | None) -> tuple[Tensor, Tensor]:
        """log e: where the RNN leads at each token, T×B×S, at most zero; and its state after the last."""
        vectors_BTR = functional.dropout(functional.embedding(ids_BT, self.vectors), self.config.dropout, self.training)
        hidden_BTR, state = self.recurrence(vectors_BTR, state)
        logits_BTS = self.lead(functional.dropout(hidden_BTR, self.config.dropout, self.training))
        return (logits_BTS - logits_BTS.detach().amax(-1, keepdim=True)).transpose(0, 1).contiguous(), state


class _Steps(NamedTuple):
    """A step from token to token: divided by what each state leads to in all, then across the matrix."""

    matrix_SS: Tensor
    total_TBS: Tensor

    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        """The belief of the first B rows one step on."""
        return (belief_BS / self.total_TBS[step, : len(belief_BS)]) @ self.matrix_SS

    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        """The transpose."""
        return (message_BS @ self.matrix_SS.T) / self.total_TBS[step, : len(message_BS)]


class _Recursion(torch.autograd.Function):
    """Log-probabilities T×B and the last beliefs of rows that take these steps, with a backward of its own.

    The matrix's gradient is one product for all steps; by autograd it would be one for each.
    """

    @staticmethod
    def forward(
        ctx: Any, first_BS: Tensor, matrix_SS: Tensor, total_TBS: Tensor, log_evidence_TBS: Tensor
    ) -> tuple[Tensor, Tensor]:
        time, batch, _ = log_evidence_TBS.shape
        index_TB = torch.arange(time * batch, device=first_BS.device).view(time, batch)
        ctx.evidence = Evidence(*scaled(log_evidence_TBS.flatten(0, 1)), index_TB)
        ctx.steps, ctx.running = _Steps(matrix_SS, total_TBS), [batch] * time
        ctx.belief_TBS, ctx.scale_TB, log_prob_TB, final_BS = walks.walk(
            ctx.steps, None, first_BS, ctx.evidence, ctx.running
        )
        least_TB = ctx.evidence.log_peak_N.view(time, batch) + math.log(TINY)
        return log_prob_TB.maximum(least_TB), final_BS

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_log_prob_TB: Tensor, grad_final_BS: Tensor) -> tuple[Tensor, ...]:
        (matrix_SS, total_TBS), belief_TBS = ctx.steps, ctx.belief_TBS
        posterior_TBS, message_TBS = walks.walk_back(
            ctx.steps, None, ctx.evidence, ctx.running, belief_TBS, ctx.scale_TB, grad_log_prob_TB, grad_final_BS
        )
        grad_total_TBS = torch.zeros_like(total_TBS)
        left_NS, message_NS = (belief_TBS[:-1] / total_TBS[1:]).flatten(0, 1), message_TBS[1:].flatten(0, 1)
        pulled_TBS = product_with_transpose(message_NS, matrix_SS).view_as(message_TBS[1:])
        grad_total_TBS[1:] = pulled_TBS.mul_(belief_TBS[:-1]).div_(total_TBS[1:].square()).neg_()
        return message_TBS[0], counts(left_NS, message_NS), grad_total_TBS, posterior_TBS
