"""Tiny models and automata, and every text that they could make, one by one."""

import itertools

import numpy as np
import pytest
import torch

from trellis.automata import Automaton, ending, every
from trellis.models import HMM, HMMConfig
from trellis.models.supports import partition

WORDS = 4
ALL = every(np.ones(WORDS, np.bool_))  # texts, of any tokens
LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
KINDS = {
    "scalar": {"states": 3},
    "low-rank": {"states": 3} | LOW_RANK,
    "memory": {"states": 3, "memory": 1} | LOW_RANK,
    "memory of blocks": {"states": 6, "support": "brown", "blocks": 2, "memory": 1}
    | LOW_RANK
    | {"transition": "hierarchical"},
    "blocked": {"states": 6, "support": "brown", "blocks": 2} | LOW_RANK | {"transition": "hierarchical"},
}
every_kind = pytest.mark.parametrize("kind", KINDS)
END = 3  # the end token, where texts end


def model_of(kind: str, seed: int = 0) -> HMM:
    config = HMMConfig(WORDS, **KINDS[kind])
    support = None if config.support == "dense" else partition(torch.tensor([0, 1, 0, 1]), config.states, 2)
    model = HMM(config, seed, support).double().eval()
    generator = torch.Generator().manual_seed(seed)
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.copy_(1.5 * torch.randn(parameter.shape, generator=generator, dtype=torch.float64))
    return model


def automaton_of(seed: int, states: int = 4, ends: bool = False) -> Automaton:
    """A random one; some of them have dead states."""
    random = np.random.default_rng(seed)
    next_QC = random.integers(states, size=(states, 3))
    next_QC[states - 1] = states - 1
    accepting_Q = random.random(states) < 0.4
    accepting_Q[[0, states - 1]] = True, False
    found = Automaton(next_QC, random.integers(3, size=WORDS), accepting_Q, start=int(random.integers(states - 1)))
    return ending(found, END) if ends else found


def accepted(automaton: Automaton, length: int, state: int | None = None) -> list[tuple[int, ...]]:
    """Every text of so many tokens, or that has ended within them, which leads from a state to acceptance."""
    found = []
    for size in range(length + 1):
        for text in itertools.product(range(WORDS), repeat=size):
            states = [automaton.run(text[:t], state) for t in range(size + 1)]
            ended = automaton.end is not None and states[-1] == automaton.end
            early = automaton.end is not None and automaton.end in states[:-1]
            if automaton.accepting_Q[states[-1]] and not early and (size == length or ended):
                found.append(text)
    return found


def probability(model: HMM, text: tuple[int, ...], carried: torch.Tensor | None = None) -> float:
    if not text:
        return 1.0
    with torch.no_grad():
        return float(model.score(torch.tensor([text]), carried)[0].sum().exp())


def read(model: HMM, ids: list[int]) -> torch.Tensor | None:
    """The state after these tokens; None of none."""
    with torch.no_grad():
        return model.score(torch.tensor([ids]))[1] if ids else None
