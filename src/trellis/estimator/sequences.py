"""Sequences of one array as padded batches: whole from their starts, of similar lengths, as many as memory allows."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.estimator.checking import Integers

# Numbers in the beliefs of a batch; a pass holds about five such arrays, together 320 MB of float64.
AT_ONCE = 1 << 23


class Batch(NamedTuple):
    """Some sequences: their numbers, the row of X that each token stands in, and how many tokens each has."""

    sequences_B: Integers
    place_BT: Integers
    lengths_B: Tensor

    @property
    def inside_BT(self) -> NDArray[np.bool_]:
        """Which tokens are there, and not padding."""
        inside: NDArray[np.bool_] = np.arange(self.place_BT.shape[1]) < self.lengths_B.numpy()[:, None]
        return inside

    def of(self, values_N: NDArray[Any]) -> Tensor:
        """The values of the batch's tokens, B×T, from those of all rows of X; in padding, any."""
        return torch.from_numpy(values_N[self.place_BT])

    def put(self, found_BT: Tensor, into_N: NDArray[Any]) -> None:
        """Write what was found of each token, B×T or B×T×S, to its row of X."""
        inside_BT = self.inside_BT
        into_N[self.place_BT[inside_BT]] = found_BT.numpy()[inside_BT]


def batches(lengths_Q: Integers, states: int, chosen_Q: Integers | None = None) -> list[Batch]:
    """All sequences, or the chosen ones, longest first.

    In a batch, none is shorter than half the longest, so that padding stays cheap.
    """
    start_Q = np.concatenate([[0], np.cumsum(lengths_Q)[:-1]])
    chosen_Q = np.arange(len(lengths_Q)) if chosen_Q is None else chosen_Q
    order_Q = chosen_Q[np.argsort(-lengths_Q[chosen_Q], kind="stable")]
    found, begin = [], 0
    while begin < len(order_Q):
        longest = int(lengths_Q[order_Q[begin]])
        rows = max(1, AT_ONCE // (longest * states))
        chosen_B = order_Q[begin : begin + rows]
        chosen_B = chosen_B[2 * lengths_Q[chosen_B] >= longest]
        place_BT = start_Q[chosen_B, None] + np.arange(longest)
        lengths_B = torch.from_numpy(lengths_Q[chosen_B])
        found.append(Batch(chosen_B, place_BT.clip(max=lengths_Q.sum() - 1), lengths_B))
        begin += len(chosen_B)
    return found
