"""A batch of texts as a hidden Markov chain: all that the exact questions take.

A chain knows the belief about each row's first state, how beliefs move from token to token, and how well each state
explains each token. It does not know what parameters these came from, nor what a model carries from text to text.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, NamedTuple

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference.transitions import Dense, Transition
from trellis.ops import walks
from trellis.ops.evidence import row_dots, row_sums
from trellis.ops.precision import widened


def check_lengths(lengths_B: Tensor | None, time: int) -> None:
    """Refuse a row that would go on past its last token, or end before its first."""
    if lengths_B is None or not len(lengths_B):
        return
    if int(lengths_B.max()) > time:
        raise TrellisError(
            f"a length of {int(lengths_B.max())} is more than the {time} tokens of a row: mend lengths_B."
        )
    if int(lengths_B.min()) < 0:
        raise TrellisError(f"a length of {int(lengths_B.min())} is no length: mend lengths_B.")


NOT_BEGUN = -1.0  # a carried belief in every state, where a row has had no token yet: its first state is still to come
LEAST_CARRIED = 1e-30  # a belief below it is carried as its logarithm, which is below any other number that is carried


def carried(state_BS: Tensor) -> tuple[Tensor, Tensor | None]:
    """Carried beliefs, zero in rows that have not begun, and which rows those are, B×1; None: all have begun.

    A belief that is carried as its logarithm may be zero here: `log_carried` has it.
    """
    if not bool((state_BS < 0).any()):
        return state_BS, None
    fresh_B1 = state_BS[:, :1] == NOT_BEGUN
    belief_BS = torch.where(state_BS < 0, state_BS.exp(), state_BS).masked_fill(fresh_B1, 0.0)
    return belief_BS, fresh_B1 if bool(fresh_B1.any()) else None


def log_carried(state_S: Tensor) -> Tensor:
    """The logarithm of a carried belief in float64; −inf throughout of a row that has not begun."""
    state_S = widened(state_S.detach())
    return torch.where(state_S < 0, state_S, state_S.log()).masked_fill(state_S == NOT_BEGUN, -torch.inf)


def to_carry(log_belief_S: Tensor, like: Tensor) -> Tensor:
    """A belief, from its logarithm in float64, as it is carried: itself, or its logarithm where it is too small."""
    small_S = (log_belief_S < math.log(LEAST_CARRIED)) & (log_belief_S > -torch.inf)
    return torch.where(small_S, log_belief_S, log_belief_S.exp()).to(like)


def believed(state_BS: Tensor) -> Tensor:
    """Which states a carried state has any belief in, B×S."""
    return (state_BS != 0) & (state_BS != NOT_BEGUN)


def not_begun(like_BS: Tensor) -> Tensor:
    """The beliefs of as many rows that have had no token yet."""
    return torch.full_like(like_BS, NOT_BEGUN)


def _itself(final_BS: Tensor) -> Tensor:
    return final_BS


class Ahead(NamedTuple):
    """Factors by which tokens were divided, though they belong to the steps after: as if each were seen too early.

    A row's last token has none, so that the whole row has its own probability; but what is said of a token before must
    take its factor back.

    log_factor_KS  the distinct ones
    index_BT       which of them each token was divided by; −1: none
    """

    log_factor_KS: Tensor
    index_BT: Tensor

    def log_probs(self, log_prob_BT: Tensor, belief_BTS: Tensor, exact: dict[int, Tensor]) -> Tensor:
        """log p(o_t | o_<t), from what a walk through the divided columns found; `exact` has some rows' log-beliefs."""
        factor_KS, log_peak_K, place_BT, given_BT = self._factors()
        belief_NS, place_N = belief_BTS.transpose(0, 1).flatten(0, 1), place_BT.T.flatten()  # as a walk has made them
        total_BT = row_dots(belief_NS, factor_KS, place_N).view(place_BT.T.shape).T
        # A token that is impossible has no belief, and its row stays impossible.
        log_total_BT = torch.where(given_BT & (total_BT > 0), total_BT.log() + log_peak_K[place_BT], 0.0)
        for row, log_belief_TS in exact.items():
            log_total_T = self._log_weighed(row, log_belief_TS).logsumexp(1).nan_to_num(neginf=0.0)
            given_T = given_BT[row, : len(log_total_T)]
            log_total_BT[row, : len(log_total_T)] = torch.where(given_T, log_total_T, 0.0).to(log_total_BT)
        return log_prob_BT + log_total_BT - _one_later(log_total_BT)

    def log_probs_of(self, log_prob_BT: Tensor, state_BT: Tensor) -> Tensor:
        """The same of tokens whose states are given, B×T, differentiable: each token's factor is that of the next."""
        log_factor_BT = torch.where(self.index_BT >= 0, self.log_factor_KS[self.index_BT.clamp_min(0), state_BT], 0.0)
        return log_prob_BT + log_factor_BT - _one_later(log_factor_BT)

    def beliefs(self, belief_BTS: Tensor, exact: dict[int, Tensor]) -> Tensor:
        """p(z_t | o_≤t), from beliefs of the same walk."""
        factor_KS, _, place_BT, given_BT = self._factors()
        weighed_BTS = torch.where(given_BT[..., None], belief_BTS * factor_KS[place_BT], belief_BTS)
        found_BTS = weighed_BTS / weighed_BTS.sum(-1, keepdim=True).clamp_min(torch.finfo(weighed_BTS.dtype).tiny)
        for row, log_belief_TS in exact.items():
            found_BTS[row, : len(log_belief_TS)] = self.log_beliefs(row, log_belief_TS).exp().to(found_BTS)
        return found_BTS

    def log_beliefs(self, row: int, log_belief_TS: Tensor) -> Tensor:
        """log p(z_t | o_≤t) of a row in float64, from log-beliefs of the same walk; −inf if the row is impossible."""
        return self._log_weighed(row, log_belief_TS).log_softmax(1).nan_to_num(-torch.inf, neginf=-torch.inf)

    def _log_weighed(self, row: int, log_belief_TS: Tensor) -> Tensor:
        """log-beliefs of a row with their factors taken back, in float64."""
        index_T = self.index_BT[row, : len(log_belief_TS)]
        return log_belief_TS + (widened(self.log_factor_KS.detach())[index_T.clamp_min(0)] * (index_T >= 0)[:, None])

    def _factors(self) -> tuple[Tensor, Tensor, Tensor, Tensor]:
        """The factors divided by the largest of each, the logarithm of that, and which one a token has, if any."""
        log_peak_K1 = self.log_factor_KS.amax(1, keepdim=True)
        factor_KS = (self.log_factor_KS - log_peak_K1).exp()
        return factor_KS, log_peak_K1.squeeze(1), self.index_BT.clamp_min(0), self.index_BT >= 0


