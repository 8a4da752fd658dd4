"""The k most probable texts that meet a constraint, summed over all their state paths.

Finding them is hard in general. A beam finds good ones; then a best-first search goes through every beginning whose
upper bound is not below the k-th of these. Where it comes to an end, the texts are proven to be the best.
"""

from __future__ import annotations

import heapq
import itertools
import math
from collections.abc import Iterator
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trellis.progress import waiting
from trellis.steering.messages import Bounds
from trellis.steering.next_tokens import NextTokens

if TYPE_CHECKING:
    from trellis.automata import Automaton
    from trellis.models.hmm import HMM

BEAM = 32  # beginnings that are kept, at least
EXPANSIONS = 2_000  # beginnings that are gone through for a proof


class Found(NamedTuple):
    """The best texts, the best first, with log p(text | what was read); `proven` to be the best, or only by a beam."""

    texts: list[list[int]]
    log_probs: list[float]
    proven: bool


class _Beginning(NamedTuple):
    """The tokens so far, their log-probability, the HMM's state after them and the automaton's."""

    tokens: tuple[int, ...]
    log_prob: float
    carried: Tensor | None  # of one row
    state: int


class _Search:
    """Beginnings of texts of at most `length` tokens, and how they go on."""

    def __init__(self, model: HMM, automaton: Automaton, length: int) -> None:
        self.model, self.automaton, self.length = model, automaton, length
        self.ahead = NextTokens(Bounds(model, automaton, length)) if model.memory is None else None
        self.class_V = torch.from_numpy(automaton.class_V.astype("int64")).to(model.device)

    def complete(self, one: _Beginning) -> bool:
        """Whether nothing may follow."""
        return one.state == self.automaton.end or len(one.tokens) == self.length

    def bounds(self, some: list[_Beginning]) -> Tensor:
        """At least log p of the best text that goes on with each token, N×V; beginnings are of one length."""
        left = self.length - len(some[0].tokens)
        carried = None if some[0].carried is None else torch.cat([_known(one.carried) for one in some])
        predicted_NS = self.model.predicted(len(some), carried)
        state_N = torch.tensor([one.state for one in some], device=self.model.device)
        if self.ahead is not None:
            log_bound_NV = self.ahead.chances(predicted_NS, state_N, left).log_joint_BV
        else:  # at most the probability of the token itself
            alive_QC = torch.from_numpy(self.automaton.alive_Q[self.automaton.next_QC]).to(self.model.device)
            log_bound_NV = self.model.words_after(predicted_NS, carried).log()
            log_bound_NV = log_bound_NV.masked_fill(~alive_QC[state_N][:, self.class_V], -torch.inf)
        log_prob_N1 = torch.tensor([[one.log_prob] for one in some]).to(log_bound_NV)
        return log_bound_NV + log_prob_N1

    def going_on(self, one: _Beginning, token: int) -> _Beginning:
        """The beginning with one more token."""
        log_prob_BT, carried = self.model.score(torch.tensor([[token]], device=self.model.device), one.carried)
        state = self.automaton.step(one.state, token)
        return _Beginning((*one.tokens, token), one.log_prob + float(log_prob_BT), carried, state)

    def met(self, one: _Beginning) -> bool:
        """Whether a complete text meets the constraint."""
        return bool(self.automaton.accepting_Q[one.state]) and one.log_prob > -math.inf


def _known(carried: Tensor | None) -> Tensor:
    assert carried is not None
    return carried


@torch.no_grad()
def k_best(
    model: HMM, automaton: Automaton, length: int, k: int, carried: Tensor | None = None, state: int | None = None
) -> Found:
    """The k most probable texts of `length` tokens, or that end within them, which the automaton accepts.

    They go on from the HMM's `carried` state of one row and the automaton's `state`; None: both begin.
    """
    search = _Search(model, automaton, length)
    first = _Beginning((), 0.0, carried, automaton.start if state is None else state)
    with waiting("searching the best texts"):
        best = _beam(search, first, k)
        proven = _prove(search, first, k, best)
    found = sorted(best.values(), key=lambda one: -one.log_prob)[:k]
    return Found([list(one.tokens) for one in found], [min(0.0, one.log_prob) for one in found], proven)


Texts = dict[tuple[int, ...], _Beginning]  # by their tokens


def _beam(search: _Search, first: _Beginning, k: int) -> Texts:
    """Good texts: of all beginnings of a length, those of the largest bounds go on."""
    best: Texts = {}
    beam = [first]
    while beam:
        for one in filter(search.complete, beam):
            if search.met(one):
                best[one.tokens] = one
        beam = [one for one in beam if not search.complete(one)]
        if beam:
            beam = [search.going_on(beam[row], token) for row, token in _top(search.bounds(beam), max(BEAM, k))]
    return best


def _top(log_bound_NV: Tensor, count: int) -> Iterator[tuple[int, int]]:
    """Rows and tokens of the largest bounds, but for impossible ones."""
    value_M, place_M = log_bound_NV.flatten().topk(min(count, log_bound_NV.numel()))
    for value, place in zip(value_M.tolist(), place_M.tolist(), strict=True):
        if value > -math.inf:
            yield divmod(place, log_bound_NV.shape[1])


def _prove(search: _Search, first: _Beginning, k: int, best: Texts) -> bool:
    """Add what is better to the best texts, until nothing can be; whether that was shown.

    The queue holds, for each beginning gone through, its best token not yet taken.
    """
    queue: list[tuple[float, int, int, _Beginning, Tensor, Tensor]] = []
    order, gone_through = itertools.count(), 0  # the order decides between equal bounds

    def offer(one: _Beginning, rank: int, value_V: Tensor, token_V: Tensor) -> None:
        if rank < len(value_V) and float(value_V[rank]) > _least(best, k):
            heapq.heappush(queue, (-float(value_V[rank]), next(order), rank, one, value_V, token_V))

    def go_through(one: _Beginning) -> None:
        offer(one, 0, *search.bounds([one])[0].sort(descending=True))

    if search.complete(first):
        return True
    go_through(first)
    while queue:
        bound, _, rank, one, value_V, token_V = heapq.heappop(queue)
        if -bound <= _least(best, k):
            return True
        offer(one, rank + 1, value_V, token_V)
        child = search.going_on(one, int(token_V[rank]))
        if search.complete(child):
            if search.met(child):
                best[child.tokens] = child
            continue
        gone_through += 1
        if gone_through > EXPANSIONS:
            return False
        go_through(child)
    return True


def _least(best: Texts, k: int) -> float:
    """The log-probability that a text must exceed to be among the k best, by more than rounding."""
    if len(best) < k:
        return -math.inf
    return heapq.nlargest(k, (one.log_prob for one in best.values()))[-1] + 1e-6
