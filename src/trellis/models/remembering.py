"""Chains of an HMM whose states remember words: the memory is in the evidence of tokens, and steps are as ever.

The state that such a model carries is a belief, and beside it the last words, by their ids.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, NamedTuple, cast

import torch
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.inference import BlockPairs, Chain, Dense
from trellis.inference.chain import Ahead, Entered, begun_or_not, carried, log_belief, log_carried, not_begun
from trellis.models.counted_ngrams import CountedNGrams, Found, mixed
from trellis.models.encoders import Vectors
from trellis.models.memory import MISSING, NONE, Memory, leaving, log_gap_matrix, log_totals
from trellis.ops import walks
from trellis.ops.evidence import row_sums
from trellis.ops.precision import widened

if TYPE_CHECKING:
    from trellis.models.asking import Asked
    from trellis.models.distributions import Distributions


LARGEST_SUM = 1 << 28  # numbers of a table of words and states: 1 GB of float32
MODERATE = 30.0  # logarithms of factors that float32 holds with ease


class Remembered(NamedTuple):
    """A carried state in its two parts: the belief, and the last words, the newest first, NONE where there is none."""

    belief_BS: Tensor
    words_BM: Tensor

    @classmethod
    def of(cls, model: Distributions, state: Tensor | None, rows: int) -> Remembered:
        """The parts of a state; of None, those of a text that begins."""
        states, memory = model.config.states, model.config.remembered
        if state is None:
            words_BM = torch.full((rows, memory), NONE, device=model.device)
            return cls(not_begun(next(model.parameters()).new_empty(rows, states)), words_BM)
        words_BM = state[:, states:].round().long()
        outside = words_BM.numel() and (int(words_BM.min()) < MISSING or int(words_BM.max()) >= model.config.vocab_size)
        if outside or bool((words_BM != state[:, states:]).any()):
            raise InputError(
                f"a state with words outside of this model's {model.config.vocab_size} is none: give the one that the "
                "last call returned."
            )
        return cls(state[:, :states], words_BM)

    def moving(self, model: Distributions) -> Tensor:
        """The words on which it depends how the state is left; n-grams and caches may look further back."""
        return self.words_BM[:, : model.config.memory]

    def joined(self) -> Tensor:
        """The state that is carried on."""
        return torch.cat([self.belief_BS, self.words_BM.to(self.belief_BS)], 1)


def refuse_gaps(model: Distributions) -> None:
    """Refuse to sum over a word that is remembered beyond a step."""
    if model.config.memory > 1 or model.ngrams is not None:
        raise TrellisError(
            "states that remember more than a word answer score, filter, smooth and fill alone about texts with gaps: "
            "for paths, draws and constraints, or to go on after a gap, ask a model with model.memory=1 and no "
            "model.ngrams."
        )


def refuse_large_sums(model: Distributions) -> None:
    """Refuse to sum over tables of words and states that do not fit in memory."""
    words, states = model.config.vocab_size, model.config.states
    if model.support is None and words * states > LARGEST_SUM:
        raise TrellisError(
            f"a gap in a text would be summed over {words:,} words in each of {states:,} states, which do not fit in "
            "memory: ask a model with fewer states, with blocks, or without model.memory."
        )


class _Steps:
    """What steps of a batch are made of: the plain transition, and what contexts add to it."""

    def __init__(self, model: Distributions, vectors: Vectors) -> None:
        self.model, self.vectors, self.everything = model, vectors, model.everything()
        self.transition = model.kept("transition", self._between)

    def _between(self) -> Dense:
        return cast(Dense, self.model.transition.between(self.vectors, self.everything))

    def log_enter(self, words_KM: Tensor) -> Tensor:
        """c of these contexts, K×S."""
        entering_SR = self.vectors.vectors("entering", self.vectors.encode(self.everything))
        return cast(Memory, self.model.memory).log_enter(entering_SR, words_KM)

    def log_gap(self) -> Tensor:
        """log p(next state | state) after a word that was not seen, S×S."""
        return self.model.kept("gap", self._log_gap)

    def _log_gap(self) -> Tensor:
        refuse_large_sums(self.model)
        return log_gap_matrix(self.transition, self._log_emission(), self.log_enter_of_all())

    def _log_emission(self) -> Tensor:
        """log p(word | state) of every word, V×S; with gradients where they are wanted."""
        if not torch.is_grad_enabled():
            return self.model.log_emission()
        words_V = torch.arange(self.model.config.vocab_size, device=self.model.device)
        return self.model.emission.columns(self.vectors, self.everything, words_V)

    def gap(self) -> Tensor:
        """p(next state | state) after a word that was not seen, S×S."""
        return self.log_gap().exp()

    def of_all_words(self) -> tuple[Tensor, Tensor, Tensor]:
        """T, S×S, and what `leaving` gives of every word, both V×S."""
        refuse_large_sums(self.model)
        return self.transition.matrix_SS, *leaving(self.transition, self.model.log_emission(), self.log_enter_of_all())

    def log_enter_of_all(self) -> Tensor:
        """c of every word, V×S."""
        return self.log_enter(torch.arange(self.model.config.vocab_size, device=self.model.device)[:, None])


def push(model: Distributions, state: Tensor) -> Tensor:
    """p(next state | all before), B×S."""
    steps = _Steps(model, model.vectors(model.everything))
    before = Remembered.of(model, state, len(state))
    log_enter_BS = steps.log_enter(before.moving(model))
    first = _First(steps, before, log_totals(steps.transition, log_enter_BS))
    log_pushed_BS = first.log_pushed()
    lost_B = (log_pushed_BS == -torch.inf).any(1) & ~first.fresh_B
    for row in lost_B.nonzero().flatten().tolist():
        log_pushed_BS[row] = first.exactly(row).to(log_pushed_BS)
    log_enter_BS = torch.where(first.after_gap_B[:, None], 0.0, log_enter_BS)
    return (log_pushed_BS - first.least_B1 + log_enter_BS).exp()


@torch.no_grad()
def log_push(model: Distributions, state_S: Tensor) -> Tensor:
    """The logarithm of that, of one row, in float64."""
    steps = _Steps(model, model.vectors(model.everything))
    before = Remembered.of(model, state_S[None], 1)
    log_enter_1S = steps.log_enter(before.moving(model))
    first = _First(steps, before, log_totals(steps.transition, log_enter_1S))
    log_enter_S = torch.zeros_like(log_enter_1S[0]) if bool(first.after_gap_B[0]) else log_enter_1S[0]
    return first.exactly(0) + widened(log_enter_S - first.least_B1[0])


class _First:
    """Beliefs one step on, but for what their context adds: divided by N, and times exp(`least_B1`).

    That is the least of N where N is far from one, so that nothing overflows.
    """

    def __init__(self, steps: _Steps, before: Remembered, log_total_BS: Tensor) -> None:
        self.steps, self.before, self.log_total_BS = steps, before, log_total_BS
        self.belief_BS, fresh_B1 = carried(before.belief_BS)
        self.fresh_B = torch.zeros_like(self.belief_BS[:, 0], dtype=torch.bool) if fresh_B1 is None else fresh_B1[:, 0]
        self.after_gap_B = (before.words_BM == MISSING).any(1)
        if bool(self.after_gap_B.any()):
            refuse_gaps(steps.model)
        least_B1 = log_total_BS.detach().amin(1, keepdim=True)
        moderate_B1 = (least_B1.abs() < MODERATE) | (self.fresh_B | self.after_gap_B)[:, None]
        self.least_B1 = torch.where(moderate_B1, 0.0, least_B1)

    def log_pushed(self) -> Tensor:
        """Their logarithms; −inf where float32 cannot hold the number."""
        pushed_BS = self.steps.transition.push(self.belief_BS * (self.least_B1 - self.log_total_BS).exp(), 0)
        if bool(self.after_gap_B.any()):
            past_gap_BS = (self.belief_BS @ self.steps.gap()).to(pushed_BS)
            pushed_BS = torch.where(self.after_gap_B[:, None], past_gap_BS, pushed_BS)
        held_BS = pushed_BS >= walks.limits(pushed_BS.dtype).lowest_belief
        return log_belief(torch.where(held_BS, pushed_BS, 0.0), self.before.belief_BS)

    @torch.no_grad()
    def exactly(self, row: int) -> Tensor:
        """Those of one row in float64."""
        log_belief_S = log_carried(self.before.belief_BS[row])
        if bool(self.after_gap_B[row]):
            return (log_belief_S[:, None] + widened(self.steps.log_gap())).logsumexp(0)
        return self.steps.transition.log_push(log_belief_S + widened(self.least_B1[row] - self.log_total_BS[row]))


@torch.no_grad()
def whichever_word(model: Distributions) -> Tensor:
    """p(next state | state), S×S, whichever word the state emitted; the states alone are a Markov chain of it."""
    return _Steps(model, model.vectors(model.everything)).gap()


@torch.no_grad()
def steps_after_words(model: Distributions) -> tuple[Tensor, Tensor, Tensor]:
    """T[z, z′], a[x, z] and b[x, z′], of which T a b is p(x | z) p(z′ | z, x): of every word x, for a memory of one."""
    found = model.kept("steps after words", _Steps(model, model.vectors(model.everything)).of_all_words)
    if not bool(found[1].isfinite().all()):
        raise TrellisError(
            "this model's memory of a word outweighs its transitions by more than its numbers hold: ask it in float64."
        )
    return found


def gap_words(model: Distributions, belief_NS: Tensor, next_NS: Tensor) -> Tensor:
    """p(word of a gap | the rest of its row), N×V, but for a factor a gap.

        Σ_z b[z] p(x | z) Σ_z′ p(z′ | z, x) m[z′]

    with the belief b about the gap's state given all before. The message m, what the rest says of the state after the
    gap, is that state's posterior `next_NS` divided by its belief. What is too large or too small to hold is no number.
    """
    steps = _Steps(model, model.vectors(model.everything))
    matrix_SS, leave_VS, enter_VS = steps.of_all_words()
    pushed_NS = (belief_NS @ steps.gap()).to(next_NS)
    message_NS = torch.where(pushed_NS > 0, next_NS / pushed_NS, 0.0)
    found = [
        ((leave_VS * belief_S) * ((enter_VS * message_S) @ matrix_SS.T)).sum(1)
        for belief_S, message_S in zip(belief_NS, message_NS, strict=True)
    ]
    return torch.stack(found)


def remembering_chain(model: Distributions, asked: Asked) -> Chain:
    """A chain whose steps cross the plain transition, and after a word that was not seen the sum over all words."""
    batch, time = asked.ids_BT.shape
    steps = _Steps(model, model.vectors(model.everything))
    before = Remembered.of(model, asked.state, batch)
    if model.ngrams is not None and asked.missing_BT is not None:
        refuse_gaps(model)
    ids_BT = asked.ids_BT if asked.missing_BT is None else asked.ids_BT.masked_fill(asked.missing_BT, MISSING)
    contexts = cast(Memory, model.memory).contexts(before.moving(model), ids_BT)
    log_enter_KS = steps.log_enter(contexts.words_KM)
    log_total_KS = log_totals(steps.transition, log_enter_KS)
    log_columns_NS, index_BT, _ = model.columns(
        asked.ids_BT, lambda words_N: model.emission.columns(steps.vectors, steps.everything, words_N)
    )
    if model.ngrams is not None:
        found = model.ngrams.before_tokens(before.words_BM, asked.ids_BT, model.block_V)
        log_columns_NS, index_BT = counted_columns(model.ngrams, found, log_columns_NS, index_BT, steps.everything)
    missing_BT = torch.zeros_like(ids_BT, dtype=torch.bool) if asked.missing_BT is None else asked.missing_BT
    last_B = asked.lengths_B if asked.lengths_B is not None else torch.full((batch,), time, device=ids_BT.device)
    places_T = torch.arange(time, device=ids_BT.device)
    inside_BT = places_T + 1 < last_B[:, None]  # but for the last token
    after_gap_BT = torch.cat([(before.words_BM == MISSING).any(1)[:, None], missing_BT[:, :-1]], 1)[:, :time]
    ahead_BT = torch.where(inside_BT & ~missing_BT, contexts.place_BT1[:, 1:], -1)
    leaving_NS, leaving_BT = _leaving(log_columns_NS, index_BT.masked_fill(missing_BT, -1), log_total_KS, ahead_BT)
    entered = Entered(log_enter_KS, contexts.place_BT1[:, :-1].masked_fill(after_gap_BT, -1))
    first = _First(steps, before, log_total_KS[contexts.place_BT1[:, 0]])
    log_first_BS, log_first = _log_first(steps, asked, first)
    if time > 0 and bool(first.least_B1.any()):  # the factor of the first beliefs is taken back at their tokens
        entered = _without(entered, first.least_B1)
    # A gap at the end of a row is never left, and needs no sum.
    no_gap = asked.missing_BT is None or not bool((after_gap_BT & (places_T < last_B[:, None])).any())
    return Chain(
        log_first_BS,
        steps.transition if no_gap else _with_gaps(steps, after_gap_BT),
        leaving_NS,
        leaving_BT,
        asked.lengths_B,
        labels_BT=asked.labels_BT,
        carry=carrying(before, ids_BT, last_B),
        log_first=log_first,
        entered=entered,
        ahead=Ahead(log_total_KS, ahead_BT),
    )


def _leaving(log_columns_NS: Tensor, index_BT: Tensor, log_total_KS: Tensor, ahead_BT: Tensor) -> tuple[Tensor, Tensor]:
    """log p(word | state) / N(state, context) of the distinct pairs of both, and which is a token's; −1 is no row."""
    code_M, place_BT = (index_BT * (len(log_total_KS) + 1) + ahead_BT + 1).unique(return_inverse=True)
    word_M = torch.div(code_M, len(log_total_KS) + 1, rounding_mode="floor")
    context_M = code_M - word_M * (len(log_total_KS) + 1) - 1
    return row_sums((log_columns_NS, word_M), (-log_total_KS, context_M)), place_BT


