"""Many sequences of symbols and a dense HMM: expected counts, which Baum–Welch normalises, and most probable paths.

Rows are windows of one array of symbols, walked side by side in groups. A long sequence may be cut into windows that
overlap: what each counts does not overlap, and the rest tells whether the cut was harmless.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.ops import walks
from trellis.ops.evidence import Evidence
from trellis.ops.library import both_structures, call, named, usable

SIDE_BY_SIDE = 24  # rows that keep one thread busy with a small matrix
AT_ONCE = 1 << 23  # numbers in the beliefs of a group: 64 MB of float64
CHUNK = 1 << 21  # scores of state pairs that the PyTorch form of paths holds at once

_SEQUENCES = both_structures(
    "first_FS matrix_SS likelihood_VS log_peak_V symbol_N:int begin_B:int length_B:int which_B:int from_B:int to_B:int "
    "group_J:int log_prob_B:double lost_B:int start_S crossed_SS emission_VS? edge_EBS state_N:int",
    "S V N B G F E J threads",
)


class Rows(NamedTuple):
    """Windows of an array of symbols, in groups that are walked side by side, longest first within each.

    begin_B, length_B  where a row begins, and how many symbols it has, one at least
    which_B            its distribution of the first state, 0 where a sequence begins
    from_B, to_B       the symbols of the row that are counted; the others are another row's
    group_J            the rows of group g are group[g] up to group[g + 1]
    """

    begin_B: Tensor
    length_B: Tensor
    which_B: Tensor
    from_B: Tensor
    to_B: Tensor
    group_J: Tensor

    def check(self) -> None:
        """Refuse rows that are in no group: a kernel finds all of them by the groups."""
        if len(self.group_J) == 0:
            raise TrellisError("rows come in groups: give group_J the number of rows before each group, and in all.")

    def groups(self) -> Iterator[slice]:
        """The rows of each group."""
        bounds = self.group_J.tolist()
        return (slice(begin, end) for begin, end in itertools.pairwise(bounds))


def side_by_side(lengths: list[int], states: int, threads: int) -> Tensor:
    """Groups of rows as `Rows` has them: of rows longest first, those of a group are of similar length."""
    share = -(-len(lengths) // max(1, threads))
    many = min(SIDE_BY_SIDE * (1 if states <= 128 else 2 if states <= 512 else 4), share)
    bounds = [0]
    while bounds[-1] < len(lengths):
        begin = bounds[-1]
        end = min(len(lengths), begin + max(1, min(many, AT_ONCE // (lengths[begin] * states))))
        while 4 * lengths[end - 1] < 3 * lengths[begin]:
            end -= 1
        bounds.append(end)
    return torch.tensor(bounds)


class Expected(NamedTuple):
    """What is expected of the states behind some sequences.

    log_prob_B   of the counted symbols of each row, float64
    lost_B       whether a row underflowed: it is counted nowhere, and its log-probability is not to be trusted
    start_S      expected first states
    crossed_SS   Σ belief ⊗ message: times the transition matrix, the expected transitions
    emission_VS  expected emissions
    edge_EBS     to be compared where rows overlap, up to a factor: beliefs at from − 1 and at to − 1, messages at to
                 and at from; zeros where there is none
    """

    log_prob_B: Tensor
    lost_B: Tensor
    start_S: Tensor
    crossed_SS: Tensor
    emission_VS: Tensor
    edge_EBS: Tensor


class BestPaths(NamedTuple):
    """The most probable path of each row.

    log_prob_B  what the counted symbols add to log p(path, symbols), float64; −inf of an impossible row
    state_N     the path, −1 of an impossible row; what no row counts, and what is not there, is −1 too
    met_B       a row's state at its symbol `to`, which is another row's; −1 if there is none
    edge_EBS    log-scores at from − 1 and at to − 1, relative to the best, twice
    """

    log_prob_B: Tensor
    state_N: Tensor
    met_B: Tensor
    edge_EBS: Tensor


def native(*tensors: Tensor) -> bool:
    """Whether native code takes these tensors, all of float32 or all of float64."""
    dtype = tensors[0].dtype
    return dtype in _SEQUENCES and usable(*tensors, dtype=dtype)


def expect(
    first_FS: Tensor,
    matrix_SS: Tensor,
    likelihood_VS: Tensor,
    log_peak_V: Tensor,
    symbol_N: Tensor,
    rows: Rows,
    *,
    counts: bool = True,
) -> Expected:
    """Expected starts, transitions and emissions of all rows together; without `counts`, log-probabilities alone.

    `first_FS` are distributions of a row's first state, `matrix_SS` is [from, to], and row v of the likelihoods is
    divided by exp(log_peak).
    """
    rows.check()
    found, dtype = _empty(likelihood_VS, rows), matrix_SS.dtype
    if native(first_FS, matrix_SS, likelihood_VS):
        results = found._asdict() if counts else found._asdict() | {"emission_VS": None}
        asked = _SEQUENCES[dtype](
            first_FS=first_FS, matrix_SS=matrix_SS, likelihood_VS=likelihood_VS, log_peak_V=log_peak_V,
            symbol_N=symbol_N, **rows._asdict(), G=len(rows.group_J) - 1, **results,
        )  # fmt: skip
        call(named("expect", dtype), asked)
        return found
    for group in rows.groups():
        _walk_group(first_FS, matrix_SS, likelihood_VS, log_peak_V, symbol_N, rows, group, found, counts)
    return found


def _empty(likelihood_VS: Tensor, rows: Rows) -> Expected:
    states, batch = likelihood_VS.shape[1], len(rows.begin_B)
    log_prob_B, lost_B = torch.zeros(batch, dtype=torch.float64), torch.zeros(batch, dtype=torch.int64)
    zeros = likelihood_VS.new_zeros
    return Expected(
        log_prob_B, lost_B, zeros(states), zeros(states, states), zeros(likelihood_VS.shape), zeros(4, batch, states)
    )


class _Steps(NamedTuple):
    matrix_SS: Tensor

    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        return belief_BS @ self.matrix_SS

    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        return message_BS @ self.matrix_SS.T


def _walk_group(
    first_FS: Tensor, matrix_SS: Tensor, likelihood_VS: Tensor, log_peak_V: Tensor, symbol_N: Tensor, rows: Rows,
    group: slice, found: Expected, counts: bool,
) -> None:  # fmt: skip
    """The obvious form: one walk there and one back, of which the counted symbols are summed."""
    begin_B, length_B, which_B, from_B, to_B = (given[group] for given in rows[:5])
    place_T1 = torch.arange(int(length_B[0]) if len(length_B) else 0)[:, None]
    inside_TB = place_T1 < length_B
    index_TB = symbol_N[torch.where(inside_TB, begin_B + place_T1, begin_B)]
    running, steps = inside_TB.sum(1).tolist(), _Steps(matrix_SS)
    evidence = Evidence(likelihood_VS, log_peak_V, index_TB)
    belief_TBS, scale_TB, log_prob_TB, _ = walks.walk(steps, matrix_SS, first_FS[which_B], evidence, running)
    counted_TB = (place_T1 >= from_B) & (place_T1 < to_B)
    found.log_prob_B[group] = torch.where(counted_TB, log_prob_TB.double(), 0.0).sum(0)
    lost_B = (scale_TB < walks.limits(scale_TB.dtype).underflow).any(0)
    found.lost_B[group] = lost_B.long()
    number_B = torch.arange(len(begin_B))
    _note(found.edge_EBS[0, group], belief_TBS, from_B - 1, number_B)
    _note(found.edge_EBS[1, group], belief_TBS, to_B - 1, number_B)
    if not counts:
        return
    ones_TB = inside_TB.to(belief_TBS)
    back = evidence, running, belief_TBS, scale_TB, ones_TB, torch.zeros_like(belief_TBS[0])
    posterior_TBS, message_TBS = walks.walk_back(steps, matrix_SS, *back)
    counted_TB1 = (counted_TB & ~lost_B)[..., None]
    before_TBS = torch.where(counted_TB1, belief_TBS, 0.0)
    found.crossed_SS.add_(before_TBS[:-1].flatten(0, 1).T @ message_TBS[1:].flatten(0, 1))
    found.start_S.add_((posterior_TBS[0] * ((which_B == 0) & ~lost_B)[:, None]).sum(0))
    counted_TBS = torch.where(counted_TB1, posterior_TBS, 0.0)
    found.emission_VS.index_add_(0, index_TB.flatten(), counted_TBS.flatten(0, 1))
    outer_TBS = _outer(matrix_SS, message_TBS, length_B)
    _note(found.edge_EBS[2, group], outer_TBS, torch.where(to_B < length_B, to_B, -1), number_B)
    _note(found.edge_EBS[3, group], outer_TBS, from_B, number_B)


def _outer(matrix_SS: Tensor, message_TBS: Tensor, length_B: Tensor) -> Tensor:
    """p(the rest | state) after each symbol, up to a factor: the messages pulled back, ones at a row's end."""
    outer_TBS = torch.ones_like(message_TBS)
    outer_TBS[:-1] = message_TBS[1:] @ matrix_SS.T
    outer_TBS[length_B - 1, torch.arange(len(length_B))] = 1.0
    return outer_TBS


