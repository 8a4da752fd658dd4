"""Texts with missing tokens, of models with too many states to hold all pairs of them.

A token that was seen has the states of its group; one that is missing may have any state. So a step leads from one
list of states or all to one or all, and the matrices between them are made as they are crossed and let go. It is the
same recursion, a text at a time; where that underflows, and where float32 would not do, in float64 log space.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.forward import Forward
from trellis.inference.paths import KBest, best_paths
from trellis.inference.recursion import Evidence, Rows, Walk, walk, walk_back
from trellis.inference.sampling import CHUNK, draw
from trellis.inference.transitions import Crossed

Matrix = Callable[[Tensor, Tensor], Tensor]  # from N states into lists of M×J, [to, from]


class GappedText(NamedTuple):
    """One text of T tokens.

    first_S      p(first state) before its token is seen; of states that it may have, if it is not missing
    before_S     what a text without tokens ends with
    states_TK    the states of each token's group
    log_seen_TK  log p(token | state) of these
    missing_T    which tokens are missing; what stands for them above means nothing
    all_LK       all states, in lists
    into         p(next state | state)
    log_into     its logarithm, in float64
    """

    first_S: Tensor
    before_S: Tensor
    states_TK: Tensor
    log_seen_TK: Tensor
    missing_T: Tensor
    all_LK: Tensor
    into: Matrix
    log_into: Matrix

    def steps(self, matrix: Matrix) -> Crossed:
        """The steps from token to token."""
        lists = [self.all_LK if gap else self.states_TK[t : t + 1] for t, gap in enumerate(self.missing_T.tolist())]
        return Crossed(lists, matrix)

    def log_emission(self) -> Tensor:
        """log p(token | state), T×S: zero where it is missing, −inf outside its group."""
        log_emission_TS = self.first_S.new_full((len(self.missing_T), len(self.first_S)), -torch.inf)
        log_emission_TS.scatter_(1, self.states_TK, self.log_seen_TK)
        log_emission_TS[self.missing_T] = 0.0
        return log_emission_TS

    def columns(self) -> Tensor:
        """Every token has a column of its own, T×1."""
        return torch.arange(len(self.missing_T), device=self.missing_T.device)[:, None]


class Gapped(NamedTuple):
    """A batch of texts, and B×T zeros in the precision that is to be answered in."""

    texts: Sequence[GappedText]
    zeros_BT: Tensor

    def filled(self, value: float, *more: int) -> Tensor:
        """B×… in the precision of the answer."""
        return self.zeros_BT.new_full((len(self.zeros_BT), *more), value)


@torch.no_grad()
def gapped_log_probs(batch: Gapped, states: int) -> tuple[Tensor, Tensor]:
    """Each token's log-probability given those before it (B×T), and the belief after the last (B×S)."""
    log_prob_BT, final_BS = batch.zeros_BT.clone(), batch.filled(0.0, states)
    for row, text in enumerate(batch.texts):
        log_prob_T, _, final_BS[row] = _filtered(text)
        log_prob_BT[row, : len(log_prob_T)] = log_prob_T
    return log_prob_BT, final_BS


@torch.no_grad()
def gapped_beliefs(batch: Gapped, states: int, *, smoothed: bool) -> Forward:
    """Each token's log-probability, and the belief after it or, smoothed, its posterior given the whole text."""
    log_prob_BT, final_BS = batch.zeros_BT.clone(), batch.filled(0.0, states)
    belief_BTS = batch.filled(0.0, log_prob_BT.shape[1], states)
    for row, text in enumerate(batch.texts):
        log_prob_T, belief_TS, final_BS[row] = (_smoothed if smoothed else _filtered)(text)
        log_prob_BT[row, : len(log_prob_T)], belief_BTS[row, : len(log_prob_T)] = log_prob_T, belief_TS
    return Forward(log_prob_BT, belief_BTS, final_BS)