def _without(entered: Entered, less_B1: Tensor) -> Entered:
    """The same, but that the first token of each row has so much less."""
    log_enter_KS, enter_BT = entered
    first_BS = row_sums((log_enter_KS, enter_BT[:, 0])) - less_B1
    own_B1 = torch.arange(len(enter_BT), device=enter_BT.device)[:, None] + len(log_enter_KS)
    return Entered(torch.cat([log_enter_KS, first_BS]), torch.cat([own_B1, enter_BT[:, 1:]], 1))


def counted_columns(
    ngrams: CountedNGrams, found: Found, log_columns_NJ: Tensor, index_BT: Tensor, states_NJ: Tensor
) -> tuple[Tensor, Tensor]:
    """log p(word | state) with counted n-grams mixed in, a row for each token, time first; and which row is whose.

    `states_NJ` are the states of these rows, or of all rows.
    """
    batch, time = index_BT.shape
    gate_NJ = ngrams.word_states[states_NJ] + ngrams.word_kinds[found.kind.T.flatten()].unsqueeze(1)
    log_own_NJ = log_columns_NJ.index_select(0, index_BT.T.flatten())
    log_mixed_NJ = mixed(log_own_NJ, found.log_word.T.flatten().unsqueeze(1), gate_NJ)
    return log_mixed_NJ, torch.arange(batch * time, device=index_BT.device).view(time, batch).T


