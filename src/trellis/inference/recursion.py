"""The recursion: one walk forward through a chain, and one back, in scaled probability space.

A belief is pushed through the transition by a matrix product, multiplied by how well each state explains the next
token, and rescaled to sum to one; the logarithm of the scale is the token's log-probability. The way back is the
vector–Jacobian product of the way there. Nothing ever holds batch × time × states². Rows whose scale underflows are
done again in log space.
"""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import log_space
from trellis.inference.chain import Chain, check_lengths, scaled
from trellis.inference.transitions import Dense, Transition
from trellis.ops import walks
from trellis.ops.precision import widened


class Rows(NamedTuple):
    """A ragged batch, longest row first, so that the rows still running at step t are the first `running[t]`."""

    order: Tensor | None
    running: list[int]

    @classmethod
    def of(cls, lengths_B: Tensor | None, batch: int, time: int) -> Rows:
        """The order of rows for these lengths; no order at all when every row is full."""
        check_lengths(lengths_B, time)
        if lengths_B is None or bool((lengths_B == time).all()):
            return cls(None, [batch] * time)
        running = (lengths_B[:, None] > torch.arange(time, device=lengths_B.device)).sum(0).cpu().tolist()
        return cls(lengths_B.argsort(descending=True, stable=True), running)

    def sort(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """From the caller's order of rows to longest first."""
        return tensor if self.order is None else tensor.index_select(dim, self.order)

    def unsort(self, tensor: Tensor, dim: int = 0) -> Tensor:
        """From longest first back to the caller's order."""
        return tensor if self.order is None else tensor.index_select(dim, self.order.argsort())

    def length(self, row: int) -> int:
        """How many steps the row runs, counting in longest-first order."""
        return sum(running > row for running in self.running)

    def callers(self, row: int) -> int:
        """The number that the caller knows the row by."""
        return row if self.order is None else int(self.order[row])


class Evidence(NamedTuple):
    """How well each state explains each token: the scaled columns of the distinct words, and which one a token takes.

    Exponentials are taken once a word, not once a token.
    """

    likelihood_NS: Tensor
    log_peak_N: Tensor
    index_TB: Tensor


class Walk(NamedTuple):
    """A finished forward pass, time-major and longest row first, with what the way back needs.

    `rescued` holds the rows that were done again in log space, by their numbers here.
    """

    rows: Rows
    transition: Transition
    evidence: Evidence
    first_BS: Tensor
    belief_TBS: Tensor
    scale_TB: Tensor
    log_prob_TB: Tensor
    final_BS: Tensor
    rescued: dict[int, log_space.Row]


def walk(chain: Chain, log_columns_NS: Tensor, index_BT: Tensor) -> Walk:
    """Filter a chain, of which the columns were already asked for."""
    torch.set_flush_denormal(True)  # denormals slow the products several-fold and are far below our resolution
    batch, time, _ = chain.shape
    rows = Rows.of(chain.lengths_B, batch, time)
    made_before = chain.scaled if chain.labels_BT is None else None
    evidence = Evidence(*(made_before or scaled(log_columns_NS)), rows.sort(index_BT.T, 1).contiguous())
    transition = chain.transition if rows.order is None else chain.transition.sorted(rows.order)
    first_BS = rows.sort(chain.log_first_BS.exp())
    found = walks.walk(transition, _matrix(transition), first_BS, *evidence, rows.running)
    done = Walk(rows, transition, evidence, first_BS, *found, {})
    low_TB = _low(done.scale_TB)
    for row in low_TB.any(0).nonzero().flatten().cpu().tolist() if bool(low_TB.any()) else []:
        _rescue(chain, log_columns_NS, index_BT, done, row)
    return done


def _low(scale_TB: Tensor) -> Tensor:
    """Where digits were lost to underflow, so that the row is done again in log space."""
    return scale_TB < walks.limits(scale_TB.dtype).underflow


def _matrix(transition: Transition) -> Tensor | None:
    """The one matrix of all steps, if there is one: native code walks through such a chain in one call."""
    return transition.matrix_SS.detach() if isinstance(transition, Dense) else None


def _rescue(chain: Chain, log_columns_NS: Tensor, index_BT: Tensor, done: Walk, row: int) -> None:
    """Overwrite a row with the log-space answer, unless it is impossible and the walk was right."""
    length, lost_at = done.rows.length(row), int(_low(done.scale_TB[:, row]).nonzero()[0])
    asked = log_space.row_of(chain, log_columns_NS, index_BT, done.rows.callers(row), length)
    if log_space.impossible_at(asked) == lost_at:
        return
    log_prob_T, log_belief_TS = log_space.filtered(asked)
    done.log_prob_TB[:length, row] = log_prob_T.to(done.log_prob_TB)
    done.belief_TBS[:length, row] = log_belief_TS.exp().to(done.belief_TBS)
    done.final_BS[row] = done.belief_TBS[length - 1, row]
    done.scale_TB[:, row] = 0.0  # so that the walk back sends no message along this row
    done.rescued[row] = asked


class Gradients(NamedTuple):
    """Gradients of what `walk` found, longest row first: by log_first, the transition's tensors and log-emissions."""

    log_first_BS: Tensor
    transition: tuple[Tensor, ...]
    posterior_TBS: Tensor


def walk_back(
    done: Walk, grad_log_prob_TB: Tensor, grad_final_BS: Tensor | None = None, *, posterior_only: bool = False
) -> Gradients:
    """The way back. For a gradient of one at every token these are expected counts, the last the posterior."""
    if grad_final_BS is None:
        grad_final_BS = torch.zeros_like(done.final_BS)
    posterior_TBS, message_TBS = walks.walk_back(
        done.transition, _matrix(done.transition), done.evidence.likelihood_NS, done.evidence.index_TB,
        done.rows.running, done.belief_TBS, done.scale_TB, grad_log_prob_TB, grad_final_BS,
    )  # fmt: skip
    transition: tuple[Tensor, ...] = ()
    learned = bool(done.transition.tensors) and not posterior_only
    if learned:  # at once: after an operation of PyTorch's, its threads spin and take a core from native ones
        transition = done.transition.gradient(done.belief_TBS[:-1], message_TBS[1:])
    log_first_BS = message_TBS[:1].sum(0) * done.first_BS  # nothing if there are no tokens
    for row, asked in done.rescued.items():
        counts = log_space.counts(asked, _weight(grad_log_prob_TB[: asked.length, row]))
        posterior_TBS[: asked.length, row] = counts.posterior_TS.to(posterior_TBS)
        log_first_BS[row] = counts.posterior_TS[0].to(log_first_BS)
        if learned:
            for step, piece, count_CN in counts.steps():
                done.transition.add_counts_(transition, step, row, piece, count_CN)
    return Gradients(log_first_BS, transition, posterior_TBS)


def _weight(grad_log_prob_T: Tensor) -> Tensor:
    """The one weight of a rescued row's tokens."""
    weight_T = widened(grad_log_prob_T)
    if not torch.allclose(weight_T, weight_T[0]):
        raise TrellisError(
            "a sequence this improbable has gradients only for the sum of its log-probabilities: "
            "weigh whole sequences, not single tokens."
        )
    return weight_T[0]
