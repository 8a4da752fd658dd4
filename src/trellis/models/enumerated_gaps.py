"""Gaps of models that remember more than one word: every way to fill them is scored as a text of its own.

    p(seen) = Σ_f p(seen, words f in the gaps)

The word of a gap decides not only how its state is left, but also what is remembered after it, so no step can sum over
it. With V words there are V^gaps ways; to score them, what comes before a row's first gap is walked once for all.
Nothing here learns: while a model is in training mode, it answers as it does in use.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, NamedTuple

import torch
from torch import Tensor

from trellis import inference
from trellis.errors import TrellisError
from trellis.inference import Chain, Filtered, Smoothed
from trellis.inference.chain import log_carried, to_carry
from trellis.models.asking import Asked
from trellis.models.chain_of import chain_of
from trellis.models.memory import MISSING, last_words
from trellis.models.remembering import Remembered
from trellis.ops.precision import widened
from trellis.progress import Progress, counted

if TYPE_CHECKING:
    from trellis.models.distributions import Distributions
    from trellis.models.questions import Questions

LARGEST = 1 << 18  # ways to fill the gaps of a row
AT_ONCE = 256  # of them that are scored together
NUMBERS = 1 << 26  # in the beliefs of those, and in the scores of all
LEAST = torch.finfo(torch.float32).min  # a logarithm that can be taken from −inf


def needed(model: Distributions, asked: Asked) -> bool:
    """Whether a batch has gaps whose words matter for longer than the step after them.

    Of a longer memory a gap at the end of a row does not: it is never left.
    """
    if model.ngrams is not None:
        return bool(asked.gaps().any())
    return model.config.memory > 1 and bool((asked.gaps()[:, :-1] & asked.inside()[:, 1:]).any())


@torch.no_grad()
def score(model: Questions, asked: Asked) -> tuple[Tensor, Tensor]:
    """log p(token | tokens seen before it), B×T, and the state to carry on from, as `inference.score`."""
    time = asked.ids_BT.shape[1]
    log_prob_BT, state_BW = _by_rows(
        model, asked, lambda some: model.score(some.ids_BT, some.state, some.lengths_B), lambda row: row.scored(time)
    )
    return log_prob_BT, state_BW


@torch.no_grad()
def filter(model: Questions, asked: Asked) -> Filtered:  # the name of the algorithm
    """The belief over all states after each token, as `inference.filter`."""
    return Filtered(*_beliefs(model, asked, inference.filter))


@torch.no_grad()
def smooth(model: Questions, asked: Asked) -> Smoothed:
    """The posterior over all states at each token, as `inference.smooth`."""
    return Smoothed(*_beliefs(model, asked, inference.smooth))


@torch.no_grad()
def fill(model: Questions, asked: Asked) -> Tensor:
    """log p(word | all tokens seen) of each gap, row by row and from left to right, N×V."""
    words = model.config.vocab_size
    found = [next(model.parameters()).new_zeros(0, words)]
    with _in_use(model):
        for row in _rows(model, asked, asked.gaps().any(1)):
            many = int(row.gap_T.sum())
            log_share = row.log_shares()[:, -1].view([words] * many)
            for gap in range(many):
                others = [other for other in range(many) if other != gap]
                found.append((log_share.logsumexp(others) if others else log_share)[None].to(found[0]))
    return torch.cat(found)


# The questions about a chain that are answered so; the others would need all ways at once.
ANSWERS: dict[Callable[..., Any], Callable[[Questions, Asked], Any]] = {
    inference.score: score,
    inference.filter: filter,
    inference.smooth: smooth,
}


def _beliefs(
    model: Questions, asked: Asked, question: Callable[[Chain], Filtered | Smoothed]
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Log-probabilities, beliefs over all states, these, and what is carried on."""
    time, states = asked.ids_BT.shape[1], model.config.states

    def at_once(some: Asked) -> tuple[Tensor, Tensor, Tensor]:
        log_prob_BT, belief_BTJ, states_BTJ, state_BW = question(chain_of(model, some))
        zeros_BTS = belief_BTJ.new_zeros(*belief_BTJ.shape[:2], states)
        return log_prob_BT, zeros_BTS.scatter_add_(2, states_BTJ, belief_BTJ), state_BW

    def each(row: _Row) -> tuple[Tensor, Tensor, Tensor]:
        log_share_WT = row.log_shares()
        if question is inference.smooth:  # all tokens say which way it is, not only those before
            log_share_WT = log_share_WT[:, -1:].expand_as(log_share_WT)
        log_prob_1T, state_1W = row.scored(time)
        return log_prob_1T, row.mixed(question, log_share_WT, time), state_1W

    log_prob_BT, belief_BTS, state_BW = _by_rows(model, asked, at_once, each)
    return log_prob_BT, belief_BTS, model.everything().expand_as(belief_BTS), state_BW


