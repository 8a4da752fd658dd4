"""Supports: which states may emit which words, and which of them take part in a batch.

Dense: every state, every word. Otherwise each word has a block of states: words share blocks by Brown clusters or by a
file of clusters, or each is alone in its block; uniform subsets give each word states of its own choice, and overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.text import IdFile, Tokenizer, brown_clusters, read_paths

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


class Support(NamedTuple):
    """The block of each word, V, and the states of each block, M×K."""

    block_V: Tensor
    states_MK: Tensor

    def lists(self) -> Tensor:
        """The states of every word, V×K."""
        return self.states_MK[self.block_V]

    def check(self, states: int, where: object) -> None:
        """Refuse blocks and states that there are none of, which would index something else."""
        for name, indices, end in (
            ("block_V", self.block_V, len(self.states_MK)),
            ("states_MK", self.states_MK, states),
        ):
            if indices.numel() and (int(indices.min()) < 0 or int(indices.max()) >= end):
                raise TrellisError(f"{name} in {where} holds indices that are not from 0 to {end - 1:,}: restore it.")


def partition(block_V: Tensor, states: int, blocks: int) -> Support:
    """Blocks of equal size, one after the other."""
    return Support(block_V, torch.arange(states).view(blocks, -1))


def uniform_subsets(vocab_size: int, states: int, size: int, seed: int) -> Support:
    """A random subset of the states for each word."""
    generator = torch.Generator().manual_seed(seed)
    states_VK = torch.stack([torch.randperm(states, generator=generator)[:size] for _ in range(vocab_size)])
    return Support(torch.arange(vocab_size), states_VK.sort(1).values)


def any_support(config: HMMConfig, seed: int = 0) -> Support:
    """A support of the right shape; where words are clustered, all in the first block until that is known."""
    if config.support == "uniform":
        return uniform_subsets(config.vocab_size, config.states, config.states // config.blocks, seed)
    if config.support != "words":
        return partition(torch.zeros(config.vocab_size, dtype=torch.int64), config.states, config.blocks)
    if config.states % config.vocab_size:
        near = max(1, round(config.states / config.vocab_size)) * config.vocab_size
        raise TrellisError(
            f"{config.states:,} states cannot be shared equally by {config.vocab_size:,} words: make model.states a "
            f"multiple of the vocabulary, such as {near:,}."
        )
    config.kept(config.states // config.vocab_size)
    return partition(torch.arange(config.vocab_size), config.states, config.vocab_size)


def support_of(config: HMMConfig, text: IdFile, tokenizer: Tokenizer, seed: int) -> Support | None:
    """The support for a text, its words clustered as the configuration says; None: dense."""
    if config.support == "dense":
        return None
    support = any_support(config, seed)
    if config.support not in ("words", "uniform"):
        support = support._replace(block_V=_clusters(config, text, tokenizer))
    if idle := config.states - len(support.lists().unique()):
        raise TrellisError(
            f"{idle:,} of the {config.states:,} states are in no word's block and would emit nothing: lower "
            "model.states or model.blocks."
        )
    return support


def _clusters(config: HMMConfig, text: IdFile, tokenizer: Tokenizer) -> Tensor:
    """The block of each word, from Brown clusters of the text or from a file of them."""
    blocks, source = config.blocks, config.support
    if source == "brown":
        if blocks == 1:  # every word in every state: there is nothing to cluster
            return torch.zeros(tokenizer.vocab_size, dtype=torch.int64)
        return torch.from_numpy(brown_clusters(text, blocks))
    if not Path(source).is_file():
        raise TrellisError(
            f"model.support is neither dense, brown, words, uniform nor a file that is there: '{source}'."
        )
    tree = read_paths(Path(source), tokenizer, config.unclustered)
    if len(tree.paths) != blocks:
        raise TrellisError(
            f"{source} has {len(tree.paths):,} clusters of these words, but model.blocks is {blocks:,}: "
            f"set model.blocks={len(tree.paths)}."
        )
    return torch.from_numpy(tree.cluster_V)


class TakingPart(NamedTuple):
    """The states that take part in a batch.

    states_MJ  of each block; one block where the support is dense
    alive_S    which states are alive, where blocks overlap and their dead ones stay in the lists; None: all listed ones
    all_S      all together, ascending
    """

    states_MJ: Tensor
    alive_S: Tensor | None
    all_S: Tensor


def thinned(states_MK: Tensor, kept: int) -> TakingPart:
    """As many states of each block, drawn without replacement, ascending: M×kept.

    Drawn by the processor's generator, so that a seed means the same on every device.
    """
    chosen_MJ = torch.rand(states_MK.shape).argsort(1)[:, :kept].sort(1).values.to(states_MK.device)
    states_MJ = states_MK.gather(1, chosen_MJ)
    return TakingPart(states_MJ, None, states_MJ.flatten())


def thinned_everywhere(states_MK: Tensor, states: int, kept: int) -> TakingPart:
    """Where blocks overlap: as many of all states, each dropped from every block; but every block keeps one."""
    kept_S = torch.randperm(states)[:kept].to(states_MK.device)
    alive_S = torch.zeros(states, dtype=torch.bool, device=states_MK.device).index_fill_(0, kept_S, True)
    dead_M = ~alive_S[states_MK].any(1)
    alive_S[states_MK[dead_M, 0]] = True
    return TakingPart(states_MK, alive_S, alive_S.nonzero().flatten())


def shortened(states_GJ: Tensor, alive_GJ: Tensor) -> tuple[Tensor, Tensor]:
    """Lists of the states alive, as long as the longest (a multiple of 16 is quick to multiply), and which places live.

    A shorter list is filled up with its first state again; those places are dead, so that it is entered once.
    """
    longest = -(-int(alive_GJ.sum(1).max()) // 16) * 16
    order_GJ = alive_GJ.sort(dim=1, descending=True, stable=True).indices[:, :longest]
    states_GJ, alive_GJ = states_GJ.gather(1, order_GJ), alive_GJ.gather(1, order_GJ)
    return torch.where(alive_GJ, states_GJ, states_GJ[:, :1]), alive_GJ
