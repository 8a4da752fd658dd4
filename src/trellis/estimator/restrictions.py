"""Restricted transitions: which there may be, and which share one probability.

With ties, the M step maximises Σ_k w_k log x_k over the distinct probabilities x_k, of which entry (i, k) of N says how
often row i of the transition matrix has x_k, and N x = 1. Its Lagrange dual

    minimise over λ    Σ_i λ_i − Σ_k w_k log (Nᵀλ)_k        with    x_k = w_k / (Nᵀλ)_k

has one number a row, is convex, and without ties solves itself: λ are the rows' counts. Newton's method does the rest.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.errors import InputError
from trellis.estimator.checking import Floats, Integers, integers

FREE = -1  # in a table of ties: an entry that shares its probability with none
NEAR = 1e-8  # how far entries that were set may be from equal
LEAST = 1e-9  # that every probability must be able to have
# Weights of what was never counted, as shares of the counts, each the start for the next: the last leaves nothing of
# itself in what was counted.
VANISHING = (1.0, 1e-2, 1e-4, 1e-6, 1e-8, 1e-10, 1e-12)
STEPS = 200  # of Newton's method, which takes ten or so


class Restrictions(NamedTuple):
    """Which transitions may be, S×S, and the number of the tie that each belongs to, −1 if to none; None: all, none."""

    allowed_SS: NDArray[np.bool_] | None = None
    ties_SS: Integers | None = None

    @classmethod
    def of(cls, allowed: Any, ties: Any, states: int) -> Restrictions:
        """What people gave, refused if no matrix can be so."""
        allowed_SS = None if allowed is None else _checked_allowed(allowed, states)
        ties_SS = None if ties is None else _checked_ties(ties, states)
        if ties_SS is not None:
            if allowed_SS is not None and (ties_SS[~allowed_SS] != FREE).any():
                i, j = np.argwhere(~allowed_SS & (ties_SS != FREE))[0]
                raise InputError(
                    f"transmat_ties holds {ties_SS[i, j]} for the transition {i} → {j}, which transmat_allowed "
                    "forbids: tie what may be, and write −1 there."
                )
            _check_possible(np.ones((states, states)) if allowed_SS is None else allowed_SS.astype(float), ties_SS)
        return cls(allowed_SS, ties_SS)

    def check(self, transmat: Floats) -> None:
        """Refuse a table that was set and does not keep to them."""
        if self.allowed_SS is not None and (transmat[~self.allowed_SS] > 0).any():
            i, j = np.argwhere(~self.allowed_SS & (transmat > 0))[0]
            raise InputError(
                f"transmat_ has {transmat[i, j]:.6g} for the transition {i} → {j}, which transmat_allowed forbids: set "
                "it to zero."
            )
        if self.ties_SS is None:
            return
        for tie in np.unique(self.ties_SS[self.ties_SS != FREE]):
            shared = transmat[self.ties_SS == tie]
            if np.ptp(shared) > NEAR:
                raise InputError(
                    f"transmat_ has {shared.min():.6g} and {shared.max():.6g} where transmat_ties holds {tie}: set one "
                    "value."
                )

    def drawn(self, transmat: Floats) -> Floats:
        """The nearest that keeps to them of a table drawn at random, as if its numbers were counts."""
        if self.allowed_SS is not None:
            transmat = np.where(self.allowed_SS, transmat, 0.0)
            total_S1 = transmat.sum(1, keepdims=True)  # which numbers too small for float64 may make zero
            even_SS = self.allowed_SS / self.allowed_SS.sum(1, keepdims=True)
            transmat = np.where(total_S1 > 0, transmat / np.where(total_S1 > 0, total_S1, 1.0), even_SS)
        if self.ties_SS is None:
            return transmat
        allowed_SS = np.ones_like(transmat, dtype=bool) if self.allowed_SS is None else self.allowed_SS
        return tied(np.where(allowed_SS, transmat + LEAST, 0.0), allowed_SS / allowed_SS.sum(1)[:, None], self.ties_SS)

    def free_numbers(self, states: int) -> int:
        """How many numbers of a transition matrix can be chosen freely."""
        allowed_SS = np.ones((states, states), dtype=bool) if self.allowed_SS is None else self.allowed_SS
        ties_SS = np.full((states, states), FREE) if self.ties_SS is None else self.ties_SS
        parts = _Parts.of(allowed_SS.astype(float), ties_SS)
        return int(parts.free_SS.sum()) + parts.groups - int(np.linalg.matrix_rank(parts.times_SK))


def _checked_allowed(allowed: Any, states: int) -> NDArray[np.bool_]:
    array = np.asarray(allowed)
    if array.shape != (states, states) or array.dtype.kind not in "biu" or not np.isin(array, (0, 1)).all():
        raise InputError(
            f"transmat_allowed does not fit: give true or false for each of {states} × {states} transitions."
        )
    if not array.any(1).all():
        raise InputError(
            f"transmat_allowed lets state {int(array.any(1).argmin())} go nowhere: allow it one transition."
        )
    return array.astype(bool)


def _checked_ties(ties: Any, states: int) -> Integers:
    array = integers("transmat_ties", ties, "number the groups of transitions from 0, −1 where one is free")
    if array.shape != (states, states):
        raise InputError(
            f"transmat_ties has shape {array.shape}: give a number for each of {states} × {states} transitions."
        )
    if array.min() < FREE:
        raise InputError(f"transmat_ties holds {array.min()}: number the groups from 0, −1 where a transition is free.")
    return array


class _Parts(NamedTuple):
    """The distinct probabilities of restricted transitions: one a tie, and what is free in each row, as one."""

    group_N: Integers  # the tie of each tied entry, numbered from 0
    tied_SS: NDArray[np.bool_]
    free_SS: NDArray[np.bool_]
    groups: int
    rows_F: Integers  # those that have something free
    times_SK: Floats  # how often each row has each: ties, then what is free

    @classmethod
    def of(cls, old_SS: Floats, ties_SS: Integers) -> _Parts:
        """Of a table whose zeros are forbidden."""
        tied_SS = (old_SS > 0) & (ties_SS != FREE)
        free_SS = (old_SS > 0) & (ties_SS == FREE)
        names, group_N = np.unique(ties_SS[tied_SS], return_inverse=True)
        rows_F = np.flatnonzero(free_SS.any(1))
        times_SK = np.zeros((len(old_SS), len(names) + len(rows_F)))
        np.add.at(times_SK, (np.nonzero(tied_SS)[0], group_N), 1.0)
        times_SK[rows_F, len(names) + np.arange(len(rows_F))] = 1.0
        return cls(group_N, tied_SS, free_SS, len(names), rows_F, times_SK)

    def sums(self, table_SS: Floats) -> Floats:
        """Of each tie's entries, and of what is free in each row, K."""
        pooled_G = np.bincount(self.group_N, weights=table_SS[self.tied_SS], minlength=self.groups)
        return np.concatenate([pooled_G, np.where(self.free_SS, table_SS, 0.0).sum(1)[self.rows_F]])


