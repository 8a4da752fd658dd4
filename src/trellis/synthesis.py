"""Corpora made up from a seed: mixtures of random HMMs, and documents drawn from a mixture with all that is hidden.

Transitions are rows drawn from a Dirichlet distribution, or mixtures of random permutations, as in the synthetic corpus
of Xie et al. (2021): then every state is entered as often as any other, and concepts differ in their order alone.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.errors import TrellisError
from trellis.mixtures import Mixture
from trellis.models import HMM, HMMConfig
from trellis.progress import Progress
from trellis.text import Tokenizer

Floats = NDArray[np.float64]
AT_ONCE = 1 << 18  # tokens that are drawn together


@dataclass(frozen=True)
class SynthesisSettings:
    """A mixture to draw from a seed."""

    concepts: int = 5  # HMMs, all with the same prior probability
    states: int = 10  # of each
    vocab_size: int = 50  # symbols: whole numbers from 0
    transitions: Literal["dirichlet", "permutations"] = "dirichlet"  # how rows of the transition matrix are drawn
    concentration: float = 0.1  # dirichlet: of starts and transitions; small ones have few states to go to
    permutations: int = 100  # permutations: how many are mixed
    temperature: float = 0.1  # permutations: weights are a softmax of uniform numbers over this; low ones prefer few
    emission_concentration: float = 0.1  # of the Dirichlet distribution that emissions are drawn from
    shared_emissions: bool = True  # all concepts emit alike, and differ in their transitions and starts alone
    seed: int = 0

    def __post_init__(self) -> None:
        for name, least in (("concepts", 1), ("states", 1), ("vocab_size", 2), ("permutations", 1), ("seed", 0)):
            if getattr(self, name) < least:
                raise TrellisError(f"{name} must be at least {least}, not {getattr(self, name)}.")
        for name in ("concentration", "temperature", "emission_concentration"):
            if not 0 < getattr(self, name) < float("inf"):
                raise TrellisError(f"{name} must be above 0 and finite, not {getattr(self, name)}.")
        if self.transitions not in ("dirichlet", "permutations"):
            raise TrellisError(f"transitions are dirichlet or permutations, not '{self.transitions}'.")


def draw_mixture(settings: SynthesisSettings) -> Mixture:
    """The mixture that these settings stand for, in float64; the same settings draw the same one.

    Each concept has a generator of its own, so that more concepts leave the first ones as they were.
    """
    shared_SV = _emissions(settings, np.random.default_rng(settings.seed))
    models = []
    for concept in range(settings.concepts):
        rng = np.random.default_rng((settings.seed, concept))
        start_S = rng.dirichlet(np.full(settings.states, settings.concentration))
        transition_SS = _transitions(settings, rng)
        emission_SV = shared_SV if settings.shared_emissions else _emissions(settings, rng)
        model = HMM(HMMConfig(settings.vocab_size, settings.states), seed=0).double()
        model.set_tables(*(torch.from_numpy(table) for table in (start_S, transition_SS, emission_SV)))
        models.append(model.eval())
    return Mixture(models)


def _transitions(settings: SynthesisSettings, rng: np.random.Generator) -> Floats:
    if settings.transitions == "permutations":
        return permutation_mixture(settings.states, settings.permutations, settings.temperature, rng)
    return rng.dirichlet(np.full(settings.states, settings.concentration), size=settings.states)


def _emissions(settings: SynthesisSettings, rng: np.random.Generator) -> Floats:
    return rng.dirichlet(np.full(settings.vocab_size, settings.emission_concentration), size=settings.states)


def permutation_mixture(states: int, permutations: int, temperature: float, rng: np.random.Generator) -> Floats:
    """Σ_k w_k P_k of random permutation matrices P_k, with w a softmax of (u − 1/2) / temperature, u uniform.

    Rows and columns sum to one, so the stationary distribution is uniform.
    """
    logit_K = (rng.random(permutations) - 0.5) / temperature
    weight_K = np.exp(logit_K - logit_K.max())
    weight_K /= weight_K.sum()
    matrix_SS = np.zeros((states, states))
    for weight in weight_K:
        matrix_SS[np.arange(states), rng.permutation(states)] += weight
    return matrix_SS


def draw_documents(
    mixture: Mixture, tokenizer: Tokenizer, documents: int, length: int, seed: int = 0, quiet: bool = False
) -> Iterator[dict[str, Any]]:
    """Documents of so many tokens, or up to `<eos>` where the vocabulary has one, as records for JSON lines.

    `text` has no mark of its end, as any text; `ids` and `states` include it.
    """
    generator, at_once = torch.Generator().manual_seed(seed), max(1, AT_ONCE // length)
    with Progress("drawing", documents, unit="documents", quiet=quiet) as bar:
        for begin in range(0, documents, at_once):
            drawn = mixture.sample(min(at_once, documents - begin), length, tokenizer.eos_id, generator)
            for concept, states, ids, size in zip(*(tensor.tolist() for tensor in drawn), strict=True):
                words = [id for id in ids[:size] if id != tokenizer.eos_id]
                told = {"text": tokenizer.decode(words), "concept": concept, "states": states[:size], "ids": ids[:size]}
                yield told
                bar.advance()
