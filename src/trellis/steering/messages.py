"""How probable it is that a constraint will be met: messages from the end of a text back, for every state of both.

    m_0[q, z] = 1 if the automaton accepts in q, else 0
    m_n[q, z] = Σ_v p(v | z) Σ_z′ p(z′ | z, v) m_n−1[δ(q, v), z′]

is the probability that n more tokens, of which the next comes from state z, lead the automaton from q to acceptance.
Tokens of a class act alike in the automaton, so that a token costs one matrix product for all states of the automaton.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.progress import Progress, counted
from trellis.steering.steps import Plain, Steps, steps_of

if TYPE_CHECKING:
    from trellis.automata import Automaton
    from trellis.models.hmm import HMM

LARGEST = 1 << 30  # numbers in all messages: 4 GB of float32


class Messages:
    """The messages of up to `length` tokens.

    next_QC        the automaton's steps, as a tensor
    message_NQS    divided by the largest of each automaton state, so that no number underflows
    log_scale_NQ   the logarithms of those; −inf where the constraint cannot be met any more
    """

    @torch.no_grad()
    def __init__(self, model: HMM, automaton: Automaton, length: int) -> None:
        if length < 0:
            raise TrellisError(f"a text of {length} tokens is none: give a length of 0 or more.")
        if (length + 1) * automaton.states * model.config.states > LARGEST:
            raise TrellisError(
                f"a constraint of {counted(automaton.states, 'state')} on {counted(length, 'token')} does not fit in "
                "memory: ask for a shorter text or a simpler constraint."
            )
        self.model, self.automaton, self.length = model, automaton, length
        self.steps: Steps = steps_of(model, automaton.class_V, automaton.classes)
        self.next_QC = torch.from_numpy(automaton.next_QC.astype("int64")).to(model.device)
        like = next(model.parameters())
        self.message_NQS = like.new_zeros(length + 1, automaton.states, model.config.states)
        self.log_scale_NQ = like.new_full((length + 1, automaton.states), -torch.inf)
        accepting_Q = torch.from_numpy(automaton.accepting_Q.copy()).to(model.device)
        self.message_NQS[0, accepting_Q] = 1.0
        self.log_scale_NQ[0, accepting_Q] = 0.0
        with Progress("looking ahead", length) as progress:
            for n in range(1, length + 1):
                self.message_NQS[n], self.log_scale_NQ[n] = self._earlier(self.message_NQS[n - 1], n)
                progress.advance()

    def _earlier(self, message_QS: Tensor, n: int) -> tuple[Tensor, Tensor]:
        """The messages of n tokens from those of n − 1, and the logarithms of their scales."""
        log_later_QC = self.log_scale_NQ[n - 1][self.next_QC]
        log_scale_Q = log_later_QC.amax(1)
        factor_QC = (log_later_QC - log_scale_Q.where(log_scale_Q > -torch.inf, 0.0)[:, None]).exp()
        left_QS, total_QS = self.steps.left(message_QS), torch.zeros_like(message_QS)
        for one, target_Q in enumerate(self.next_QC.T):
            targets_N, place_Q = target_Q.unique(return_inverse=True)
            emitted_QS = self._emitted(left_QS[targets_N], one)[place_Q]
            total_QS = self._joined(total_QS, emitted_QS * factor_QC[:, one, None])
        peak_Q = total_QS.amax(1)
        total_QS /= peak_Q.where(peak_Q > 0, 1.0)[:, None]
        log_scale_Q = log_scale_Q + peak_Q.log()
        if self.automaton.end is not None:  # nothing follows, and nothing is asked of it
            total_QS[self.automaton.end], log_scale_Q[self.automaton.end] = 1.0, 0.0
        return total_QS, log_scale_Q

    def _emitted(self, left_NS: Tensor, token_class: int) -> Tensor:
        return self.steps.emit(left_NS, token_class)

    def _joined(self, one_QS: Tensor, other_QS: Tensor) -> Tensor:
        return one_QS + other_QS

    @torch.no_grad()
    def log_prob(self, predicted_BS: Tensor, state_B: Tensor, left: int) -> Tensor:
        """log p(the constraint will be met), B, of rows with so many tokens left; never above zero.

        `predicted_BS` is the distribution of the next token's state, `state_B` the state of the automaton.
        """
        chance_B: Tensor = torch.linalg.vecdot(predicted_BS.to(self.message_NQS), self.message_NQS[left, state_B])
        return (chance_B.log() + self.log_scale_NQ[left, state_B]).clamp_max(0.0)

    def targets(self, state_B: Tensor, left: int) -> tuple[Tensor, Tensor]:
        """The messages after a token of each class, B×C×S, and the logarithms of their scales, B×C."""
        target_BC = self.next_QC[state_B]
        return self.message_NQS[left - 1, target_BC], self.log_scale_NQ[left - 1, target_BC]


class Bounds(Messages):
    """At least the probability of the best single text, where `Messages` sums over all: the maximum over tokens of

        g_n[q, z] = max_v p(v | z) Σ_z′ p(z′ | z) g_n−1[δ(q, v), z′]

    which no single text that goes on from q and z exceeds, as the maximum of a sum is at most the sum of maxima.
    """

    def _emitted(self, left_NS: Tensor, token_class: int) -> Tensor:
        assert isinstance(self.steps, Plain)
        return left_NS * self.steps.best_emission_CS[token_class]

    def _joined(self, one_QS: Tensor, other_QS: Tensor) -> Tensor:
        return one_QS.maximum(other_QS)