def _log_first(steps: _Steps, asked: Asked, first: _First) -> tuple[Tensor, Callable[[int], Tensor] | None]:
    """log p(first state) but for what the evidence of the first token has; and that of one row in float64."""

    def log_start() -> Tensor:
        return steps.model.log_start(steps.vectors, steps.everything)

    def log_first(row: int) -> Tensor:
        return widened(log_start().detach()) if bool(first.fresh_B[row]) else first.exactly(row)

    if asked.state is None:
        return log_start().expand(len(first.belief_BS), -1), None
    fresh_B1 = first.fresh_B[:, None] if bool(first.fresh_B.any()) else None
    return begun_or_not(first.log_pushed(), fresh_B1, log_start), log_first


def _with_gaps(steps: _Steps, after_gap_BT: Tensor) -> BlockPairs:
    """Two matrices: the plain one, and the one after a word that was not seen."""
    refuse_gaps(steps.model)
    into_PSS = torch.stack([steps.transition.matrix_SS.T, steps.gap().T])
    log_into_PSS = torch.stack([steps.transition.log_matrix_SS.T, steps.log_gap().T]).detach()
    return BlockPairs(into_PSS, after_gap_BT.long(), lambda chosen_N: widened(log_into_PSS[chosen_N]))


def carrying(before: Remembered, ids_BT: Tensor, last_B: Tensor) -> Callable[[Tensor], Tensor]:
    """From beliefs after each row's last token to the state carried on; a row without tokens ends as it began."""

    def carry(final_BS: Tensor) -> Tensor:
        all_BN = torch.cat([before.words_BM.flip(1), ids_BT], 1)  # the words after a row's last token are its padding
        places_M = torch.arange(before.words_BM.shape[1] - 1, -1, -1, device=last_B.device)
        words_BM = all_BN.gather(1, last_B[:, None] + places_M)
        belief_BS = torch.where((last_B > 0)[:, None], final_BS, before.belief_BS)
        return Remembered(belief_BS, words_BM).joined()

    return carry
