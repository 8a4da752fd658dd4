"""The hidden Markov language model: a start, a transition and an emission, and the exact questions they answer."""

from __future__ import annotations

from typing import ClassVar, NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import (
    Forward,
    KBest,
    Paths,
    Samples,
    Smoothed,
    forward,
    k_best,
    log_probs,
    posterior_entropy,
    sample,
    sample_posterior,
    smooth,
    viterbi,
)
from trellis.models.model import Model, ModelConfig, drawn_from
from trellis.models.parameters import HMMConfig, Scalar, build_parts
from trellis.models.scorer import check_ids, without_padding


class Tables(NamedTuple):
    """The distributions an HMM stands for, as probabilities: every row of each sums to one."""

    start_S: Tensor
    transition_SS: Tensor
    emission_SV: Tensor

    def rows(self, states_N: Tensor) -> tuple[Tensor, Tensor]:
        """p(next state | state), N×S, and p(word | state), N×V, of these states."""
        return self.transition_SS[states_N], self.emission_SV[states_N]


class Counts(NamedTuple):
    """Expected counts of a batch: what Baum–Welch normalises. Emissions are V×S, as they are stored."""

    log_prob_BT: Tensor
    final_BS: Tensor
    start_S: Tensor
    transition_SS: Tensor
    emission_VS: Tensor


