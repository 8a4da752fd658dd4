"""The distinct states of lists that may overlap."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor


class Distinct(NamedTuple):
    """The states of some lists, each once: what depends on the state alone is computed once, then put in its places.

    states_U   the distinct states; of lists that do not overlap, all of them in the order they stand in
    place_I    which of them stands at each place, list after list; None if the two orders are the same
    shape_NK   how many lists there are, and how long they are
    """

    states_U: Tensor
    place_I: Tensor | None
    shape_NK: torch.Size

    @classmethod
    def of(cls, lists_NK: Tensor) -> Distinct:
        """Of lists that may overlap."""
        states_U, place_NK = lists_NK.unique(return_inverse=True)
        if len(states_U) == lists_NK.numel():  # no state stands twice: nothing to save, nothing to rearrange
            return cls(lists_NK.flatten(), None, lists_NK.shape)
        return cls(states_U, place_NK.flatten(), lists_NK.shape)

    def spread(self, rows_U: Tensor) -> Tensor:
        """What each distinct state has (U or U×R), at its places: N×K or N×K×R."""
        rows_I = rows_U if self.place_I is None else rows_U.index_select(0, self.place_I)
        return rows_I.view(*self.shape_NK, *rows_U.shape[1:])

    def places(self) -> Tensor:
        """Which of the distinct states stands at each place, N×K."""
        if self.place_I is None:
            return torch.arange(len(self.states_U), device=self.states_U.device).view(self.shape_NK)
        return self.place_I.view(self.shape_NK)

    def collect(self, number_NK: Tensor) -> Tensor:
        """The sum of each distinct state's numbers over its places, U."""
        if self.place_I is None:
            return number_NK.flatten()
        return number_NK.new_zeros(len(self.states_U)).index_add_(0, self.place_I, number_NK.flatten())
