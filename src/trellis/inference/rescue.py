"""Rows whose scaled recursion underflowed, done again in log space.

A scale near float32's smallest number means that nearly all belief sat on states that cannot explain the token.
Such a row is either impossible, which reachability alone decides, or merely very surprising, and then the float64
log-space reference gives its exact answer. Text under a trained model hardly ever comes here.

`log_transition` is S×S, or T×S×S if each step has a transition of its own, as the reference takes it.
"""

from __future__ import annotations

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import reference
from trellis.inference.recursion import UNDERFLOW, Transition, Walk


def impossible_at(
    log_start_S: Tensor, log_transition: Tensor, log_emission_TS: Tensor, belief_S: Tensor | None
) -> int | None:
    """The first token that no state reachable with positive probability can emit."""
    steps = (log_transition > -torch.inf).to(torch.float32)
    reachable_S = log_start_S > -torch.inf if belief_S is None else belief_S > 0
    for t, log_emission_S in enumerate(log_emission_TS):
        if t > 0 or belief_S is not None:
            reachable_S = reachable_S.float() @ reference.into(steps, t) > 0
        reachable_S = reachable_S & (log_emission_S > -torch.inf)
        if not bool(reachable_S.any()):
            return t
    return None


def rescue(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_columns_NS: Tensor,
    index_TB: Tensor,
    belief_BS: Tensor | None,
    done: Walk[Transition],
    row: int,
) -> bool:
    """Overwrite a row of `done` with the log-space answer; False if the walk was right and the row impossible."""
    log_emission_TS = log_columns_NS[index_TB[: done.rows.length(row), row]]
    belief_S = None if belief_BS is None else belief_BS[row]
    lost_at = int((done.scale_TB[:, row] < UNDERFLOW).nonzero()[0])
    if impossible_at(log_start_S, log_transition, log_emission_TS, belief_S) == lost_at:
        return False
    log_belief_S = None if belief_S is None else belief_S.log()
    filtered = reference.filter(log_start_S, log_transition, log_emission_TS, log_belief_S)
    length = len(log_emission_TS)
    done.log_prob_TB[:length, row] = filtered.log_prob_T.to(done.log_prob_TB)
    done.belief_TBS[:length, row] = filtered.log_belief_TS.exp().to(done.belief_TBS)
    done.final_BS[row] = done.belief_TBS[length - 1, row]
    done.scale_TB[:, row] = 0.0  # so that the walk back sends no message along this row
    return True


def rescued_counts(
    log_start_S: Tensor,
    log_transition: Tensor,
    log_columns_NS: Tensor,
    index_TB: Tensor,
    belief_BS: Tensor | None,
    length: int,
    row: int,
    weight_T: Tensor,
) -> reference.ExpectedCounts:
    """Expected counts of a rescued row, times the gradient of the loss by its log-likelihood."""
    weight = weight_T[0].double()
    if not torch.allclose(weight_T[:length].double(), weight):
        raise TrellisError(
            "a sequence this improbable has gradients only for the sum of its log-probabilities: "
            "weigh whole sequences, not single tokens."
        )
    log_belief_S = None if belief_BS is None else belief_BS[row].log()
    counts = reference.expected_counts(
        log_start_S, log_transition, log_columns_NS[index_TB[:length, row]], log_belief_S
    )
    return counts._replace(
        start_S=counts.start_S * weight,
        transition=counts.transition * weight,
        posterior_TS=counts.posterior_TS * weight,
    )
