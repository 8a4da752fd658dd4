"""How often something happens within a sequence: an automaton that sees it, with a counter beside it."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from trellis.automata.automaton import Automaton
from trellis.automata.tables import distinct_rows


def counting(seen: Automaton, confirming_V: NDArray[np.bool_], least: int, most: int | None) -> Automaton:
    """Sequences of which `least` to `most` beginnings are seen; without a `most`, any number from `least` on.

    A beginning counts if `seen` accepts it and the next symbol is a confirming one, or there is none.
    """
    first, class_V = distinct_rows(np.column_stack([seen.class_V, confirming_V]))
    next_QC, confirming_C = seen.next_QC[:, seen.class_V[first]], confirming_V[first]
    top = least if most is None else most + 1  # more than this need not be told apart
    count_N1 = np.arange(top + 1)[:, None, None]
    gained_QC = seen.accepting_Q[:, None] & confirming_C
    next_NQC = np.minimum(count_N1 + gained_QC, top) * seen.states + next_QC
    total_NQ = np.arange(top + 1)[:, None] + seen.accepting_Q
    accepting_NQ = (total_NQ >= least) & (total_NQ <= (top + 1 if most is None else most))
    table = next_NQC.reshape(-1, next_QC.shape[1])
    return Automaton(table.astype(np.int32), class_V.astype(np.int32), accepting_NQ.reshape(-1), seen.start).minimal()