def _one_later(numbers_BT: Tensor) -> Tensor:
    """What each token has, at the token after it."""
    return torch.nn.functional.pad(numbers_BT, (1, 0))[:, : numbers_BT.shape[1]]


class Entered(NamedTuple):
    """What the tokens before add to how well states explain tokens, in logarithms.

    log_enter_KS  the distinct rows that are added
    index_BT      which of them is added to a token's column; −1: none
    """

    log_enter_KS: Tensor
    index_BT: Tensor

    def added(self, log_columns_NS: Tensor, index_BT: Tensor) -> tuple[Tensor, Tensor]:
        """Columns of which each token has its own, and the one that each takes."""
        batch, time = index_BT.shape
        log_columns_ES = row_sums(  # in the order of a walk: time first
            (log_columns_NS, index_BT.T.flatten()), (self.log_enter_KS, self.index_BT.T.flatten())
        )
        return log_columns_ES, torch.arange(batch * time, device=index_BT.device).view(time, batch).T


class Chain(NamedTuple):
    """B rows of up to T tokens, each of which may have any of S states.

    log_first_BS    log p(first state) before its token is seen; it need not sum to one, as states of another block
                    may have the rest
    transition      how a belief moves from each token to the next
    log_columns_NS  log p(word | state) of each distinct word; zeros for a missing one
    index_BT        the column that each token takes (padding: any)
    lengths_B       how many tokens each row has; None if all are full
    lists_GS        the states that tokens may have, in lists; None: every token may have every state, in order
    list_BT         the list of each token
    labels_BT       which of a token's S states is given; −1 where none is; None if no token's is
    carry           from the belief after each row's last token, zeros for a row without tokens, to the state that the
                    model carries on
    log_first       log p(first state) of one row in float64, where float32 may not hold it; None: `log_first_BS` does
    scaled          what `scaled` makes of the columns, if that was made before
    entered         what tokens before add to the columns of tokens; None: nothing
    ahead           what the columns of tokens were divided by for the steps after them; None: nothing
    learning        whether tokens are learnt from, and what float64 cannot hold of the beliefs after them is let go
    """

    log_first_BS: Tensor
    transition: Transition
    log_columns_NS: Tensor
    index_BT: Tensor
    lengths_B: Tensor | None = None
    lists_GS: Tensor | None = None
    list_BT: Tensor | None = None
    labels_BT: Tensor | None = None
    carry: Callable[[Tensor], Tensor] = _itself
    log_first: Callable[[int], Tensor] | None = None
    scaled: tuple[Tensor, Tensor] | None = None
    entered: Entered | None = None
    ahead: Ahead | None = None
    learning: bool = False

    @classmethod
    def dense(
        cls,
        log_start_S: Tensor,
        log_transition_SS: Tensor,
        log_emission_BTS: Tensor,
        lengths_B: Tensor | None = None,
        belief_BS: Tensor | None = None,
        index_BT: Tensor | None = None,
    ) -> Chain:
        """The chain of tables: log-probabilities of start, transition [from, to] and every token in every state.

        With `belief_BS`, rows carry on from these beliefs, or begin where those say so; with `index_BT`, the emissions
        are a table of distinct columns N×S, of which each token takes the one that it names.
        """
        if index_BT is None:
            batch, time, states = log_emission_BTS.shape
            index_BT = torch.arange(batch * time, device=log_emission_BTS.device).view(batch, time)
            log_emission_BTS = log_emission_BTS.reshape(batch * time, states)
        transition, first, log_first_BS = Dense(log_transition_SS), None, log_start_S.expand(len(index_BT), -1)
        if belief_BS is not None:
            log_first_BS, first = first_states(belief_BS, lambda: log_start_S, transition, transition.log_push)
        carry = empty_rows_keep(belief_BS, lengths_B, index_BT.shape[1])
        return cls(log_first_BS, transition, log_emission_BTS, index_BT, lengths_B, carry=carry, log_first=first)

    @property
    def shape(self) -> tuple[int, int, int]:
        """B, T and S."""
        batch, time = self.index_BT.shape
        return batch, time, self.log_first_BS.shape[1]

    def lengths(self) -> Tensor:
        """How many tokens each row has, also if all are full."""
        batch, time, _ = self.shape
        full_B = torch.full((batch,), time, device=self.index_BT.device)
        return full_B if self.lengths_B is None else self.lengths_B

    def exact_first(self, rows_N: Tensor | None = None) -> Tensor:
        """log p(first state) of all rows in float64, or of some, where float32 may not hold it."""
        rows_N = torch.arange(len(self.log_first_BS), device=self.log_first_BS.device) if rows_N is None else rows_N
        log_first_NS = widened(self.log_first_BS.detach()[rows_N])
        if self.log_first is not None:
            lost_N = (log_first_NS < math.log(walks.limits(self.log_first_BS.dtype).lowest_belief)).any(1)
            for place in lost_N.nonzero().flatten().cpu().tolist():
                log_first_NS[place] = self.log_first(int(rows_N[place]))
        return log_first_NS

    def columns(self) -> tuple[Tensor, Tensor]:
        """The distinct columns and the one that each token takes; a token of given state has that state alone."""
        log_columns_NS, index_BT = self.log_columns_NS, self.index_BT
        if self.entered is not None:
            log_columns_NS, index_BT = self.entered.added(log_columns_NS, index_BT)
        if self.labels_BT is None:
            return log_columns_NS, index_BT
        _, _, states = self.shape
        given_BT = self.labels_BT >= 0
        code_L, place = (index_BT * states + self.labels_BT)[given_BT].unique(return_inverse=True)
        word_L, state_L = code_L // max(1, states), code_L % max(1, states)
        log_given_L = log_columns_NS[word_L, state_L]
        never_LS = log_given_L.new_full((len(code_L), states), -torch.inf)
        clamped_LS = never_LS.scatter(1, state_L[:, None], log_given_L[:, None])
        index_BT = index_BT.masked_scatter(given_BT, place + len(log_columns_NS))
        return torch.cat([log_columns_NS, clamped_LS]), index_BT

    def log_columns_at(self, state_BT: Tensor) -> Tensor:
        """log p(token | state) of one state a token, B×T."""
        log_BT = self.log_columns_NS[self.index_BT, state_BT]
        if self.entered is None:
            return log_BT
        log_enter_KS, enter_BT = self.entered
        return log_BT + torch.where(enter_BT >= 0, log_enter_KS[enter_BT.clamp_min(0), state_BT], 0.0)

    def walked(self) -> tuple[Tensor, Tensor, Entered | None]:
        """The same as a walk takes them: what tokens before add is left apart, if no state is given."""
        if self.labels_BT is None:
            return self.log_columns_NS, self.index_BT, self.entered
        return *self.columns(), None

    def states(self) -> Tensor:
        """The states that each token may have, B×T×S."""
        batch, time, states = self.shape
        if self.lists_GS is None or self.list_BT is None:
            return torch.arange(states, device=self.index_BT.device).expand(batch, time, -1)
        return self.lists_GS[self.list_BT]

    def named(self, places_BNT: Tensor) -> Tensor:
        """States by their numbers in the model, from paths of places among each token's states; −1 stays."""
        if self.lists_GS is None:
            return places_BNT
        places = places_BNT.clamp_min(0).transpose(1, 2)
        return self.states().gather(2, places).transpose(1, 2).where(places_BNT >= 0, -1)


