"""The recursion: one walk forward through a chain, and one back, in scaled probability space.

A belief is pushed through the transition by a matrix product, multiplied by how well each state explains the next
token, and rescaled to sum to one; the logarithm of the scale is the token's log-probability. The way back is the
vector–Jacobian product of the way there. Nothing ever holds batch × time × states². Rows that lost what float32 cannot
hold are walked again in float64, and those that lost something there in log space.
"""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import log_space
from trellis.inference.chain import Chain, Entered, check_lengths, to_carry
from trellis.inference.lost import Columns, among, lost_rows, needing
from trellis.inference.transitions import Dense, Transition
from trellis.ops import walks
from trellis.ops.evidence import Evidence, SummedEvidence, scaled
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


class Walk(NamedTuple):
    """A finished forward pass, time-major and longest row first, with what the way back needs.

    final_BS   the beliefs after the last tokens, as they are carried
    again      the walk in float64 of the rows that it took, and their numbers here; None: no row
    rescued    the rows that were done again in log space, by their numbers here
    """

    rows: Rows
    transition: Transition
    evidence: Evidence | SummedEvidence
    first_BS: Tensor
    belief_TBS: Tensor
    scale_TB: Tensor
    log_prob_TB: Tensor
    final_BS: Tensor
    again: Again | None
    rescued: dict[int, log_space.Row]

    def done_again(self) -> set[int]:
        """The rows that scaled float32 could not hold."""
        return set(self.rescued) | set([] if self.again is None else self.again.rows_N.tolist())

    def log_beliefs(self) -> Iterator[tuple[int, Tensor]]:
        """Of the rows that were done again: their numbers, and the logarithms of their beliefs in float64, T×S."""
        if self.again is not None:
            for place, row in enumerate(self.again.rows_N.tolist()):
                if row not in self.rescued:
                    yield row, self.again.walk.belief_TBS[: self.rows.length(row), place].log()
        for row, asked in self.rescued.items():
            yield row, log_space.filtered(asked)[1]


class Again(NamedTuple):
    """A walk in float64 of some rows of another walk, and the columns of its words."""

    walk: Walk
    rows_N: Tensor
    log_columns_MS: Tensor


def walk(
    chain: Chain,
    log_columns_NS: Tensor,
    index_BT: Tensor,
    entered: Entered | None = None,
    *,
    every_token: bool = False,
) -> Walk:
    """Filter a chain, of which the columns were already asked for.

    The beliefs after each row's last token are held, whatever comes next; with `every_token`, so are those after each.
    """
    torch.set_flush_denormal(True)  # denormals slow the products several-fold and are far below our resolution
    batch, time, _ = chain.shape
    rows = Rows.of(chain.lengths_B, batch, time)
    evidence = _evidence(chain, rows, log_columns_NS, index_BT, entered)
    transition = chain.transition if rows.order is None else chain.transition.sorted(rows.order)
    first_BS = rows.sort(chain.log_first_BS.exp())
    done = _walked(rows, transition, evidence, first_BS)

    @functools.cache
    def summed() -> tuple[Tensor, Tensor]:  # seldom asked for
        return (log_columns_NS, index_BT) if entered is None else entered.added(log_columns_NS, index_BT)

    def columns() -> tuple[Tensor, Tensor]:
        return summed()[0], rows.sort(summed()[1].T, 1)

    lost = _lost(chain, columns, done, every_token)
    if not lost:
        return done
    again = _again(chain, columns, done, lost)
    if again is not None:
        _overwrite(done, again)
        done = done._replace(again=again)
        of_these = again.log_columns_MS, again.walk.evidence.index_TB
        lost = [lost[place] for place in _lost(chain, lambda: of_these, again.walk, every_token)]
    for row in lost:
        asked = log_space.row_of(chain, *summed(), rows.callers(row), rows.length(row))
        _rescue(done, row, asked)
    return done


def _evidence(
    chain: Chain, rows: Rows, log_columns_NS: Tensor, index_BT: Tensor, entered: Entered | None
) -> Evidence | SummedEvidence:
    index_TB = rows.sort(index_BT.T, 1).contiguous()
    if entered is not None:
        enter_TB = rows.sort(entered.index_BT.T, 1).contiguous()
        return SummedEvidence(log_columns_NS, index_TB, entered.log_enter_KS, enter_TB)
    made_before = chain.scaled if chain.labels_BT is None else None
    return Evidence(*(made_before or scaled(log_columns_NS)), index_TB)


def _walked(rows: Rows, transition: Transition, evidence: Evidence | SummedEvidence, first_BS: Tensor) -> Walk:
    found = walks.walk(transition, _matrix(transition), first_BS, evidence, rows.running)
    return Walk(rows, transition, evidence, first_BS, *found, None, {})


def _matrix(transition: Transition) -> Tensor | None:
    """The one matrix of all steps, if there is one: native code walks through such a chain in one call."""
    return transition.matrix_SS.detach() if isinstance(transition, Dense) else None


def _lost(chain: Chain, columns: Columns, done: Walk, every_token: bool) -> list[int]:
    """The rows that must be done again in wider numbers, or in log space."""
    lost = lost_rows(
        chain, done.transition, done.rows.order, columns, done.rows.running, done.belief_TBS, done.scale_TB, every_token
    )  # fmt: skip
    return _needing(done, lost) if lost and chain.learning else lost