def _note(edge_BS: Tensor, vectors_TBS: Tensor, time_B: Tensor, number_B: Tensor) -> None:
    there_B = time_B >= 0
    edge_BS[there_B] = vectors_TBS[time_B[there_B], number_B[there_B]]


def best_paths(
    log_first_FS: Tensor, log_matrix_SS: Tensor, log_likelihood_VS: Tensor, symbol_N: Tensor, rows: Rows
) -> BestPaths:
    """The most probable path of each row; of two that are alike, the one that ends in the lower state, and so back."""
    rows.check()
    dtype, empty = log_matrix_SS.dtype, _empty(log_likelihood_VS, rows)
    found = BestPaths(empty.log_prob_B, torch.full_like(symbol_N, -1), empty.lost_B - 1, empty.edge_EBS)
    if native(log_first_FS, log_matrix_SS, log_likelihood_VS):
        asked = _SEQUENCES[dtype](
            first_FS=log_first_FS, matrix_SS=log_matrix_SS, likelihood_VS=log_likelihood_VS, symbol_N=symbol_N,
            **rows._asdict(), G=len(rows.group_J) - 1, log_prob_B=found.log_prob_B, lost_B=found.met_B,
            edge_EBS=found.edge_EBS, state_N=found.state_N,
        )  # fmt: skip
        call(named("best_paths", dtype), asked)
        return found
    for group in rows.groups():
        for row in range(group.start, group.stop):
            _climb(log_first_FS, log_matrix_SS, log_likelihood_VS, symbol_N, rows, row, found)
    return found