def _check_possible(old_SS: Floats, ties_SS: Integers) -> None:
    """Refuse ties under which no matrix gives every transition that may be some probability."""
    from scipy.optimize import linprog  # which comes with scikit-learn, and takes a while to import

    times_SK = _Parts.of(old_SS, ties_SS).times_SK
    rows, parts = times_SK.shape
    least_first = np.concatenate([np.zeros(parts), [-1.0]])  # maximise the least of all probabilities
    found = linprog(
        least_first,
        A_ub=np.hstack([-np.eye(parts), np.ones((parts, 1))]), b_ub=np.zeros(parts),
        A_eq=np.hstack([times_SK, np.zeros((rows, 1))]), b_eq=np.ones(rows),
    )  # fmt: skip
    if not found.success or -found.fun < LEAST:
        raise InputError(
            "transmat_ties cannot hold: no rows that sum to one share these probabilities and give each transition "
            "some; tie fewer, or forbid some by transmat_allowed."
        )


def tied(weight_SS: Floats, old_SS: Floats, ties_SS: Integers) -> Floats:
    """The rows that maximise Σ weight · log probability with equal probabilities where ties are equal.

    Zeros of the old table stay zeros. What was never counted stays as it was, as far as the rest leaves room.
    """
    parts = _Parts.of(old_SS, ties_SS)
    counted_K, old_K = parts.sums(np.where(old_SS > 0, weight_SS, 0.0)), parts.sums(old_SS)
    probability_K = _most_probable(parts.times_SK, counted_K, old_K)
    shared_G = probability_K[: parts.groups]
    found_SS = np.zeros_like(old_SS)
    found_SS[parts.tied_SS] = shared_G[parts.group_N]
    left_S1 = np.maximum(1.0 - parts.times_SK[:, : parts.groups] @ shared_G, 0.0)[:, None]
    for weights_SS in (old_SS, weight_SS):  # what was counted says more than what was there
        free_SS = np.where(parts.free_SS, weights_SS, 0.0)
        total_S1 = free_SS.sum(1, keepdims=True)
        share_SS = left_S1 * free_SS / np.where(total_S1 > 0, total_S1, 1.0)
        found_SS = np.where(parts.free_SS & (total_S1 > 0), share_SS, found_SS)
    return found_SS


def _most_probable(times_SK: Floats, counted_K: Floats, old_K: Floats) -> Floats:
    """x that maximises Σ_k w_k log x_k with N x = 1."""
    scale = counted_K.max() if counted_K.max() > 0 else 1.0
    seen_K = counted_K > 0
    dual_S, probability_K = None, old_K
    for share in VANISHING if not seen_K.all() else VANISHING[-1:]:
        weight_K = np.where(seen_K, counted_K / scale, share * old_K)
        if dual_S is None:
            dual_S = times_SK @ (weight_K / times_SK.sum(0))
        dual_S, probability_K = _newton(times_SK, weight_K, dual_S)
    return probability_K


def _newton(times_SK: Floats, weight_K: Floats, dual_S: Floats) -> tuple[Floats, Floats]:
    """The optimum of the dual, and the probabilities there."""

    def value(dual_S: Floats) -> float:
        slope_K = dual_S @ times_SK
        return float(dual_S.sum() - (weight_K * np.log(slope_K)).sum()) if (slope_K > 0).all() else np.inf

    for _ in range(STEPS):
        slope_K = dual_S @ times_SK
        probability_K = weight_K / slope_K
        gradient_S = 1.0 - times_SK @ probability_K
        if np.abs(gradient_S).max() < 1e-14:
            break
        curvature_SS = (times_SK * (probability_K / slope_K)) @ times_SK.T
        size_S = 1.0 / np.sqrt(curvature_SS.diagonal())  # rows that were hardly visited count as much as others
        scaled_SS = size_S[:, None] * curvature_SS * size_S
        step_S = -size_S * np.linalg.lstsq(scaled_SS, size_S * gradient_S, rcond=1e-13)[0]
        before, length = value(dual_S), 1.0
        while length > 1e-10 and not value(dual_S + length * step_S) <= before + 1e-4 * length * float(
            gradient_S @ step_S
        ):
            length /= 2
        if length <= 1e-10:  # no step is downhill any more but for rounding
            break
        dual_S = dual_S + length * step_S
    return dual_S, weight_K / (dual_S @ times_SK)
