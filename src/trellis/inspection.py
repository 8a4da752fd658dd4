"""What a model has learnt, state by state: its words, where it goes, and how much of the text it explains."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from trellis.models import HMM, Tables
from trellis.models.scorer import carry
from trellis.progress import Progress
from trellis.text import IdFile, Streams

DEAD_SHARE = 0.01  # a state is dead when it explains less than this share of what an average state does


@dataclass(frozen=True)
class Likely:
    """Something a state draws, a word or a next state, and its probability."""

    id: int
    probability: float


@dataclass(frozen=True)
class StateSummary:
    """One state: its share of the text, its foremost words and its most probable successors."""

    state: int
    usage: float
    dead: bool
    words: tuple[Likely, ...]
    successors: tuple[Likely, ...]


@dataclass(frozen=True)
class Inspection:
    """All of a model's states, the most used first."""

    states: tuple[StateSummary, ...]
    threshold: float  # usage below which a state counts as dead: DEAD_SHARE / states
    effective: float  # exp(entropy of usage): how many equally used states would be as varied

    @property
    def dead(self) -> int:
        """How many states hardly take part."""
        return sum(state.dead for state in self.states)


def inspect_states(
    tables: Tables, usage_S: Tensor, *, words: int = 8, successors: int = 3, distinct: bool = False
) -> Inspection:
    """Summarise each state.

    Words are the most probable ones, or with `distinct` those that set the state apart from the text at large: by
    p(word | state) · log(p(word | state) / p(word)). Their probability is p(word | state) either way.
    """
    states, vocabulary = tables.emission_SV.shape
    threshold = DEAD_SHARE / states
    merit_SV = _distinctness(tables.emission_SV, usage_S) if distinct else tables.emission_SV
    word_SN = merit_SV.topk(min(words, vocabulary)).indices
    word_prob_SN = tables.emission_SV.gather(1, word_SN)
    next_prob_SN, next_SN = tables.transition_SS.topk(min(successors, states))
    summaries = [
        StateSummary(
            state, usage, usage < threshold, _likely(word_SN[state], word_prob_SN[state]),
            _likely(next_SN[state], next_prob_SN[state]),
        )
        for state, usage in enumerate(usage_S.tolist())
    ]  # fmt: skip
    summaries.sort(key=lambda summary: -summary.usage)
    effective = float(torch.special.entr(usage_S.double()).sum().exp())
    return Inspection(tuple(summaries), threshold, effective)


def _distinctness(emission_SV: Tensor, usage_S: Tensor) -> Tensor:
    overall_V = usage_S.to(emission_SV) @ emission_SV
    distinctness_SV: Tensor = torch.special.xlogy(emission_SV, emission_SV / overall_V.clamp_min(1e-30))
    return distinctness_SV


def _likely(ids_N: Tensor, probabilities_N: Tensor) -> tuple[Likely, ...]:
    return tuple(Likely(*pair) for pair in zip(ids_N.tolist(), probabilities_N.tolist(), strict=True))


def stationary(tables: Tables, tolerance: float = 1e-10, limit: int = 10_000) -> Tensor:
    """The share of time the chain spends in each state in the long run, from its start distribution; S, float64.

    Steps of the chain that stays where it is every other time have the same average and, unlike the chain itself,
    settle even when it turns in circles.
    """
    transition_SS = tables.transition_SS.double()
    usage_S = tables.start_S.double()
    for _ in range(limit):
        before_S, usage_S = usage_S, (usage_S + usage_S @ transition_SS) / 2
        usage_S = usage_S / usage_S.sum()
        if float((usage_S - before_S).abs().sum()) < tolerance:
            break
    return usage_S


@torch.no_grad()
def explained(model: HMM, ids: IdFile, quiet: bool = False) -> Tensor:
    """The expected share of a text's tokens that each state emitted; S, float64.

    The posterior of a token knows all tokens before it, and those after it up to the end of its piece of 256.
    """
    batching = Streams(ids, batch_size=max(1, min(16, len(ids) // 256)), length=256, shuffle=False)
    count_S = torch.zeros(model.config.states, dtype=torch.float64)
    state = None
    with Progress("reading", len(ids), unit="tokens", quiet=quiet) as bar:
        for batch in batching.epoch(0):
            found = model.smooth(batch.ids, carry(state, batch.carried, len(batch.ids)), batch.lengths)
            state = found.final_BS
            count_S += found.posterior_BTS.double().sum((0, 1)).cpu()
            bar.advance(batch.tokens)
    return count_S / count_S.sum()
