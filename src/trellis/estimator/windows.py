"""Sequences as rows that are walked side by side; long ones cut into windows, and whether the cuts did no harm.

A window begins some symbols before those it counts, in no state more than in another, and ends some symbols after them.
Where two windows overlap, both have a belief about the same state, and both a message. The relative distance between
two beliefs (Hilbert's metric) never grows as they walk on, and neither does that of messages on their way back. So
where windows agree in their overlap to the last digits, they agree in all that they count with the uncut sequence.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import NamedTuple, TypeVar

import numpy as np
import torch
from torch import Tensor

from trellis.estimator.checking import Floats, Integers
from trellis.ops.sequences import SIDE_BY_SIDE, BestPaths, Expected, Rows, side_by_side

FIRST_OVERLAP, LARGEST_OVERLAP = 32, 2048
MOST_TIMES = 16.0  # by which they widen at once
PROBED = 2  # meetings of windows that are tried before all
PIECE = 16  # overlaps that a window counts at least, so that overlaps cost an eighth at most
LARGEST_PIECE = 1 << 14  # symbols that a window counts
# How far windows may differ, relatively, or of logarithms absolutely: some roundings.
NEAR = {torch.float64: 1e-12, torch.float32: 1e-4}
NEAR_LOG = {torch.float64: 1e-9, torch.float32: 1e-2}

T = TypeVar("T")


class Cut(NamedTuple):
    """Rows of an array of symbols, the sequence of each, and which rows meet: the left one goes on as the right one."""

    rows: Rows
    sequence_B: Integers
    left_C: Tensor
    right_C: Tensor

    def some(self, overlap: int) -> Cut:
        """A few meetings, of rows no longer than it takes to see whether they agree."""
        chosen_C = torch.linspace(0, len(self.left_C) - 1, PROBED).long()
        left, right = (_picked(self.rows, at_C[chosen_C]) for at_C in (self.left_C, self.right_C))
        late_C = (left.to_B - 2 * overlap).clamp_min(0)
        left = left._replace(
            begin_B=left.begin_B + late_C, length_B=left.length_B - late_C, to_B=left.to_B - late_C,
            which_B=torch.where(late_C > 0, 1, left.which_B), from_B=(left.from_B - late_C).clamp_min(0),
        )  # fmt: skip
        end_C = torch.minimum(right.length_B, right.from_B + 2 * overlap)
        right = right._replace(length_B=end_C, to_B=torch.minimum(right.to_B, end_C))
        order_B = torch.cat([left.length_B, right.length_B]).argsort(descending=True, stable=True)
        both = Rows(*(torch.cat(pair) for pair in zip(left, right, strict=True)))
        rows = _picked(both, order_B)._replace(group_J=torch.tensor([0, len(order_B)]))
        left_C, right_C = order_B.argsort().split(PROBED)
        return Cut(rows, np.zeros(len(order_B), dtype=np.int64), left_C, right_C)

    def apart(self, found: Expected) -> float:
        """How far apart, relatively, beliefs and messages are where rows meet; infinitely, if one of them is lost."""
        if len(self.left_C) == 0:
            return 0.0
        if bool(found.lost_B[torch.cat([self.left_C, self.right_C])].any()):
            return float("inf")
        edge = found.edge_EBS
        beliefs = _distance(edge[1, self.left_C], edge[0, self.right_C])
        return max(beliefs, _distance(edge[2, self.left_C], edge[3, self.right_C]))

    def paths_apart(self, found: BestPaths) -> float:
        """How far apart scores are where rows meet; infinitely, if the paths do not meet."""
        if len(self.left_C) == 0:
            return 0.0
        at_C = self.rows.begin_B[self.right_C] + self.rows.from_B[self.right_C]
        left_CS, right_CS = found.edge_EBS[1, self.left_C], found.edge_EBS[0, self.right_C]
        if not torch.equal(found.state_N[at_C], found.met_B[self.left_C]):
            return float("inf")
        return float(torch.where(left_CS == right_CS, 0.0, (left_CS - right_CS).abs()).max())

    def of_sequences(self, log_prob_B: Tensor, count: int) -> Floats:
        """The sum over each sequence's rows."""
        log_prob_Q = np.zeros(count)
        np.add.at(log_prob_Q, self.sequence_B, log_prob_B.numpy())
        return log_prob_Q


def _picked(rows: Rows, at_C: Tensor) -> Rows:
    """Some rows, in no groups yet."""
    begin, length, which, from_, to, group = rows
    return Rows(begin[at_C], length[at_C], which[at_C], from_[at_C], to[at_C], group[:0])


