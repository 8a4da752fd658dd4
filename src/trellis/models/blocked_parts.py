"""The shape of a blocked model, and its parts: states, transition and emission."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch

from trellis.errors import TrellisError
from trellis.models.block_emissions import BilinearEmission, ScalarEmission
from trellis.models.block_transitions import BilinearTransition, ScalarTransition
from trellis.models.groups import Groups, partition, uniform_subsets
from trellis.models.model import ModelConfig
from trellis.models.state_features import LowRankStates, NeuralStates, ScalarStates, States


@dataclass(frozen=True)
class BlockedConfig(ModelConfig):
    """The shape of a blocked HMM."""

    kind: ClassVar[str] = "blocked"
    states: int = 8192  # hidden states
    blocks: int = 128  # groups of states: a word is emitted by states / blocks of them
    clusters: str = "brown"  # words to blocks: brown, words (one block each), uniform (subsets), or a file of paths
    unclustered: str | None = None  # a word whose cluster takes the words that a file of paths misses; None refuses
    transition: Literal["hierarchical", "flat"] = "hierarchical"  # block first, then state; or one softmax over all
    parameters: Literal["neural", "low_rank", "scalar"] = "neural"  # networks, tables of vectors, or free logits
    embeddings: Literal["independent", "factored"] = "independent"  # neural: a vector a state, or half a block's
    width: int = 256  # of the vectors
    dropout: float = 0.0  # share of every block's states left out of a training batch
    start_scale: float | None = None  # neural: spread of fresh embeddings; by default 1/√width

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.blocks < 1 or self.states < 1 or self.width < 2:
            raise TrellisError("model.states and model.blocks must be at least 1, and model.width at least 2.")
        if self.clusters != "words" and self.states % self.blocks:
            raise TrellisError(
                f"{self.states:,} states cannot be cut into {self.blocks:,} equal blocks: make model.states a multiple "
                f"of model.blocks, such as {max(1, round(self.states / self.blocks)) * self.blocks:,}."
            )
        if self.clusters != "words" and self.blocks > self.vocab_size:
            raise TrellisError(
                f"{self.blocks:,} blocks are more than the vocabulary's {self.vocab_size:,} types: lower model.blocks."
            )
        if not 0 <= self.dropout < 1:
            raise TrellisError(f"model.dropout must be at least 0 and below 1, not {self.dropout}.")
        if self.clusters != "words":
            self.kept(self.states // self.blocks)
        if self.clusters == "uniform" and (self.transition != "flat" or self.embeddings != "independent"):
            raise TrellisError("uniform subsets are no blocks: set model.transition=flat, embeddings=independent.")
        if self.unclustered is not None and self.clusters in ("brown", "words", "uniform"):
            raise TrellisError("model.unclustered is for clusters of a file: leave it out, or name the file.")
        if self.embeddings == "factored" and self.parameters != "neural":
            raise TrellisError("factored embeddings are for networks: set model.parameters=neural.")

    def kept(self, size: int) -> int:
        """How many of a group's states a training batch keeps; none is refused."""
        kept = size - round(self.dropout * size)
        if kept < 1:
            raise TrellisError(
                f"a dropout of {self.dropout} would leave no state of the {size} in a block: lower model.dropout, or "
                "give a block more states."
            )
        return kept


class Parts(NamedTuple):
    """What a blocked model is made of."""

    vectors: States
    transition: BilinearTransition | ScalarTransition
    emission: BilinearEmission | ScalarEmission


def any_groups(config: BlockedConfig, seed: int = 0) -> Groups:
    """Groups of the right shape; where words are clustered, all in the first block until that is known."""
    if config.clusters == "uniform":
        return uniform_subsets(config.vocab_size, config.states, config.states // config.blocks, seed)
    if config.clusters != "words":
        return partition(torch.zeros(config.vocab_size, dtype=torch.int64), config.states, config.blocks)
    if config.states % config.vocab_size:
        near = max(1, round(config.states / config.vocab_size)) * config.vocab_size
        raise TrellisError(
            f"{config.states:,} states cannot be shared equally by {config.vocab_size:,} words: make model.states a "
            f"multiple of the vocabulary, such as {near:,}."
        )
    config.kept(config.states // config.vocab_size)
    return partition(torch.arange(config.vocab_size), config.states, config.vocab_size)


def build_parts(config: BlockedConfig, groups: Groups) -> Parts:
    """Fresh parameters, drawn from torch's generator."""
    blocks = len(groups.states_GK) if config.transition == "hierarchical" else None
    scale = config.width**-0.5 if config.start_scale is None else config.start_scale
    if config.parameters == "scalar":
        size = groups.states_GK.shape[1]
        return Parts(
            ScalarStates(config.states),
            ScalarTransition(config.states, blocks),
            ScalarEmission(config.vocab_size, size),
        )
    if config.parameters == "low_rank":
        vectors: States = LowRankStates(config.states, config.width)
        scale = config.width**-0.25
    else:
        factored = config.embeddings == "factored"
        vectors = NeuralStates(config.states, len(groups.states_GK), config.width, factored, scale)
    return Parts(
        vectors,
        BilinearTransition(config.width, blocks, scale),
        BilinearEmission(config.vocab_size, config.width, scale),
    )