class _LogBelief(torch.autograd.Function):
    """The logarithm of a belief; a state of belief zero has no gradient, instead of an infinite one."""

    @staticmethod
    def forward(ctx: Any, belief_BS: Tensor, watched: bool) -> Tensor:
        ctx.save_for_backward(belief_BS)
        ctx.watched = watched
        return belief_BS.log()

    @staticmethod
    def backward(ctx: Any, grad_BS: Tensor) -> tuple[Tensor, None]:
        (belief_BS,) = ctx.saved_tensors
        there_BS = belief_BS >= torch.finfo(belief_BS.dtype).tiny
        if ctx.watched and bool((~there_BS & (grad_BS != 0)).any()):
            raise TrellisError("a sequence this improbable has no gradient through its beliefs: detach the state.")
        return torch.where(there_BS, grad_BS / belief_BS, 0.0), None


def log_belief(belief_BS: Tensor, carried: Tensor) -> Tensor:
    """log p(first state), where the belief was carried on from `carried`."""
    log_BS: Tensor = _LogBelief.apply(belief_BS, carried.requires_grad)  # type: ignore[no-untyped-call]  # apply is untyped
    return log_BS


def first_states(
    belief_BS: Tensor, log_start: Callable[[], Tensor], transition: Transition, log_push: Callable[[Tensor], Tensor]
) -> tuple[Tensor, Callable[[int], Tensor]]:
    """log p(first state) of rows that carry on from beliefs, or begin; and the same of one row in float64.

    `log_push` moves the logarithm of a belief one step on, in float64.
    """
    known_BS, fresh_B1 = carried(belief_BS)
    log_first_BS = begun_or_not(log_belief(transition.push(known_BS, 0), belief_BS), fresh_B1, log_start)
    return log_first_BS, exact_first(belief_BS, fresh_B1, log_start, log_push)