def _by_rows(
    model: Questions,
    asked: Asked,
    at_once: Callable[[Asked], tuple[Tensor, ...]],
    each: Callable[[_Row], tuple[Tensor, ...]],
) -> tuple[Tensor, ...]:
    """What is true of a batch's rows in their order: asked at once of those without gaps, one by one of the others."""
    gap_B = asked.gaps().any(1)
    whole_N, gap_N = (~gap_B).nonzero().flatten(), gap_B.nonzero().flatten()
    with _in_use(model):
        found = [at_once(asked.some(whole_N)._replace(missing_BT=None))] if len(whole_N) else []
        found += [each(row) for row in _rows(model, asked, gap_B)]
    place_B = torch.cat([whole_N, gap_N]).argsort()
    return tuple(torch.cat(parts).index_select(0, place_B) for parts in zip(*found, strict=True))


class _Row(NamedTuple):
    """A row of a batch, and what is true of every way to fill its gaps, W of them.

    asked         the row in its own length
    gap_T         which tokens are missing
    log_before_P  log-probabilities of the tokens before its first gap
    log_joint_WT  log p(tokens and words in the gaps up to here | tokens before the first gap), from there on, float64
    log_belief_S  log p(tokens from there to the end of the row, last state), summed over the ways
    """

    model: Questions
    asked: Asked
    gap_T: Tensor
    log_before_P: Tensor
    log_joint_WT: Tensor
    log_belief_S: Tensor

    @classmethod
    def of(cls, model: Questions, whole: Asked) -> _Row:
        """Score every way to fill the gaps of a row."""
        length = whole.ids_BT.shape[1] if whole.lengths_B is None else int(whole.lengths_B[0])
        asked, gap_T = Asked(whole.ids_BT[:, :length], state=whole.state), whole.gaps()[0, :length]
        first = int(gap_T.nonzero()[0])
        log_before_1P, state = model.score(asked.ids_BT[:, :first], asked.state)
        rest = asked.between(first, length)._replace(state=state)
        log_joint, log_belief_S = [], torch.full_like(log_carried(state[0, : model.config.states]), -torch.inf)
        for _, ways in _ways(model, rest, gap_T[first:], "filling gaps"):
            log_prob_NT, state_NW = model.score(ways.ids_BT, ways.state)
            log_joint.append(widened(log_prob_NT).cumsum(1))
            log_belief_NS = log_joint[-1][:, -1:] + log_carried(state_NW[:, : model.config.states])
            log_belief_S = torch.logaddexp(log_belief_S, log_belief_NS.logsumexp(0))
        return cls(model, asked, gap_T, log_before_1P[0], torch.cat(log_joint), log_belief_S)

    def scored(self, time: int) -> tuple[Tensor, Tensor]:
        """log p(token | tokens seen before it), 1×T, with so many tokens of padding, and the state after the row."""
        gap_T, log_all_T = self.gap_T[len(self.log_before_P) :], self.log_joint_WT.logsumexp(0)
        still_T = gap_T.sum() - gap_T.cumsum(0)  # gaps to come, whose words the ways tell apart already
        log_total_T = log_all_T - still_T * math.log(self.model.config.vocab_size)
        log_prob_T = log_total_T.diff(prepend=log_total_T.new_zeros(1)).masked_fill(gap_T, 0.0).clamp_max(0.0)
        log_prob_T = log_prob_T.masked_fill(log_total_T == -torch.inf, -torch.inf)
        log_prob_T = torch.cat([self.log_before_P, log_prob_T.to(self.log_before_P)])
        return torch.nn.functional.pad(log_prob_T, (0, time - len(log_prob_T)))[None], self._state()

    def _state(self) -> Tensor:
        """The belief after the row, and the last words, among which those of gaps are missing."""
        before = Remembered.of(self.model, self.asked.state, 1)
        words_1M = last_words(before.words_BM, self.asked.ids_BT.masked_fill(self.gap_T, MISSING))[:, -1]
        log_belief_S = self.log_belief_S - self.log_belief_S.logsumexp(0).clamp_min(LEAST)
        return Remembered(to_carry(log_belief_S, before.belief_BS)[None], words_1M).joined()

    def log_shares(self) -> Tensor:
        """log p(words in the gaps up to a token | tokens up to it) of every way, W×T; those that are alike share it."""
        alike_WP = self.log_joint_WT.new_zeros(len(self.log_joint_WT), len(self.log_before_P))
        log_joint_WT = torch.cat([alike_WP, self.log_joint_WT], 1)
        return log_joint_WT - log_joint_WT.logsumexp(0).clamp_min(LEAST)

    def mixed(self, question: Callable[[Chain], Filtered | Smoothed], log_share_WT: Tensor, time: int) -> Tensor:
        """Beliefs of all ways by their shares, over all states, 1×T×S."""
        states = self.model.config.states
        begin_T1 = torch.arange(len(self.gap_T), device=self.gap_T.device)[:, None] * states
        found = log_share_WT.new_zeros(len(self.gap_T) * states)
        for place, ways in _ways(self.model, self.asked, self.gap_T, "weighing beliefs"):
            answer = question(chain_of(self.model, ways))
            weight_NTS = log_share_WT[place].exp()[:, :, None] * answer[1]
            found.index_add_(0, (begin_T1 + answer.states_BTS).flatten(), weight_NTS.flatten())
        found_TS = torch.nn.functional.pad(found.view(-1, states), (0, 0, 0, time - len(self.gap_T)))
        return found_TS[None].to(self.log_before_P)


