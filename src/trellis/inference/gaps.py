"""Texts with missing tokens, of models with too many states to hold all pairs of them.

A token that was seen has the states of its group; one that is missing may have any state. So a step leads from one
list of states or many to one or many, and the matrices between them are made as they are crossed, a list at a time,
and let go. It is the same recursion, a text at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import reference
from trellis.inference.entropy import entropy_of
from trellis.inference.forward import Forward
from trellis.inference.paths import KBest, best_paths
from trellis.inference.recursion import Evidence, Rows, Walk, walk, walk_back
from trellis.inference.sampling import sample_paths
from trellis.inference.transitions import Crossed


class GappedText(NamedTuple):
    """One text of T tokens.

    first_S          p(first state) before its token is seen
    before_S         what a text without tokens ends with
    log_emission_TS  log p(token | state): zero where it is missing, −inf outside the lists
    lists            the states that each token may have, L×K: of one list, or where it is missing of all
    into             p(next state | state) [to, from], from a list of K states into lists of M×J states
    log_into         its logarithm in float64
    """

    first_S: Tensor
    before_S: Tensor
    log_emission_TS: Tensor
    lists: list[Tensor]
    into: Callable[[Tensor, Tensor], Tensor]
    log_into: Callable[[Tensor, Tensor], Tensor]

    def steps(self, of: Callable[[Tensor], Tensor] | None = None) -> Crossed:
        """The steps from token to token; by what is to be taken `of` the logarithms of their probabilities, if any."""
        if of is None:
            return Crossed(len(self.first_S), self.lists, self.into)
        return Crossed(len(self.first_S), self.lists, lambda leave_K, enter_MJ: of(self.log_into(leave_K, enter_MJ)))

    def length(self) -> Tensor:
        """How many tokens there are, as the one row of a batch."""
        return torch.tensor([len(self.log_emission_TS)], device=self.first_S.device)

    def columns(self) -> tuple[Tensor, Tensor]:
        """Emissions as a table where every token has a column of its own, and the column that each takes, T×1."""
        return self.log_emission_TS, torch.arange(len(self.log_emission_TS), device=self.first_S.device)[:, None]

    def rows(self) -> Rows:
        """A batch of this text alone."""
        return Rows.of(None, 1, len(self.log_emission_TS))

    def double(self) -> GappedText:
        """The same in float64."""
        return self._replace(
            first_S=self.first_S.double(), before_S=self.before_S.double(),
            log_emission_TS=self.log_emission_TS.double(),
        )  # fmt: skip


class Gapped(NamedTuple):
    """A batch: its texts one after the other, and the tensor that answers begin as, B×T zeros."""

    texts: Iterator[GappedText]
    zeros_BT: Tensor

    def filled(self, value: float, *more: int) -> Tensor:
        """An answer to be given text by text, B×…"""
        return self.zeros_BT.new_full((len(self.zeros_BT), *more), value)


def _walk(text: GappedText) -> Walk[Crossed]:
    """Filter a text, and once more in float64 if it underflowed."""
    done = _filter(text, text.steps())
    return _walk_in_float64(text) if done.underflowed() else done


def _walk_in_float64(text: GappedText) -> Walk[Crossed]:
    done = _filter(text.double(), text.steps(torch.exp))
    if done.underflowed():
        _too_improbable(0, len(text.log_emission_TS))
    return done


def _filter(text: GappedText, steps: Crossed) -> Walk[Crossed]:
    return walk(text.first_S[None], steps, Evidence.of(*text.columns()), text.rows(), text.before_S[None])


def _too_improbable(row: int, length: int) -> reference.Sequence:
    """Where others go on in log space: that would take all pairs of states at once."""
    raise TrellisError("a text with gaps is next to impossible, beyond what float64 can tell: write its words out.")


@torch.no_grad()
def gapped_log_probs(batch: Gapped, states: int) -> tuple[Tensor, Tensor]:
    """Each token's log-probability given those before it, zero if missing (B×T), and the belief after the last."""
    log_prob_BT, final_BS = batch.zeros_BT.clone(), batch.filled(0.0, states)
    for row, done in enumerate(map(_walk, batch.texts)):
        log_prob_BT[row, : len(done.log_prob_TB)] = done.log_prob_TB[:, 0]
        final_BS[row] = done.final_BS[0]
    return log_prob_BT, final_BS


@torch.no_grad()
def gapped_beliefs(batch: Gapped, states: int, *, smoothed: bool) -> Forward:
    """Each token's log-probability, and the belief after it or, smoothed, its posterior given the whole text."""
    log_prob_BT, final_BS = batch.zeros_BT.clone(), batch.filled(0.0, states)
    belief_BTS = batch.filled(0.0, log_prob_BT.shape[1], states)
    for row, done in enumerate(map(_walk, batch.texts)):
        length = len(done.log_prob_TB)
        log_prob_BT[row, :length] = done.log_prob_TB[:, 0]
        belief_TBS = walk_back(done, torch.ones_like(done.log_prob_TB))[0] if smoothed else done.belief_TBS
        belief_BTS[row, :length] = belief_TBS[:, 0].clamp_min(0.0)
        final_BS[row] = done.final_BS[0]
    return Forward(log_prob_BT, belief_BTS, final_BS)


@torch.no_grad()
def gapped_k_best(batch: Gapped, k: int) -> KBest:
    """The k most probable state paths of each text."""
    log_prob_BK, time = batch.filled(0.0, k), batch.zeros_BT.shape[1]
    states_BKT = batch.filled(-1, k, time).long()
    for row, text in enumerate(map(GappedText.double, batch.texts)):
        log_columns_TS, column_TB = text.columns()
        logs = text.first_S.log()[None], text.steps(_themselves), log_columns_TS
        best = best_paths(*logs, column_TB.T, text.length(), k)
        log_prob_BK[row], states_BKT[row, :, : len(log_columns_TS)] = best.log_prob_BK[0], best.states_BKT[0]
    return KBest(log_prob_BK, states_BKT)


@torch.no_grad()
def gapped_sample_posterior(batch: Gapped, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Independent draws of z ~ p(z | o), (B, samples, T); −1 past a text's end."""
    states_BNT = batch.filled(-1, samples, batch.zeros_BT.shape[1]).long()
    for row, text in enumerate(batch.texts):
        done = _walk_in_float64(text)  # a draw may need a state that float32 holds to be impossible
        belief_1TS = done.belief_TBS.transpose(0, 1)
        drawn_1NT = sample_paths(belief_1TS, done.transition, text.length(), samples, generator, _too_improbable)
        states_BNT[row, :, : belief_1TS.shape[1]] = drawn_1NT[0]
    return states_BNT


@torch.no_grad()
def gapped_entropy(batch: Gapped) -> Tensor:
    """H(z | o) of each text, B, as `posterior_entropy` has it."""
    entropy_B = torch.zeros(len(batch.zeros_BT), dtype=torch.float64, device=batch.zeros_BT.device)
    for row, text in enumerate(map(GappedText.double, batch.texts)):
        steps = text.steps(torch.exp), text.steps(_entropies)
        entropy_B[row] = entropy_of(text.first_S[None], *steps, *text.columns(), text.rows(), _too_improbable)[0]
    return entropy_B


def _themselves(log_prob: Tensor) -> Tensor:
    return log_prob


def _entropies(log_prob: Tensor) -> Tensor:
    """−p log p."""
    entropies: Tensor = torch.special.entr(log_prob.exp())
    return entropies