def exact_first(
    belief_BS: Tensor, fresh_B1: Tensor | None, log_start: Callable[[], Tensor], log_push: Callable[[Tensor], Tensor]
) -> Callable[[int], Tensor]:
    """How to have log p(first state) of one row in float64: one step on from what is carried, or the start."""

    def log_first(row: int) -> Tensor:
        if fresh_B1 is not None and bool(fresh_B1[row]):
            return widened(log_start().detach())
        return log_push(log_carried(belief_BS[row]))

    return log_first


def begun_or_not(first_BS: Tensor, fresh_B1: Tensor | None, start: Callable[[], Tensor]) -> Tensor:
    """What is known of the first state of rows that carry on, and of those that begin, if there are any, `start`."""
    return first_BS if fresh_B1 is None else torch.where(fresh_B1, start(), first_BS)


def empty_rows_keep(before_BS: Tensor | None, lengths_B: Tensor | None, time: int) -> Callable[[Tensor], Tensor]:
    """How to carry a belief on as it is, where a row without tokens ends with what it began with: None, not begun."""

    def carry(final_BS: Tensor) -> Tensor:
        if time > 0 and lengths_B is None:
            return final_BS
        kept_BS = not_begun(final_BS) if before_BS is None else before_BS
        return kept_BS if time == 0 or lengths_B is None else torch.where((lengths_B > 0)[:, None], final_BS, kept_BS)

    return carry