def _ways(model: Questions, row: Asked, gap_T: Tensor, what: str) -> Iterator[tuple[slice, Asked]]:
    """Every way to fill the gaps of a row, in the order of its words, some at a time."""
    words, many = model.config.vocab_size, int(gap_T.sum())
    ways, time = words**many, max(1, row.ids_BT.shape[1])
    if ways > LARGEST or ways * time > NUMBERS:
        raise TrellisError(
            f"a text with {counted(many, 'gap')} has {ways:,} ways to fill them, which this model would try one by "
            "one: leave fewer gaps in a text, or ask a model with model.memory=1 and without model.ngrams."
        )
    at_once = max(1, min(AT_ONCE, NUMBERS // (time * model.block_size)))
    unit_G = words ** torch.arange(many - 1, -1, -1, device=gap_T.device)
    with Progress(what, ways, unit="ways") as bar:
        for begin in range(0, ways, at_once):
            number_N = torch.arange(begin, min(begin + at_once, ways), device=gap_T.device)
            ids_NT = row.ids_BT.repeat(len(number_N), 1)
            ids_NT[:, gap_T] = number_N[:, None] // unit_G % words
            state = None if row.state is None else row.state.expand(len(number_N), -1)
            yield slice(begin, begin + len(number_N)), Asked(ids_NT, state=state)
            bar.advance(len(number_N))


def _rows(model: Questions, asked: Asked, gap_B: Tensor) -> Iterator[_Row]:
    """The rows of a batch that have gaps, each with its ways."""
    asked = asked.ready(model)
    for row in gap_B.nonzero().flatten().cpu().tolist():
        yield _Row.of(model, asked.some(slice(row, row + 1)))


@contextmanager
def _in_use(model: Questions) -> Iterator[None]:
    """A model that draws no dropout and predicts no token by the counts of all others."""
    learning = model.training
    model.eval()
    try:
        yield
    finally:
        model.train(learning)
