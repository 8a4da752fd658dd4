"""Constraints made ready to guide a language model: with the end of texts, and with what an HMM expects of them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.automata import Automaton, ending
from trellis.errors import InputError, TrellisError
from trellis.progress import counted
from trellis.steering.messages import Messages
from trellis.steering.next_tokens import NextTokens, chances_of

if TYPE_CHECKING:
    from trellis.models.hmm import HMM
    from trellis.text import Tokenizer


class Compilable(Protocol):
    """A constraint as people write it (`trellis.constraints`)."""

    def automaton(self, tokenizer: Tokenizer, *, ends: bool = False) -> Automaton:
        """Its automaton over the tokens of a tokenizer, with an end if it is to have one."""


def automaton_of(constraint: Compilable | Automaton, tokenizer: Tokenizer, ended: bool) -> Automaton:
    """The automaton of texts that meet a constraint.

    They end by the end token, where the tokenizer has one; unless they must have `ended`, whatever an end token may
    follow is accepted too.
    """
    eos = tokenizer.eos_id
    if ended and eos is None:
        raise TrellisError("texts cannot end in a vocabulary without an end token: leave ended=True out.")
    if not isinstance(constraint, Automaton):
        if not hasattr(constraint, "automaton"):
            raise InputError(
                f"{constraint!r} is no constraint: write contains('word') and the like, of trellis.constraints."
            )
        found = constraint.automaton(tokenizer, ends=eos is not None)
    else:
        found = constraint if eos is None or constraint.end is not None else ending(constraint, eos)
    if ended or eos is None or found.end is None:
        return found
    may_end_Q = found.next_QC[:, found.class_V[eos]] == found.end
    return replace(found, accepting_Q=found.accepting_Q | may_end_Q)


class Goal:
    """An automaton that texts of up to `tokens` tokens are to satisfy, and how an HMM sees its chances."""

    def __init__(self, hmm: HMM, automaton: Automaton, tokens: int) -> None:
        self.hmm, self.automaton, self.tokens = hmm, automaton, tokens

    @cached_property
    def ahead(self) -> NextTokens:
        """What is to be expected of each next token; made when it is first asked for."""
        return NextTokens(Messages(self.hmm, self.automaton, self.tokens))

    @cached_property
    def reachable_NQ(self) -> NDArray[np.bool_]:
        """Whether n more tokens, or an end within them, may lead from a state to acceptance."""
        automaton = self.automaton
        next_QC = automaton.next_QC[:, np.unique(automaton.class_V)]
        found_NQ = np.zeros((self.tokens + 1, automaton.states), np.bool_)
        found_NQ[0] = automaton.accepting_Q
        for n in range(1, self.tokens + 1):
            found_NQ[n] = found_NQ[n - 1][next_QC].any(1)
            if automaton.end is not None:
                found_NQ[n, automaton.end] = True
        return found_NQ

    def refusal(self, predicted_1S: Tensor, state: int) -> str | None:
        """Why no text can be made from here, as a part of a sentence; None: there is one."""
        if not self.reachable_NQ[self.tokens, state]:
            shortest = int(self.automaton.distance_Q[state])
            if shortest > self.tokens:
                return f"needs {counted(shortest, 'token')} or more: raise tokens={self.tokens}"
            if shortest >= 0:
                return f"is met by no text of {counted(self.tokens, 'token')}: change tokens"
            return "is met by no text: take out what contradicts the rest"
        messages = self.ahead.messages
        if float(messages.log_prob(predicted_1S, torch.tensor([state], device=self.hmm.device), self.tokens)) > -np.inf:
            return None
        return "has no probability under the HMM: use one that has seen its words, or raise tokens"

    def log_possible(self, state_N: Tensor, left: int) -> Tensor:
        """Zero for each token after which the automaton can still accept, −inf for the others, N×V."""
        automaton = self.automaton
        possible_NC = self.reachable_NQ[left - 1][automaton.next_QC[state_N.cpu().numpy()]]
        return torch.from_numpy(np.where(possible_NC, 0.0, -np.inf)[:, automaton.class_V])


@torch.no_grad()
def log_met(asked: Sequence[tuple[Goal, Tensor, Tensor]], left: int) -> list[tuple[Tensor, Tensor]]:
    """log p(met | what was read, token), B×V, with `left` tokens to come, and log p(met | what was read), B.

    Each goal has rows of its own: the distribution of their next token's state, B×S, and the automaton's state, B.
    Where float32 holds none of the HMM's probabilities, every token after which the automaton can still accept is as
    good as any other, and the probability before it is one.
    """
    found = []
    chances = chances_of([(goal.ahead, predicted_BS, state_B) for goal, predicted_BS, state_B in asked], left)
    for (goal, predicted_BS, state_B), its in zip(asked, chances, strict=True):
        log_met_BV, log_before_B = its.log_met(), goal.ahead.messages.log_prob(predicted_BS, state_B, left)
        lost_B = (log_met_BV.amax(1) == -torch.inf) | (log_before_B == -torch.inf)
        if bool(lost_B.any()):
            log_met_BV[lost_B] = goal.log_possible(state_B[lost_B], left).to(log_met_BV)
            log_before_B = log_before_B.masked_fill(lost_B, 0.0)
        found.append((log_met_BV, log_before_B))
    return found