def _needing(done: Walk, lost: list[int]) -> list[int]:
    """Of these rows those in which a token may need what was lost, by the messages that would come back to it."""
    rows_N = torch.tensor(lost, device=done.scale_TB.device)
    transition, running = done.transition.sorted(rows_N), among(rows_N, done.rows.running)
    belief_TNS, scale_TN = done.belief_TBS[:, rows_N], done.scale_TB[:, rows_N]
    _, message_TNS = walks.walk_back(
        transition, _matrix(transition), done.evidence.of_rows(rows_N), running, belief_TNS, scale_TN,
        torch.ones_like(scale_TN), torch.zeros_like(done.final_BS[rows_N]),
    )  # fmt: skip
    found: list[int] = rows_N[needing(belief_TNS, scale_TN, message_TNS, running)].cpu().tolist()
    return found


def _again(chain: Chain, columns: Columns, done: Walk, lost: list[int]) -> Again | None:
    """These rows walked in float64; None if they were, or if the device has no such numbers."""
    if widened(done.first_BS[:0]).dtype == done.first_BS.dtype:
        return None
    rows_N = torch.tensor(lost, device=done.first_BS.device)
    callers_N = rows_N if done.rows.order is None else done.rows.order[rows_N]
    rows = Rows(callers_N, among(rows_N, done.rows.running))
    log_columns_NS, index_TB = columns()
    words_M, index_TN = index_TB[:, rows_N].unique(return_inverse=True)
    log_columns_MS = widened(log_columns_NS[words_M])
    evidence = Evidence(*scaled(log_columns_MS), index_TN.contiguous())
    transition = done.transition.sorted(rows_N).mapped(torch.exp)
    return Again(_walked(rows, transition, evidence, chain.exact_first(callers_N).exp()), rows_N, log_columns_MS)


def _overwrite(done: Walk, again: Again) -> None:
    """Put the float64 answers in the place of these rows."""
    rows_N, found = again.rows_N, again.walk
    done.log_prob_TB[:, rows_N] = found.log_prob_TB.to(done.log_prob_TB)
    done.belief_TBS[:, rows_N] = found.belief_TBS.to(done.belief_TBS)
    done.final_BS[rows_N] = to_carry(found.final_BS.log(), done.final_BS)
    done.scale_TB[:, rows_N] = 0.0  # so that the walk back sends no message along these rows


def _rescue(done: Walk, row: int, asked: log_space.Row) -> None:
    """Put the log-space answer in the place of a row."""
    log_prob_T, log_belief_TS = log_space.filtered(asked)
    done.log_prob_TB[: asked.length, row] = log_prob_T.to(done.log_prob_TB)
    done.belief_TBS[: asked.length, row] = log_belief_TS.exp().to(done.belief_TBS)
    done.final_BS[row] = to_carry(log_belief_TS[-1], done.final_BS)
    done.scale_TB[:, row] = 0.0
    if done.again is not None:
        done.again.walk.scale_TB[:, done.again.rows_N == row] = 0.0
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
        done.transition, _matrix(done.transition), done.evidence, done.rows.running, done.belief_TBS, done.scale_TB,
        grad_log_prob_TB, grad_final_BS,
    )  # fmt: skip
    transition: tuple[Tensor, ...] = ()
    learned = bool(done.transition.tensors) and not posterior_only
    if learned:  # at once: after an operation of PyTorch's, its threads spin and take a core from native ones
        transition = done.transition.gradient(done.belief_TBS[:-1], message_TBS[1:])
    log_first_BS = message_TBS[:1].sum(0) * done.first_BS  # nothing if there are no tokens
    found = Gradients(log_first_BS, transition, posterior_TBS)
    if done.again is not None:
        _add_again_(found, done, done.again, grad_log_prob_TB, grad_final_BS)
    for row, asked in done.rescued.items():
        counts = log_space.counts(asked, _weight(grad_log_prob_TB[: asked.length, row]))
        posterior_TBS[: asked.length, row] = counts.posterior_TS.to(posterior_TBS)
        log_first_BS[row] = counts.posterior_TS[0].to(log_first_BS)
        if learned:
            for step, piece, count_CN in counts.steps():
                done.transition.add_counts_(transition, step, row, piece, count_CN)
    return found


def _add_again_(found: Gradients, done: Walk, again: Again, grad_log_prob_TB: Tensor, grad_final_BS: Tensor) -> None:
    """Put the gradients of rows that were walked again in their place, and add those by the transition."""
    rows_N, walked = again.rows_N, again.walk
    grad_NS, state_NS = widened(grad_final_BS[rows_N]), done.final_BS[rows_N]
    # What is carried as a logarithm has the gradient of one.
    grad_NS = torch.where(state_NS < 0, grad_NS * (-widened(state_NS)).clamp_max(690.0).exp(), grad_NS)
    posterior_TNS, message_TNS = walks.walk_back(
        walked.transition, _matrix(walked.transition), walked.evidence, walked.rows.running, walked.belief_TBS,
        walked.scale_TB, widened(grad_log_prob_TB[:, rows_N]), grad_NS,
    )  # fmt: skip
    found.posterior_TBS[:, rows_N] = posterior_TNS.to(found.posterior_TBS)
    found.log_first_BS[rows_N] = (message_TNS[:1].sum(0) * walked.first_BS).to(found.log_first_BS)
    if found.transition:
        done.transition.add_exact_(found.transition, walked.transition, walked.belief_TBS[:-1], message_TNS[1:])


def _weight(grad_log_prob_T: Tensor) -> Tensor:
    """The one weight of a rescued row's tokens."""
    weight_T = widened(grad_log_prob_T)
    if not torch.allclose(weight_T, weight_T[0]):
        raise TrellisError(
            "a sequence this improbable has gradients only for the sum of its log-probabilities: "
            "weigh whole sequences, not single tokens."
        )
    return weight_T[0]