@torch.no_grad()
def gapped_k_best(batch: Gapped, k: int) -> KBest:
    """The k most probable state paths of each text."""
    log_prob_BK, states_BKT = batch.filled(0.0, k), batch.filled(-1, k, batch.zeros_BT.shape[1]).long()
    for row, text in enumerate(batch.texts):
        length = len(text.missing_T)
        logs = text.first_S.double().log()[None], text.steps(text.log_into), text.log_emission().double()
        best = best_paths(*logs, text.columns().T, torch.tensor([length], device=text.missing_T.device), k)
        log_prob_BK[row], states_BKT[row, :, :length] = best.log_prob_BK[0], best.states_BKT[0]
    return KBest(log_prob_BK, states_BKT)


@torch.no_grad()
def gapped_sample_posterior(batch: Gapped, samples: int, generator: torch.Generator | None = None) -> Tensor:
    """Independent draws of z ~ p(z | o), (B, samples, T); −1 past a text's end and in impossible texts."""
    states_BNT = batch.filled(-1, samples, batch.zeros_BT.shape[1]).long()
    for row, text in enumerate(batch.texts):
        log_prob_T, log_belief_TS = _log_filtered(text)
        if not bool(torch.isfinite(log_prob_T.sum())):
            continue
        for some_NT in states_BNT[row, :, : len(log_prob_T)].split(max(1, CHUNK // len(text.first_S))):
            _draw_paths(text.steps(text.log_into), log_belief_TS, some_NT, generator)
    return states_BNT


@torch.no_grad()
def gapped_entropy(batch: Gapped) -> Tensor:
    """H(z | o) of each text, B, as `posterior_entropy` has it."""
    entropies = [_entropy(text) for text in batch.texts]
    return torch.tensor(entropies, dtype=torch.float64, device=batch.zeros_BT.device)


# In scaled probability space


def _walk(text: GappedText) -> Walk[Crossed]:
    evidence = Evidence.of(text.log_emission(), text.columns())
    rows = Rows.of(None, 1, len(text.missing_T))
    return walk(text.first_S[None], text.steps(text.into), evidence, rows, text.before_S[None])


def _filtered(text: GappedText) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities T, beliefs T×S, and the last of them."""
    done = _walk(text)
    if not done.underflowed():
        return done.log_prob_TB[:, 0], done.belief_TBS[:, 0], done.final_BS[0]
    log_prob_T, log_belief_TS = _log_filtered(text)
    return log_prob_T, log_belief_TS.exp(), log_belief_TS[-1].exp()


def _smoothed(text: GappedText) -> tuple[Tensor, Tensor, Tensor]:
    """Log-probabilities T, posteriors T×S, and the last belief."""
    done = _walk(text)
    if not done.underflowed():
        posterior_TBS, _ = walk_back(done, torch.ones_like(done.log_prob_TB))
        # Rounding can leave a state that is next to impossible a little less than nothing.
        return done.log_prob_TB[:, 0], posterior_TBS[:, 0].clamp_min(0.0), done.final_BS[0]
    log_prob_T, log_belief_TS = _log_filtered(text)
    log_posterior_TS = log_belief_TS + _log_after(text)
    # An impossible text has no posterior.
    return log_prob_T, log_posterior_TS.softmax(1).nan_to_num(0.0), log_belief_TS[-1].exp()


# In float64 log space


def _log_filtered(text: GappedText) -> tuple[Tensor, Tensor]:
    """Log-probabilities T and logarithms of beliefs T×S; −inf from an impossible token on."""
    steps, log_belief_TS = text.steps(text.log_into), text.log_emission().double()
    log_prob_T, log_predicted_S = log_belief_TS.new_zeros(len(log_belief_TS)), text.first_S.double().log()
    for t, log_joint_S in enumerate(log_belief_TS):
        if t > 0:
            log_predicted_S = _log_push(steps, log_belief_TS[t - 1], t)
        log_joint_S += log_predicted_S
        log_prob_T[t] = log_joint_S.logsumexp(0)
        if bool(log_prob_T[t] > -torch.inf):
            log_joint_S -= log_prob_T[t]
    return log_prob_T, log_belief_TS


def _log_after(text: GappedText) -> Tensor:
    """log p(the tokens after this one | its state), T×S."""
    steps, log_emission_TS = text.steps(text.log_into), text.log_emission().double()
    log_after_TS = torch.zeros_like(log_emission_TS)
    for t in reversed(range(1, len(log_after_TS))):
        log_after_TS[t - 1] = _log_pull(steps, log_emission_TS[t] + log_after_TS[t], t)
    return log_after_TS


def _log_push(steps: Crossed, log_belief_S: Tensor, step: int) -> Tensor:
    log_pushed_S = torch.full_like(log_belief_S, -torch.inf)
    for leave_N, enter_C, log_into_CN in steps.crossings(step):
        more_C = (log_into_CN + log_belief_S[leave_N]).logsumexp(1)
        log_pushed_S[enter_C] = log_pushed_S[enter_C].logaddexp(more_C)
    return log_pushed_S


def _log_pull(steps: Crossed, log_message_S: Tensor, step: int) -> Tensor:
    log_pulled_S = torch.full_like(log_message_S, -torch.inf)
    for leave_N, enter_C, log_into_CN in steps.crossings(step):
        more_N = (log_into_CN + log_message_S[enter_C, None]).logsumexp(0)
        log_pulled_S[leave_N] = log_pulled_S[leave_N].logaddexp(more_N)
    return log_pulled_S


def _draw_paths(steps: Crossed, log_belief_TS: Tensor, states_NT: Tensor, generator: torch.Generator | None) -> None:
    """Fill in paths from the last token to the first: p(z_t | z_t+1, o) ∝ belief[t, z_t] · p(z_t+1 | z_t)."""
    for t in reversed(range(len(log_belief_TS))):
        log_weight_NS = log_belief_TS[t].expand(len(states_NT), -1)
        if t + 1 < len(log_belief_TS):
            log_leading_NS = torch.full_like(log_weight_NS, -torch.inf)
            for leave_N, enter_C, log_into_CN in steps.crossings(t + 1):
                path_P, place_P = (states_NT[:, t + 1, None] == enter_C).nonzero(as_tuple=True)
                log_leading_NS[path_P[:, None], leave_N] = log_into_CN[place_P]
            log_weight_NS = log_weight_NS + log_leading_NS
        states_NT[:, t] = draw(log_weight_NS.softmax(1), generator)


def _entropy(text: GappedText) -> float:
    """log p(o) − E[log p(z, o)], the expectation step by step; −inf of an impossible text."""
    log_prob_T, log_belief_TS = _log_filtered(text)
    if not bool(torch.isfinite(log_prob_T.sum())):
        return -torch.inf
    log_after_TS, log_emission_TS = _log_after(text), text.log_emission().double()
    posterior_TS = (log_belief_TS + log_after_TS).softmax(1)
    expected = _weighed(posterior_TS, log_emission_TS) + _weighed(posterior_TS[:1], text.first_S.double().log())
    for t in range(1, len(log_prob_T)):
        log_later_S = log_emission_TS[t] + log_after_TS[t] - log_prob_T[t:].sum()
        for leave_N, enter_C, log_into_CN in text.steps(text.log_into).crossings(t):
            log_both_CN = log_belief_TS[t - 1, leave_N] + log_into_CN + log_later_S[enter_C, None]
            expected = expected + _weighed(log_both_CN.exp(), log_into_CN)
    return float(log_prob_T.sum() - expected)


def _weighed(weight: Tensor, number: Tensor) -> Tensor:
    """Σ weight · number, where nothing of −inf is nothing."""
    return torch.where(weight > 0, weight * number, 0.0).sum()