class HMM(Model):
    """A hidden Markov language model.

    Every question takes `ids_BT` with, if rows differ in length, `lengths_B`; `missing_BT` marks tokens to
    marginalise; `state` is the belief an earlier call ended with, and None means the start of a text.
    """

    config: HMMConfig
    config_class: ClassVar[type[ModelConfig]] = HMMConfig

    def __init__(self, config: HMMConfig, seed: int | None = None) -> None:
        super().__init__(config)
        with drawn_from(seed):
            self.start, self.transition, self.emission = build_parts(config)

    # Distributions

    def log_start(self) -> Tensor:
        """log p(first state), S."""
        return self.start.logits().squeeze(0).log_softmax(-1)

    def log_transition(self) -> Tensor:
        """log p(next state | state), S×S."""
        return self.transition.logits().log_softmax(-1)

    def log_columns(self, ids_BT: Tensor, missing_BT: Tensor | None = None) -> tuple[Tensor, Tensor]:
        """log p(word | state) of each distinct word, N×S, and the row that each token takes, B×T.

        Missing tokens take a last row of zeros: every state explains them.
        """
        if missing_BT is not None:
            ids_BT = ids_BT.masked_fill(missing_BT, 0)
        self.check_ids(ids_BT)
        distinct, index_BT = ids_BT.unique(return_inverse=True)
        columns_NS = self.emission.columns(distinct)
        if missing_BT is not None:
            columns_NS = torch.cat([columns_NS, columns_NS.new_zeros(1, self.config.states)])
            index_BT = index_BT.masked_fill(missing_BT, len(distinct))
        return columns_NS, index_BT

    def log_emission(self, ids_BT: Tensor, missing_BT: Tensor | None = None) -> Tensor:
        """log p(token | state) of each token, B×T×S; zero where the token is missing."""
        columns_NS, index_BT = self.log_columns(ids_BT, missing_BT)
        return columns_NS.index_select(0, index_BT.flatten()).view(*index_BT.shape, self.config.states)

    @torch.no_grad()
    def tables(self) -> Tables:
        """All three distributions, whole: S×V numbers for the emission."""
        emission_VS = self.emission.logits().log_softmax(0).exp_()
        return Tables(self.log_start().exp(), self.log_transition().exp(), emission_VS.T)

    @torch.no_grad()
    def set_tables(self, start_S: Tensor, transition_SS: Tensor, emission_SV: Tensor) -> None:
        """Take these probabilities as parameters; every part must be scalar. Zeros stay zeros for good."""
        parts = [part for part in (self.start, self.transition, self.emission) if isinstance(part, Scalar)]
        if len(parts) < 3:
            raise TrellisError("only scalar parameters can be set to given probabilities, low-rank ones are learnt.")
        for part, table in zip(parts, (start_S[None], transition_SS, emission_SV.T), strict=True):
            part.table.copy_(table.log())

    def check_ids(self, ids_BT: Tensor) -> None:
        """Refuse ids outside the vocabulary before they index something else."""
        check_ids(ids_BT, self.config.vocab_size)

    # Questions

    def score(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, and the state to carry on from. Differentiable."""
        return log_probs(*self._by_word(ids_BT, state, lengths_B, missing_BT))

    @torch.no_grad()
    def filter(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Forward:
        """The belief over states after each token."""
        return forward(*self._by_word(ids_BT, state, lengths_B, missing_BT))

    @torch.no_grad()
    def smooth(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Smoothed:
        """The posterior over states at each token given all of them, and expected transition counts."""
        return smooth(*self._by_word(ids_BT, state, lengths_B, missing_BT))

    @torch.no_grad()
    def viterbi(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Paths:
        """The most probable state path of each row."""
        return viterbi(*self._evidence(ids_BT, lengths_B, missing_BT), lengths_B, state)

    @torch.no_grad()
    def k_best(
        self,
        ids_BT: Tensor,
        k: int,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> KBest:
        """The k most probable state paths of each row."""
        return k_best(*self._evidence(ids_BT, lengths_B, missing_BT), k, lengths_B, state)

    @torch.no_grad()
    def sample_posterior(
        self,
        ids_BT: Tensor,
        samples: int,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """State paths drawn from the posterior, B×N×T."""
        return sample_posterior(*self._evidence(ids_BT, lengths_B, missing_BT), samples, lengths_B, state, generator)

    @torch.no_grad()
    def entropy(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Tensor:
        """How unsure the model is of each row's state path: the posterior's entropy in nats, B."""
        return posterior_entropy(*self._evidence(ids_BT, lengths_B, missing_BT), lengths_B, state)

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""
        tables = self.tables()
        belief = tables.start_S[None] if state is None else state @ tables.transition_SS
        return (belief @ tables.emission_SV).log()

    @torch.no_grad()
    def sample(
        self,
        batch: int,
        length: int,
        state: Tensor | None = None,
        end: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Samples:
        """Token sequences drawn from the model, with the states that emitted them; `end` stops a row."""
        lengths_B = torch.full((batch,), length, device=self.device)
        return sample(*self.tables(), lengths_B, state, end, generator)

    @torch.no_grad()
    def expected_counts(self, ids_BT: Tensor, state: Tensor | None = None, lengths_B: Tensor | None = None) -> Counts:
        """Expected starts, transitions and emissions of a batch."""
        smoothed = self.smooth(ids_BT, state, lengths_B)
        emission_VS = smoothed.start_S.new_zeros(self.config.vocab_size, self.config.states)
        emission_VS.index_add_(
            0, without_padding(ids_BT, lengths_B).T.flatten(), smoothed.posterior_BTS.transpose(0, 1).flatten(0, 1)
        )
        return Counts(smoothed.log_prob_BT, smoothed.final_BS, smoothed.start_S, smoothed.transition_SS, emission_VS)

    def _by_word(
        self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None, missing_BT: Tensor | None
    ) -> tuple[Tensor, Tensor, Tensor, Tensor | None, Tensor | None, Tensor]:
        """What `log_probs`, `forward` and `smooth` take, with one column of emissions a distinct word."""
        log_columns_NS, index_BT = self.log_columns(without_padding(ids_BT, lengths_B), missing_BT)
        return self.log_start(), self.log_transition(), log_columns_NS, lengths_B, state, index_BT

    def _evidence(
        self, ids_BT: Tensor, lengths_B: Tensor | None, missing_BT: Tensor | None = None
    ) -> tuple[Tensor, Tensor, Tensor]:
        """What the other recursions take: log-probabilities of start, transition and every token."""
        log_emission_BTS = self.log_emission(without_padding(ids_BT, lengths_B), missing_BT)
        return self.log_start(), self.log_transition(), log_emission_BTS