def _distance(a_CS: Tensor, b_CS: Tensor) -> float:
    """The largest of Hilbert's distances between rows: how far they are from being multiples of one another."""
    there_CS = a_CS > 0
    if not torch.equal(there_CS, b_CS > 0):
        return float("inf")
    log_ratio_CS = torch.where(there_CS, a_CS, 1.0).log() - torch.where(there_CS, b_CS, 1.0).log()
    most_C = torch.where(there_CS, log_ratio_CS, -torch.inf).amax(1)
    least_C = torch.where(there_CS, log_ratio_CS, torch.inf).amin(1)
    return float((most_C - least_C).max().clamp_min(0.0))


class Sequences:
    """The sequences of an array of symbols, cut as wide as they were found to need."""

    def __init__(self, symbols_N: Integers, lengths_Q: Integers, states: int) -> None:
        self.symbols_N, self.lengths_Q, self.states = torch.from_numpy(symbols_N), lengths_Q, states
        self.overlap: int | None = FIRST_OVERLAP
        self._cut: Cut | None = None
        self._tried = False

    def cut(self) -> Cut:
        """The rows to walk."""
        if self._cut is None:
            self._cut = cut(self.lengths_Q, self.states, self.overlap, torch.get_num_threads())
        return self._cut

    def leave_whole(self) -> None:
        """Cut none."""
        self.overlap = self._cut = None

    def walk(self, along: Callable[[Rows], T], apart: Callable[[Cut, T], float], near: float) -> tuple[Cut, T]:
        """What is found along rows that are no further apart than `near`; before the first time, a few are tried."""
        while True:
            made = self.cut()
            if not self._tried and len(made.left_C) >= PROBED:
                assert self.overlap is not None  # or nothing would meet
                some = made.some(self.overlap)
                if (distance := apart(some, along(some.rows))) > near:
                    self._widen(distance, near)
                    continue
            self._tried = True
            found = along(made.rows)
            if (distance := apart(made, found)) <= near:
                return made, found
            self._widen(distance, near)

    def _widen(self, distance: float, near: float) -> None:
        """Let windows overlap as much as they need, if they come closer at a constant rate; or cut none."""
        assert self.overlap is not None  # uncut sequences have nothing to disagree about
        times = 1.25 * math.log(near) / math.log(distance) if distance < 0.9 else MOST_TIMES
        overlap = math.ceil(self.overlap * min(max(times, 2.0), MOST_TIMES))
        self.overlap, self._cut = (overlap if overlap <= LARGEST_OVERLAP else None), None


def cut(lengths_Q: Integers, states: int, overlap: int | None, threads: int) -> Cut:
    """Rows of all sequences, the long ones in windows unless `overlap` is None, in groups of similar length."""
    start_Q = np.cumsum(lengths_Q) - lengths_Q
    parts_Q = _parts(lengths_Q, overlap, threads)
    sequence_B = np.repeat(np.arange(len(lengths_Q)), parts_Q)
    part_B = np.arange(len(sequence_B)) - np.repeat(np.cumsum(parts_Q) - parts_Q, parts_Q)
    whole_B, count_B = lengths_Q[sequence_B], parts_Q[sequence_B]
    low_B, high_B = part_B * whole_B // count_B, (part_B + 1) * whole_B // count_B
    begin_B = np.maximum(low_B - (overlap or 0), 0)
    length_B = np.minimum(high_B + (overlap or 0), whole_B) - begin_B
    order_B = np.argsort(-length_B, kind="stable")
    place_B = np.empty_like(order_B)
    place_B[order_B] = np.arange(len(order_B))
    joined = np.flatnonzero(part_B[1:] > 0)
    begin_, length_, which_, from_, to_ = (
        torch.from_numpy(column[order_B])
        for column in (
            start_Q[sequence_B] + begin_B, length_B, (low_B > 0).astype(np.int64), low_B - begin_B, high_B - begin_B,
        )
    )  # fmt: skip
    rows = Rows(begin_, length_, which_, from_, to_, side_by_side(length_B[order_B].tolist(), states, threads))
    return Cut(rows, sequence_B[order_B], torch.from_numpy(place_B[joined]), torch.from_numpy(place_B[joined + 1]))


def _parts(lengths_Q: Integers, overlap: int | None, threads: int) -> Integers:
    """Into how many windows each sequence is cut."""
    if overlap is None:
        return np.ones_like(lengths_Q)
    wanted = SIDE_BY_SIDE * threads
    piece = LARGEST_PIECE if len(lengths_Q) >= wanted else min(LARGEST_PIECE, int(lengths_Q.sum()) // wanted)
    return np.maximum(lengths_Q // max(piece, PIECE * overlap), 1)
