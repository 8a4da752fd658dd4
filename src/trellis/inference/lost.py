"""Which rows of a walk lost what scaled probabilities cannot hold, and needed it or may need it yet.

A belief too small for its kind of number is zero, and whatever it would have led to is lost with it. That does no harm
where every state leads to every other: what the others lead to outweighs it by far. Nor where every belief was held.
"""

from __future__ import annotations

import math
from collections.abc import Callable

import torch
from torch import Tensor

from trellis.inference.chain import Chain
from trellis.inference.transitions import Dense, Transition
from trellis.ops import walks
from trellis.ops.precision import widened

# What was lost is at most exp(−MARGIN) of what it was lost from.
MARGIN = 18.0

Columns = Callable[[], tuple[Tensor, Tensor]]  # distinct columns N×S in logarithms, and which one each token takes, T×B


def lost_rows(
    chain: Chain,
    transition: Transition,
    order_B: Tensor | None,
    columns: Columns,
    running: list[int],
    belief_TBS: Tensor,
    scale_TB: Tensor,
    every_token: bool,
) -> list[int]:
    """The numbers of such rows, counted in the order of the walk, which is `order_B` of the chain's rows.

    A belief that is carried on may be needed yet: that after the last token, or with `every_token` after any. Of a
    chain that is learnt from, no more is asked than what its tokens need.
    """
    settled = isinstance(transition, Dense)  # the next step too is by the same matrix
    steps = 1 if chain.ahead is None else 2  # factors of beliefs are sums over a matrix's rows, and differ as these do
    if settled and bool(_outweighed(transition, scale_TB, steps).all()):
        return []
    inside_TB = _inside(scale_TB, running)
    low_TB = _low(belief_TBS, scale_TB) & inside_TB
    if chain.learning:
        low_TB &= _needed(scale_TB, inside_TB, transition.states)
    rows_N = low_TB.any(0).nonzero().flatten()
    if len(rows_N) == 0:
        return []
    outweighed_N = _outweighed(transition, scale_TB[:, rows_N], steps)
    if not settled:
        every_token |= chain.ahead is not None  # whose factors weigh every belief
        ends_TB = inside_TB & ~torch.cat([inside_TB[1:], torch.zeros_like(inside_TB[:1])])
        outweighed_N &= ~(low_TB if every_token else low_TB & ends_TB).any(0)[rows_N]
    rows_N = rows_N[~outweighed_N]
    if len(rows_N) == 0:
        return []
    callers_N = rows_N if order_B is None else order_B[rows_N]
    running = among(rows_N, running)
    log_columns_NS, index_TB = columns()
    lost_N = _lost(
        chain.exact_first(callers_N) > -torch.inf, transition.sorted(rows_N), log_columns_NS, index_TB[:, rows_N],
        running, belief_TBS[:, rows_N], scale_TB[:, rows_N],
    )  # fmt: skip
    lost: list[int] = rows_N[lost_N].cpu().tolist()
    return lost


def among(rows_N: Tensor, running: list[int]) -> list[int]:
    """How many of these rows still run at each step."""
    return [int((rows_N < count).sum()) for count in running]


def needing(belief_TNS: Tensor, scale_TN: Tensor, message_TNS: Tensor, running: list[int]) -> Tensor:
    """Which rows lost at some token what this or a later one may need, N.

    What is lost at a token, before it is divided by the scale c, is at most S ε, and leads to at most c⁻¹ times the
    largest message that comes back from the next token, where what is left leads to one.
    """
    limits = walks.limits(scale_TN.dtype)
    after_TN = torch.cat([message_TNS.amax(-1)[1:], torch.zeros_like(scale_TN[:1])]).clamp_min(1.0)
    log_share_TN = after_TN.log() - scale_TN.clamp_min(limits.underflow).log()
    least = -math.log(limits.lowest_belief) - math.log(belief_TNS.shape[-1] * max(1, len(scale_TN))) - MARGIN
    low_TN = _low(belief_TNS, scale_TN) & _inside(scale_TN, running)
    return (low_TN & ((log_share_TN > least) | (scale_TN < limits.underflow))).any(0)


def _low(belief_TBS: Tensor, scale_TB: Tensor) -> Tensor:
    """At which tokens a belief is so small that it may have lost digits, T×B."""
    limits = walks.limits(scale_TB.dtype)
    return (belief_TBS.amin(-1).mul_(scale_TB) < limits.lowest_belief) | (scale_TB < limits.underflow)


def _needed(scale_TB: Tensor, inside_TB: Tensor, states: int) -> Tensor:
    """At which tokens what is lost could make a difference to the probability of any later one, T×B: a quick bound.

    Scaled likelihoods are at most one. So what S states with beliefs below the least, ε, lead to is at most T S ε by
    the end of a row, and what the others lead to is the product of all scales from there on.
    """
    limits = walks.limits(scale_TB.dtype)
    log_scale_TB = torch.where(inside_TB, scale_TB.clamp_min(limits.underflow).log(), 0.0)
    log_rest_TB = log_scale_TB.flip(0).cumsum(0).flip(0)
    least = math.log(limits.lowest_belief) + math.log(states * max(1, len(scale_TB))) + MARGIN
    return (log_rest_TB < least) | (scale_TB < limits.underflow)


def _inside(scale_TB: Tensor, running: list[int]) -> Tensor:
    """Which places are tokens of rows, T×B."""
    running_T1 = torch.tensor(running, dtype=torch.int64, device=scale_TB.device)[:, None]
    return torch.arange(scale_TB.shape[1], device=scale_TB.device) < running_T1


def _outweighed(transition: Transition, scale_TN: Tensor, steps: int) -> Tensor:
    """Of which rows all that was lost is outweighed at the next step, N.

    A number below the least, ε, is lost where it is a product, or divided by the scale c. What S such states lead to
    is at most S ε / c, and what the others lead to is in every state at least the transition's least probability.
    """
    if len(scale_TN) == 0:
        return torch.ones_like(scale_TN[0:0].sum(0), dtype=torch.bool)
    least_N = scale_TN.amin(0).log() + steps * transition.least
    return least_N >= math.log(torch.finfo(scale_TN.dtype).tiny) + math.log(transition.states) + MARGIN


def _lost(
    reached_NS: Tensor,
    transition: Transition,
    log_columns_NS: Tensor,
    index_TN: Tensor,
    running: list[int],
    belief_TNS: Tensor,
    scale_TN: Tensor,
) -> Tensor:
    """Whether a state that can be reached has too little belief at any token, N: what is impossible is not lost."""
    limits = walks.limits(scale_TN.dtype)
    lost_N = torch.zeros_like(reached_NS[:, 0])
    full = transition.everywhere
    steps = transition if full else transition.mapped(lambda log: (log > -torch.inf).to(log))
    for t, here in enumerate(running):
        reached_NS = reached_NS[:here]
        if t > 0:
            alive_N1 = reached_NS.any(1, keepdim=True)
            reached_NS = alive_N1.expand_as(reached_NS) if full else steps.push(widened(reached_NS), t) > 0
        reached_NS = reached_NS & (log_columns_NS[index_TN[t, :here]] > -torch.inf)
        scale_N1 = scale_TN[t, :here, None]
        low_NS = (belief_TNS[t, :here] * scale_N1 < limits.lowest_belief) | (scale_N1 < limits.underflow)
        lost_N[:here] |= (low_NS & reached_NS).any(1)
    return lost_N
