"""Ragged runs cut into equal segments, so that one batched product does what would be a product for each run.

The words of a block are such a run, and so are the rows that cross a pair. N entries in G runs make at most N/n + G
segments of length n, which have at most N + G·n places. Short runs are cut at their average length, which makes at most
2G segments and 2N places. Long ones are cut to a quarter of it, which makes at most 5G segments and 1.25N places; their
products are large enough even so.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

ENOUGH = 32  # entries in a segment: beyond, fewer empty places are worth more than fewer segments


class Segments(NamedTuple):
    """L segments of n places each; a run may have several, and some segments may be empty.

    owner_L    the run that each segment is cut from
    entry_Ln   the entry at each place; places past the end of the run repeat its last entry
    there_Ln   which places are really entries
    """

    owner_L: Tensor
    entry_Ln: Tensor
    there_Ln: Tensor

    @classmethod
    def of(cls, start: Tensor, entries: int, longest: int | None = None) -> Segments:
        """Of runs that follow one another: run g is the entries start[g] up to start[g + 1], of `entries` in all.

        The number of segments is an upper bound that needs no data from the device.
        """
        runs = len(start) - 1
        average = -(-entries // max(1, runs))
        length = max(1, min(average, ENOUGH), -(-average // 4))
        length = length if longest is None else min(length, longest)
        number_L = torch.arange((entries + runs * (length - 1)) // length, device=start.device)
        cuts_G = (start.diff() + (length - 1)) // length
        last_G = cuts_G.cumsum(0)
        owner_L = torch.searchsorted(last_G, number_L, right=True).clamp_max_(runs - 1)
        first_L = start[owner_L] + (number_L - (last_G - cuts_G)[owner_L]) * length
        entry_Ln = first_L.unsqueeze(1) + torch.arange(length, device=start.device)
        end_L1 = start[owner_L + 1].unsqueeze(1)
        return cls(owner_L, torch.minimum(entry_Ln, end_L1 - 1).clamp_min_(0), entry_Ln < end_L1)

    def chunks(self, step: int) -> Iterator[Segments]:
        """So many segments at a time."""
        for begin in range(0, len(self.owner_L), step):
            yield Segments(*(tensor[begin : begin + step] for tensor in self))

    def positions(self, entries: int) -> Tensor:
        """Where each entry stands among all places, counted segment after segment: ascending."""
        place_I = torch.arange(self.entry_Ln.numel(), device=self.entry_Ln.device)
        entry_I = torch.where(self.there_Ln, self.entry_Ln, entries).flatten()
        return place_I.new_empty(entries + 1).index_copy_(0, entry_I, place_I)[:entries]

    def take(self, rows_N: Tensor) -> Tensor:
        """What the entry at each place has, L×n or L×n×R; what stands at repeated places must be masked."""
        rows_I = rows_N.index_select(0, self.entry_Ln.flatten())
        return rows_I.view(*self.entry_Ln.shape, *rows_N.shape[1:])


def log_sums(log_LK: Tensor, owner_L: Tensor, owners: int) -> Tensor:
    """log Σ exp(log) over the rows of each owner, owners×K; −inf for an owner that has none."""
    peak = log_LK.new_full((owners, log_LK.shape[1]), -torch.inf)
    peak.scatter_reduce_(0, owner_L.unsqueeze(1).expand_as(log_LK), log_LK, "amax")
    peak.masked_fill_(peak == -torch.inf, 0.0)
    sums = torch.zeros_like(peak).index_add_(0, owner_L, (log_LK - peak.index_select(0, owner_L)).exp_())
    return sums.log_().add_(peak)
