"""What the tables of automata are asked: which rows are alike, what is reached and how soon, which states are one."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

States = NDArray[np.int64]
UNREACHED = -1


class Tables(NamedTuple):
    """A complete deterministic automaton as plain arrays, not yet minimal."""

    next_QC: NDArray[np.int32]
    class_V: NDArray[np.int32]
    accepting_Q: NDArray[np.bool_]
    start: int = 0
    end: int | None = None


def distinct_rows(table_NC: NDArray[np.generic]) -> tuple[States, States]:
    """The first row of each distinct kind, and the kind of every row; kinds are numbered by their first rows.

    Rows are told apart by a random linear hash, and each is then compared with the first row of its kind, so that the
    answer is exact; in the rare event that two rows share a hash, another hash is drawn.
    """
    for seed in range(1_000):
        _, first, kind = np.unique(_hashes(table_NC, seed), return_index=True, return_inverse=True)
        rank = np.empty(len(first), np.int64)
        rank[np.argsort(first)] = np.arange(len(first))
        first, kind = np.sort(first), rank[kind.reshape(-1)]
        if np.array_equal(table_NC, table_NC[first[kind]]):
            return first, kind
    raise AssertionError("no hash tells the rows apart")


def _hashes(table_NC: NDArray[np.generic], seed: int) -> NDArray[np.uint64]:
    """Σ_c weight_c · table[n, c] modulo 2^64 for every row, a piece of the rows at a time."""
    weight_C = np.random.default_rng(seed).integers(1, 2**64, table_NC.shape[1], np.uint64)
    hash_N = np.empty(len(table_NC), np.uint64)
    rows = max(1, 2**18 // max(1, table_NC.shape[1]))
    for begin in range(0, len(table_NC), rows):
        piece = table_NC[begin : begin + rows].astype(np.uint64)
        hash_N[begin : begin + rows] = (_mixed(piece) if table_NC.dtype == np.uint64 else piece) @ weight_C
    return hash_N


def _mixed(words: NDArray[np.uint64]) -> NDArray[np.uint64]:
    """Let the high bits of sets count for the low ones: of a product with a multiple of 2^k, only 64 − k bits vary."""
    words = (words ^ (words >> np.uint64(32))) * np.uint64(0x9E3779B97F4A7C15)
    return words ^ (words >> np.uint64(29))


def breadth_first(next_QC: NDArray[np.int32], start: int) -> States:
    """The states that can be reached, in the order in which a breadth-first walk along the classes meets them."""
    seen_Q = np.zeros(len(next_QC), np.bool_)
    seen_Q[start] = True
    levels = [np.array([start])]
    while len(levels[-1]):
        met = next_QC[levels[-1]].reshape(-1)
        fresh, place = np.unique(met[~seen_Q[met]], return_index=True)
        seen_Q[fresh] = True
        levels.append(fresh[np.argsort(place)].astype(np.int64))
    return np.concatenate(levels)


def distances(next_QC: NDArray[np.int32], accepting_Q: NDArray[np.bool_]) -> States:
    """The fewest symbols from each state to an accepting one; `UNREACHED` where there is no way."""
    distance_Q = np.where(accepting_Q, 0, UNREACHED)
    reached_Q, steps = accepting_Q.copy(), 0
    while True:
        steps += 1
        waiting = np.flatnonzero(~reached_Q)
        near = waiting[reached_Q[next_QC[waiting]].any(axis=1)]
        if not len(near):
            return distance_Q
        distance_Q[near] = steps
        reached_Q[near] = True


def heights(next_QC: NDArray[np.int32], alive_Q: NDArray[np.bool_]) -> States:
    """The most symbols from each state to an accepting one; −1 where there is no way, Q where there is no limit."""
    height_Q = np.where(alive_Q, len(next_QC), UNREACHED)
    done_Q, steps = ~alive_Q, 0
    while True:
        waiting = np.flatnonzero(~done_Q)
        settled = waiting[done_Q[next_QC[waiting]].all(axis=1)]
        if not len(settled):
            return height_Q
        height_Q[settled] = steps
        done_Q[settled] = True
        steps += 1


def equivalent(next_QC: NDArray[np.int32], accepting_Q: NDArray[np.bool_]) -> tuple[States, States]:
    """The first state of each class of equivalent states, and the class of every state (Moore's algorithm).

    States whose distances or heights differ are never equivalent, which is a finer start than accepting or not. A round
    tells states apart whose successors were told apart, until a round finds nothing, or all states are different.
    """
    distance_Q = distances(next_QC, accepting_Q)
    first, kind_Q = distinct_rows(np.column_stack([distance_Q, heights(next_QC, distance_Q != UNREACHED)]))
    while len(first) < len(kind_Q):
        finer, finer_Q = distinct_rows(np.column_stack([kind_Q, kind_Q[next_QC]]))
        if len(finer) == len(first):
            break
        first, kind_Q = finer, finer_Q
    return first, kind_Q


def minimised(tables: Tables) -> Tables:
    """The minimal automaton of the same language in its one canonical form, so that equal languages have equal tables.

    Classes are numbered by their first symbols, states in breadth-first order along the classes. An `end` that no text
    reaches is left out.
    """
    given, tables = len(tables.next_QC), _trimmed(_merged(tables))
    first, kind_Q = equivalent(tables.next_QC, tables.accepting_Q)
    if len(first) == given:  # no state was out of reach, and none is another's equal: this is the form
        return tables
    end = None if tables.end is None else int(kind_Q[tables.end])
    next_QC = kind_Q[tables.next_QC[first]].astype(np.int32)
    smaller = Tables(next_QC, tables.class_V, tables.accepting_Q[first], int(kind_Q[tables.start]), end)
    return _trimmed(_merged(smaller))


def _merged(tables: Tables) -> Tables:
    """Make one class of all that act alike, drop classes of no symbol, and number them by their first symbols."""
    first, used_V = distinct_rows(tables.class_V[:, None])
    next_QC = tables.next_QC[:, tables.class_V[first]]
    column, merged = distinct_rows(np.ascontiguousarray(next_QC.T))
    next_QC = np.ascontiguousarray(next_QC[:, column])
    return tables._replace(next_QC=next_QC, class_V=merged[used_V].astype(np.int32))


def _trimmed(tables: Tables) -> Tables:
    """Keep the states that can be reached, in breadth-first order."""
    order = breadth_first(tables.next_QC, tables.start)
    number_Q = np.full(len(tables.next_QC), UNREACHED, np.int32)
    number_Q[order] = np.arange(len(order))
    end = None if tables.end is None or number_Q[tables.end] == UNREACHED else int(number_Q[tables.end])
    return Tables(number_Q[tables.next_QC[order]], tables.class_V, tables.accepting_Q[order], 0, end)
