"""Parameterisations: how free numbers become the logits of start, transition and emission.

Scalar: one logit an entry. Low-rank (Lee & Berg-Kirkpatrick 2025): the product of two thin tables of embeddings. All
logits begin as draws of about N(0, 1), whichever way they are made.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import ClassVar, Literal, NamedTuple

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.models.columns import low_rank_columns, scalar_columns
from trellis.models.model import ModelConfig

Kind = Literal["scalar", "low_rank"]
LARGEST = 2**17  # states: their transition alone takes 64 GB


@dataclass(frozen=True)
class HMMConfig(ModelConfig):
    """The shape of an HMM: everything but its numbers."""

    kind: ClassVar[str] = "hmm"
    states: int = 512  # hidden states
    start: Kind = "scalar"  # logits of the first state: free, or s · H_outᵀ
    transition: Kind = "scalar"  # logits of the next state: free, or H_in · H_outᵀ
    emission: Kind = "scalar"  # logits of words: free, or H_emit · Vᵀ
    rank: int = 128  # width of the low-rank tables
    shared: bool = False  # one H for in, out and emit (Lee's ablation A) instead of three (ablation B)

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.states < 1:
            raise TrellisError(f"an HMM needs at least one state, not {self.states}: set model.states.")
        if self.states > LARGEST:
            raise TrellisError(f"{self.states} states are more than a dense HMM can hold: ask for {LARGEST} at most.")
        if "low_rank" in (self.start, self.transition, self.emission) and not 1 <= self.rank <= self.states:
            raise TrellisError(
                f"model.rank is {self.rank}, but must lie between 1 and the number of states, {self.states}."
            )


class Scalar(nn.Module):
    """Logits that are parameters themselves."""

    def __init__(self, *shape: int) -> None:
        super().__init__()
        self.table = nn.Parameter(torch.randn(*shape))

    def logits(self) -> Tensor:
        """The logits."""
        return self.table

    def columns(self, ids_N: Tensor) -> Tensor:
        """log p(word | state) of these words, N×S; for a table of words × states."""
        return scalar_columns(self.table, ids_N)


class LowRank(nn.Module):
    """Logits that are inner products of two tables' rows; tables may be shared between parts."""

    def __init__(self, left: nn.Parameter, right: nn.Parameter) -> None:
        super().__init__()
        self.left, self.right = left, right

    def logits(self) -> Tensor:
        """left · rightᵀ, in the tables' own precision: it is theirs even where products are not."""
        return (self.left @ self.right.T).to(self.left)

    def columns(self, ids_N: Tensor) -> Tensor:
        """log p(word | state) of these words, N×S; for words on the left and states on the right."""
        return low_rank_columns(self.left, self.right, ids_N)


class Parts(NamedTuple):
    """The three parts of an HMM, as logits: 1×S, S×S and V×S, each normalised over what it draws."""

    start: Scalar | LowRank
    transition: Scalar | LowRank
    emission: Scalar | LowRank


def build_parts(config: HMMConfig) -> Parts:
    """Fresh parameters for this configuration, drawn from torch's generator."""
    tables: dict[str, nn.Parameter] = {}

    def table(name: str, rows: int) -> nn.Parameter:
        if name not in tables:
            # rank^(-1/4) on both sides gives their product unit variance
            tables[name] = nn.Parameter(torch.randn(rows, config.rank).mul_(config.rank**-0.25))
        return tables[name]

    def states(role: str) -> nn.Parameter:
        return table("states" if config.shared else f"states_{role}", config.states)

    def part(kind: Kind, left: Callable[[], nn.Parameter], role: str, rows: int) -> Scalar | LowRank:
        return Scalar(rows, config.states) if kind == "scalar" else LowRank(left(), states(role))

    return Parts(
        start=part(config.start, lambda: table("first", 1), "out", 1),
        transition=part(config.transition, lambda: states("in"), "out", config.states),
        emission=part(config.emission, lambda: table("words", config.vocab_size), "emit", config.vocab_size),
    )
