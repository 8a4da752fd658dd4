"""Groups of states: which states may emit a word.

A partition cuts the states into equal blocks and gives each word one block; words that share a block come from Brown
clustering, from a file, or are alone in it. Uniform subsets give each word states of its own choice, and overlap.
"""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.text import IdFile, Tokenizer, brown_clusters, read_paths


class Groups(NamedTuple):
    """The group of each word, V, and the states of each group, G×K."""

    group_V: Tensor
    states_GK: Tensor


def partition(group_V: Tensor, states: int, blocks: int) -> Groups:
    """Blocks of equal size, one after the other."""
    return Groups(group_V, torch.arange(states).view(blocks, -1))


def uniform_subsets(vocab_size: int, states: int, size: int, seed: int) -> Groups:
    """A random subset of the states for each word."""
    generator = torch.Generator().manual_seed(seed)
    states_VK = torch.stack([torch.randperm(states, generator=generator)[:size] for _ in range(vocab_size)])
    return Groups(torch.arange(vocab_size), states_VK.sort(1).values)


def clusters_of(source: str, blocks: int, text: IdFile, tokenizer: Tokenizer, unclustered: str | None) -> Tensor:
    """The block of each word, from Brown clusters of the text or from a file of them."""
    if source == "brown":
        if blocks == 1:  # every word in every state: there is nothing to cluster
            return torch.zeros(tokenizer.vocab_size, dtype=torch.int64)
        if blocks > tokenizer.vocab_size:
            raise TrellisError(
                f"{blocks:,} blocks are more than the vocabulary's {tokenizer.vocab_size:,} types: lower model.blocks."
            )
        return torch.from_numpy(brown_clusters(text, blocks))
    if not Path(source).is_file():
        raise TrellisError(f"model.clusters is neither brown, words, uniform nor a file that is there: '{source}'.")
    tree = read_paths(Path(source), tokenizer, unclustered)
    if len(tree.paths) != blocks:
        raise TrellisError(
            f"{source} has {len(tree.paths):,} clusters of these words, but model.blocks is {blocks:,}: "
            f"set model.blocks={len(tree.paths)}."
        )
    return torch.from_numpy(tree.cluster_V)


def keep(states_GK: Tensor, kept: int) -> Tensor:
    """As many states of each group, drawn by torch's generator without replacement, ascending: G×kept."""
    chosen = torch.rand(states_GK.shape, device=states_GK.device).argsort(1)[:, :kept].sort(1).values
    return states_GK.gather(1, chosen)
