"""Draws from an HMM by the random numbers that hmmlearn takes, in its order: the same seed draws the same sequence."""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from trellis.estimator.checking import Distributions, Floats, Integers


def sample(
    tables: Distributions, length: int, random: np.random.RandomState, first: int | None = None
) -> tuple[Integers, Integers]:
    """One sequence of symbols and the states behind it; the first state may be given.

    A state and a symbol take a random number each, in turns. States depend on one another, so they are found one by
    one; symbols are found for all visits of a state at once.
    """
    point_M = random.random_sample(2 * length - (first is not None))
    if first is None:
        first = bisect_right(_heights(tables.startprob).tolist(), point_M[0])
    skipped = len(point_M) % 2  # where the first state takes none
    states_T = _walk(tables.transmat, first, point_M[2 - skipped :: 2].tolist())
    return emitted(tables.emissionprob, states_T, point_M[1 - skipped :: 2]), states_T


def _walk(transmat: Floats, first: int, points: list[float]) -> Integers:
    """The first state, and for each point the state that it falls on in the row of the one before."""
    rows = [memoryview(row_S) for row_S in _heights(transmat)]  # which give up their numbers faster than arrays
    state, states = first, [first]
    for point in points:
        state = bisect_right(rows[state], point)
        states.append(state)
    return np.array(states, dtype=np.int64)


def emitted(emissionprob: Floats, states_T: Integers, points_T: Floats) -> Integers:
    """The symbol that each point falls on in the row of its state."""
    symbols_T = np.empty_like(states_T)
    order_T = np.argsort(states_T, kind="stable")
    visited_K, begin_K = np.unique(states_T[order_T], return_index=True)
    heights_KV = _heights(emissionprob[visited_K])
    for row_V, times in zip(heights_KV, np.split(order_T, begin_K[1:]), strict=True):
        symbols_T[times] = np.searchsorted(row_V, points_T[times], side="right")
    return symbols_T


def _heights(probabilities: Floats) -> Floats:
    """Sums of all up to each one; that of the last possible is out of reach, whatever it sums to by rounding."""
    heights: Floats = np.cumsum(probabilities, -1)
    last = np.where(probabilities > 0, np.arange(probabilities.shape[-1]), 0).max(-1, keepdims=True)
    heights[np.arange(probabilities.shape[-1]) >= last] = 2.0
    return heights
