"""The vectors of states: what every encoder gives, and how those of a batch are made once, all together."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import TYPE_CHECKING, Protocol

import torch
from torch import Tensor, nn

if TYPE_CHECKING:
    from trellis.models.hmm_config import HMMConfig


ROLES = ("leaving", "entering", "emitting", "starting")  # what a state's vectors are for


def vector_of(role: str) -> str:
    """States start as they are entered."""
    return "entering" if role == "starting" else role


class Vectors(Protocol):
    """The vectors of some states; what was encoded of them once serves every role."""

    def encode(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of."""

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state, N, made when first asked for where these vectors last."""


class Encoder(nn.Module):
    """The vectors of states. `encode` is given all the states that take part in a batch at once, and runs once.

    An encoder in which states do not look at each other says so (`independent`), and may then be asked about any states
    at any time. `roles` are those that its model needs.
    """

    independent = False

    def __init__(self, config: HMMConfig, blocks: int, roles: set[str]) -> None:
        super().__init__()

    def encode(self, states_N: Tensor) -> Tensor:
        """What the vectors of these states are made of."""
        raise NotImplementedError

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        raise NotImplementedError

    def network_parameters(self) -> list[nn.Parameter]:
        """Parameters of networks, not of single states or blocks; they may learn at a rate of their own."""
        return []

    def described(self, config: HMMConfig) -> HMMConfig:
        """The configuration with what only the making of the encoder could tell."""
        return config

    def begin_with(self, ids_N: Tensor) -> None:
        """Look at the first tokens of the text to be learnt, as many as there are states; most encoders do not."""

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state; while learning nothing lasts."""
        return make(states_N)


class Picked:
    """The vectors of given states, encoded together, from which some are picked.

    `lasting` says that they stay as they are until this is dropped: then numbers a state are kept too.
    """

    def __init__(self, encoder: Encoder, states_U: Tensor, states: int, *, lasting: bool) -> None:
        self.encoder, self.states_U, self.lasting = encoder, states_U, lasting
        self.place_S = states_U.new_full((states,), -1)
        self.place_S[states_U] = torch.arange(len(states_U), device=states_U.device)
        self.by_role: dict[str, Tensor] = {}
        self.numbers: dict[str, tuple[Tensor, Tensor]] = {}

    @functools.cached_property
    def _encoded(self) -> Tensor:
        return self.encoder.encode(self.states_U)

    def encode(self, states_N: Tensor) -> Tensor:
        """The places of these states among those encoded."""
        return self.place_S[states_N]

    def vectors(self, role: str, encoded: Tensor) -> Tensor:
        """The vectors of states in one of the `ROLES`, N×R."""
        if role not in self.by_role:
            self.by_role[role] = self.encoder.vectors(role, self._encoded)
        return self.by_role[role].index_select(0, encoded)

    def once(self, name: str, states_N: Tensor, make: Callable[[Tensor], Tensor]) -> Tensor:
        """One number a state, N: those not known yet are made, and kept if these vectors last."""
        if not self.lasting:
            return make(states_N)
        if name not in self.numbers:
            known_S = torch.zeros_like(self.place_S, dtype=torch.bool)
            self.numbers[name] = known_S, make(states_N[:0]).new_zeros(len(known_S))
        known_S, number_S = self.numbers[name]
        new_M = states_N[~known_S[states_N]].unique()
        if len(new_M):
            number_S[new_M] = make(new_M)
            known_S[new_M] = True
        return number_S[states_N]