def _climb(
    log_first_FS: Tensor, log_matrix_SS: Tensor, log_likelihood_VS: Tensor, symbol_N: Tensor, rows: Rows, row: int,
    found: BestPaths,
) -> None:  # fmt: skip
    """The obvious form: for each symbol the best score of each state, and then the way back."""
    begin, length, which, from_, to = (int(given[row]) for given in rows[:5])
    score_TS = log_likelihood_VS.new_empty(length, len(log_matrix_SS))
    for t in range(length):
        score_S = log_first_FS[which] if t == 0 else _best_into(score_TS[t - 1], log_matrix_SS)
        score_S = score_S + log_likelihood_VS[symbol_N[begin + t]]
        peak = score_S.max()
        score_TS[t] = score_S if peak == -torch.inf else score_S - peak
        if from_ <= t < to:
            found.log_prob_B[row] += peak.double()
    for which_edge, at in enumerate((from_ - 1, to - 1)):
        if at >= 0:
            found.edge_EBS[which_edge, row] = score_TS[at]
    if found.log_prob_B[row] == -torch.inf:
        return
    state = -1
    for t in reversed(range(length)):
        score_S = score_TS[t] if state < 0 else score_TS[t] + log_matrix_SS[:, state]
        state = int((score_S == score_S.max()).nonzero()[0])
        if from_ <= t < to:
            found.state_N[begin + t] = state
        if t == to:
            found.met_B[row] = state


def _best_into(score_S: Tensor, log_matrix_SS: Tensor) -> Tensor:
    """The best score with which each state is entered."""
    parts = log_matrix_SS.split(max(1, CHUNK // len(score_S)), 1)
    return torch.cat([(score_S[:, None] + part).amax(0) for part in parts])
