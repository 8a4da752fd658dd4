"""What a model has learnt, state by state: its words, where it goes, and how much of the text it explains."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import HMM, Tables
from trellis.models.scorer import carry
from trellis.ops.precision import widened
from trellis.progress import Progress
from trellis.text import IdFile, Streams, Tokenizer

SLICE = 512  # states looked at together
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


class StateWords:
    """The foremost words of states, found when first asked for: a model may have hundreds of thousands of states."""

    def __init__(self, model: HMM, tokenizer: Tokenizer, words: int = 3) -> None:
        self.model, self.tokenizer, self.words = model, tokenizer, words
        self._found: dict[int, tuple[str, ...]] = {}

    def of(self, states: Iterable[int] | Tensor) -> list[tuple[str, ...]]:
        """The most probable words of each of these states, the first before the others; fewer if it emits fewer."""
        asked = [int(state) for state in states]
        new = sorted(set(asked) - self._found.keys())
        if new and not 0 <= new[0] <= new[-1] < self.model.config.states:
            wrong = new[0] if new[0] < 0 else new[-1]
            raise TrellisError(f"there is no state {wrong}: give 0 to {self.model.config.states - 1:,}.")
        for begin in range(0, len(new), SLICE):
            self._find(new[begin : begin + SLICE])
        return [self._found[state] for state in asked]

    def _find(self, states: list[int]) -> None:
        emission_NV = self.model.emission_rows(torch.tensor(states))
        probability_NW, word_NW = emission_NV.topk(min(self.words, emission_NV.shape[1]))
        for state, *row in zip(states, probability_NW.cpu().tolist(), word_NW.cpu().tolist(), strict=True):
            self._found[state] = tuple(self.tokenizer.token(word) for p, word in zip(*row, strict=True) if p > 0)


def state_names(model: HMM, tokenizer: Tokenizer, states: Iterable[int] | Tensor, words: int = 3) -> list[str]:
    """A name for each of these states: its most probable words, such as "list dict set"."""
    return [" ".join(found) for found in StateWords(model, tokenizer, words).of(states)]


def inspect_states(
    described: HMM | Tables, usage_S: Tensor, *, words: int = 8, successors: int = 3, distinct: bool = False
) -> Inspection:
    """Summarise each state of a model's tables, or of a model too large to have any.

    Words are the most probable ones, or with `distinct` those that set the state apart from the text at large: by
    p(word | state) · log(p(word | state) / p(word)). Their probability is p(word | state) either way.
    """
    usage_S = usage_S.cpu()
    parts = torch.arange(len(usage_S)).split(SLICE)  # on the processor; what is found may be on any device
    overall_V = _overall(described, usage_S, parts) if distinct else None
    threshold = DEAD_SHARE / len(usage_S)
    summaries: list[StateSummary] = []
    with Progress("inspecting", len(usage_S), unit="states") as bar:
        for states_N in parts:
            foremost = _foremost(described, states_N, words, successors, overall_V)
            rows = zip(states_N.tolist(), usage_S[states_N].tolist(), foremost, strict=True)
            summaries += [StateSummary(state, usage, usage < threshold, *found) for state, usage, found in rows]
            bar.advance(len(states_N))
    summaries.sort(key=lambda summary: -summary.usage)
    effective = float(torch.special.entr(usage_S.double()).sum().exp())
    return Inspection(tuple(summaries), threshold, effective)


def _foremost(
    described: HMM | Tables, states_N: Tensor, words: int, successors: int, overall_V: Tensor | None
) -> list[tuple[tuple[Likely, ...], tuple[Likely, ...]]]:
    """The foremost words of each of some states, and its most probable successors."""
    transition_NS, emission_NV = described.rows(states_N)
    merit_NV = emission_NV
    if overall_V is not None:
        merit_NV = torch.special.xlogy(emission_NV, emission_NV / overall_V.clamp_min(1e-30))
    word_NW = merit_NV.topk(min(words, emission_NV.shape[1])).indices
    next_prob_NW, next_NW = transition_NS.topk(min(successors, transition_NS.shape[1]))
    found = (tensor.cpu() for tensor in (word_NW, emission_NV.gather(1, word_NW), next_NW, next_prob_NW))
    return [(_likely(*row[:2]), _likely(*row[2:])) for row in zip(*found, strict=True)]


def _overall(described: HMM | Tables, usage_S: Tensor, parts: Sequence[Tensor]) -> Tensor:
    """p(word) in a text whose states are used like this, V."""
    emissions = ((states_N, described.rows(states_N)[1]) for states_N in parts)
    return torch.stack([usage_S[states_N].to(rows_NV) @ rows_NV for states_N, rows_NV in emissions]).sum(0)


def _likely(ids_N: Tensor, probabilities_N: Tensor) -> tuple[Likely, ...]:
    return tuple(Likely(*pair) for pair in zip(ids_N.tolist(), probabilities_N.tolist(), strict=True))


@torch.no_grad()
def stationary(start_S: Tensor, transition_SS: Tensor, tolerance: float = 1e-10, limit: int = 10_000) -> Tensor:
    """The share of time the chain spends in each state in the long run, from its start distribution; S, float64.

    Steps of the chain that stays where it is every other time have the same average and, unlike the chain itself,
    settle even when it turns in circles.
    """
    transition_SS, usage_S = widened(transition_SS), widened(start_S)
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
            batch = batch.to(model.device)
            found = model.smooth(batch.ids, carry(state, batch.carried, len(batch.ids)), batch.lengths)
            state = found.state
            count_S += found.usage(model.config.states).cpu()
            bar.advance(batch.tokens)
    return count_S / count_S.sum()
