"""The shape of an HMM: its support, its encoder, and how start, transition and emission are parameterised."""

from __future__ import annotations

import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import ClassVar, Literal

from trellis.errors import TrellisError
from trellis.models.emissions import EMISSIONS
from trellis.models.encoders import ENCODERS
from trellis.models.model import ModelConfig
from trellis.models.starts import STARTS
from trellis.models.transitions import TRANSITIONS
from trellis.settings import nearest

LARGEST_CACHE = 2**16  # words: a batch looks at all of them for each of its tokens
LARGEST = 2**17  # states of a dense HMM: their transition alone takes 64 GB


@dataclass(frozen=True)
class HMMConfig(ModelConfig):
    """An HMM is a support × an encoder × parameterisations."""

    kind: ClassVar[str] = "hmm"
    states: int = 512  # hidden states
    support: str = "dense"  # which states emit a word: dense (all), brown, words, uniform, or a file of clusters
    blocks: int = 128  # brown, uniform, file: a word is emitted by states / blocks of the states
    unclustered: str | None = None  # a word whose cluster takes the words that a file of clusters misses; None refuses
    start: str = "scalar"  # logits of the first state: scalar (free), or low_rank (products of vectors)
    transition: str = "scalar"  # of the next: scalar, low_rank; hierarchical, hierarchical_scalar: block, then state
    emission: str = "scalar"  # of words: scalar or low_rank
    encoder: str = "table"  # the states' vectors: table (free), or embeddings through networks: residual,
    # factored (half an embedding is the block's), mlp, transformer, pretrained (a causal language model's layers)
    width: int = 128  # of the vectors
    parameters: int | str | None = None  # picks the largest width of a model with so many parameters, such as 2^22
    shared: bool | None = None  # table, mlp, transformer: one embedding a state to leave, enter and emit (Lee's merged
    # H), or three (split H); by default three of table, one of networks
    monolithic: bool = False  # mlp, transformer: one network for all roles (Lee's ι), or one a role (ψ)
    layers: int = 2  # mlp: linear layers; transformer: layers
    skip: Literal["none", "input", "linear"] = "input"  # mlp: ReLU(Wx), ReLU(Wx) + x, or ReLU(Wx) + Wx
    relu: bool = True  # mlp: with that ReLU, or without
    norm: bool = True  # mlp: with a LayerNorm after that, or without
    heads: int | None = None  # transformer: of attention; by default one for every 32 of the width
    network: str | None = None  # pretrained: a Hugging Face causal model's folder; random:<folder> with fresh weights
    inputs: Literal["states", "text"] = "states"  # pretrained: fresh embeddings of states, or those of the text's words
    architecture: str | None = None  # pretrained: the network's shape, found in its folder when the model is made
    bias: bool = False  # low-rank emission: a bias a word
    memory: int = 0  # last words that the next state depends on too: 0 is a plain HMM; needs a transition of vectors
    memory_dropout: float = 0.0  # share of the remembered words' vectors left out of a training batch
    memory_words: int | None = None  # remembers only so many words, the most frequent ones; None is all of them
    ngrams: int = 0  # longest n-gram of those counted in the training text and mixed into the next block and word, as
    # Kneser–Ney has them: 0 is none, 5 is usual; needs model.memory, and with blocks model.transition=hierarchical
    cache: int = 0  # last words that are expected to come again, mixed into counted n-grams: 0 is none, 500 to 2000 are
    # usual; needs model.ngrams, and where a text's documents are its sentences, training.shuffle=false
    dropout: float = 0.0  # share of every block's states left out of a training batch
    init_scale: float | None = None  # spread of fresh vectors; by default width^-1/2 if networks end in a norm, and
    # else width^-1/4; embeddings of pretrained have the spread of its own words

    def __post_init__(self) -> None:
        super().__post_init__()
        self._check_names()
        self._check_sizes()
        if self.support != "dense":
            self._check_blocks()
        elif self.transition.startswith("hierarchical"):
            raise TrellisError(f"model.transition={self.transition} needs blocks: set model.support=brown.")
        if not 0 <= self.dropout < 1:
            raise TrellisError(f"model.dropout must be at least 0 and below 1, not {self.dropout}.")
        if self.support != "words":
            self.kept(self.states // self.blocks if self.support != "dense" else self.states)
        self._check_memory()
        if self.unclustered is not None and self.support in ("dense", "brown", "words", "uniform"):
            raise TrellisError("model.unclustered is for a support of a file: leave it out, or name the file.")

    def _check_memory(self) -> None:
        if not 0 <= self.memory <= 3:
            raise TrellisError(f"model.memory must lie between 0 and 3 words, not {self.memory}.")
        if not 0 <= self.memory_dropout < 1:
            raise TrellisError(f"model.memory_dropout must be at least 0 and below 1, not {self.memory_dropout}.")
        if self.memory and (self.transition not in ("low_rank", "hierarchical") or self.support == "uniform"):
            raise TrellisError(
                "model.memory needs model.transition=low_rank or hierarchical, and a support of other than uniform "
                "subsets."
            )
        if self.memory and self.support == "dense" and self.dropout:
            raise TrellisError("model.memory with model.support=dense needs every state: leave model.dropout out.")
        if self.memory_dropout and not self.memory:
            raise TrellisError("model.memory_dropout needs a memory: set model.memory=1.")
        if self.memory_words is not None and not (self.memory and 1 <= self.memory_words <= self.vocab_size):
            raise TrellisError(
                f"model.memory_words must lie between 1 and the vocabulary's {self.vocab_size:,}, beside "
                f"model.memory=1 or more, not {self.memory_words}."
            )
        if self.ngrams and not 2 <= self.ngrams <= 9:
            raise TrellisError(f"model.ngrams must be 0, or lie between 2 and 9 words, not {self.ngrams}.")
        if self.ngrams and not (self.memory and (self.transition == "hierarchical" or self.support == "dense")):
            raise TrellisError(
                "model.ngrams needs model.memory=1 or more, and with blocks model.transition=hierarchical."
            )
        if self.cache and not 1 <= self.cache <= LARGEST_CACHE:
            raise TrellisError(f"model.cache must lie between 0 and {LARGEST_CACHE:,} words, not {self.cache}.")
        if self.cache and not self.ngrams:
            raise TrellisError("model.cache is mixed into counted n-grams: set model.ngrams=5, or leave it out.")

    def _check_names(self) -> None:
        choices: dict[str, Collection[str]] = {
            "start": STARTS,
            "transition": TRANSITIONS,
            "emission": EMISSIONS,
            "encoder": ENCODERS,
        }
        for name, known in choices.items():
            if getattr(self, name) not in known:
                found = getattr(self, name)
                raise TrellisError(f"'model.{name}' cannot be {found!r}: {nearest(str(found), known)}")

    def _check_sizes(self) -> None:
        if self.states < 1:
            raise TrellisError(f"an HMM needs at least one state, not {self.states}: set model.states.")
        if self.support == "dense" and self.states > LARGEST:
            raise TrellisError(f"{self.states} states are more than a dense HMM can hold: ask for {LARGEST} at most.")
        if not self.roles():
            if self.parameters is not None:
                raise TrellisError("model.parameters picks the width of vectors: make some part low_rank, or leave it.")
            return
        if self.encoder in ("mlp", "transformer") and self.layers < 1:
            raise TrellisError(f"model.layers must be at least 1, not {self.layers}.")
        self._check_network()
        if budget_of(self.parameters) is None:
            self._check_width()

    def _check_network(self) -> None:
        if self.encoder != "pretrained":
            if self.network is not None or self.inputs != "states":
                raise TrellisError("model.network and model.inputs are for a language model: set encoder=pretrained.")
        elif self.network is None:
            raise TrellisError("model.encoder=pretrained needs a network: set model.network to a model's folder.")
        elif self.shared is False:
            raise TrellisError("model.encoder=pretrained has one embedding a state: leave model.shared out.")

    def _check_width(self) -> None:
        if self.encoder == "table" and not 1 <= self.width <= self.states:
            raise TrellisError(
                f"model.width is {self.width}, but must lie between 1 and the number of states, {self.states}."
            )
        if self.width < 2 and self.encoder != "table":
            raise TrellisError(f"model.width must be at least 2, not {self.width}.")
        heads = self.attention_heads
        if self.encoder == "transformer" and (heads < 1 or self.width % heads):
            raise TrellisError(f"model.width is {self.width}, no multiple of {heads} heads: set model.heads or width.")

    def _check_blocks(self) -> None:
        if self.blocks < 1:
            raise TrellisError(f"model.blocks must be at least 1, not {self.blocks}.")
        if self.support == "uniform" and (self.transition.startswith("hierarchical") or self.encoder == "factored"):
            raise TrellisError("uniform subsets are no blocks: set a flat model.transition, and no factored encoder.")
        if self.support == "words":
            return
        if self.states % self.blocks:
            raise TrellisError(
                f"{self.states:,} states cannot be cut into {self.blocks:,} equal blocks: make model.states a multiple "
                f"of model.blocks, such as {max(1, round(self.states / self.blocks)) * self.blocks:,}."
            )
        if self.blocks > self.vocab_size:
            raise TrellisError(
                f"{self.blocks:,} blocks are more than the vocabulary's {self.vocab_size:,} types: lower model.blocks."
            )

    def kept(self, size: int) -> int:
        """How many of a block's states a training batch keeps; none is refused."""
        kept = size - round(self.dropout * size)
        if kept < 1:
            raise TrellisError(
                f"a dropout of {self.dropout} would leave no state of the {size} in a block: lower model.dropout, or "
                "give a block more states."
            )
        return kept

    @property
    def remembered(self) -> int:
        """How many of the last words a state carries on."""
        return max(self.memory, self.ngrams - 1, self.cache)

    def roles(self) -> set[str]:
        """What the states' vectors are needed for: leaving, entering, emitting, starting."""
        parts = (STARTS[self.start], TRANSITIONS[self.transition], EMISSIONS[self.emission])
        return {role for part in parts for role in part.roles}

    @property
    def merged(self) -> bool:
        """Whether a state has one embedding for all roles."""
        return self.encoder != "table" if self.shared is None else self.shared

    @property
    def attention_heads(self) -> int:
        """Heads of a transformer's attention."""
        return max(1, self.width // 32) if self.heads is None else self.heads

    @property
    def scale(self) -> float:
        """The spread of fresh vectors: products of two begin with about unit variance, where a norm makes one unit."""
        if self.init_scale is not None:
            return self.init_scale
        normed = self.encoder != "table" and (self.encoder != "mlp" or self.norm)
        return float(self.width ** (-0.5 if normed else -0.25))


def budget_of(parameters: int | str | None) -> int | None:
    """A number of parameters, as a number or as text such as 2^22."""
    if parameters is None:
        return None
    found = re.fullmatch(r"(\d{1,15})(?:\^(\d{1,2}))?", str(parameters).strip())
    if found is None:
        raise TrellisError(f"model.parameters must be a number such as 4194304 or 2^22, not {parameters!r}.")
    return int(int(found[1]) ** int(found[2] or 1))
