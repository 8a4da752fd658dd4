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
from trellis.inference.chain import Ahead, begun_or_not, carried, log_belief, not_begun
from trellis.models.encoders import Vectors
from trellis.models.memory import MISSING, NONE, Contexts, Memory, gap_matrix, leaving, log_totals
from trellis.ops.evidence import row_sums
from trellis.ops.precision import widened

if TYPE_CHECKING:
    from trellis.models.asking import Asked
    from trellis.models.distributions import Distributions


LARGEST_SUM = 1 << 28  # numbers of a table of words and states: 1 GB of float32


class Remembered(NamedTuple):
    """A carried state in its two parts: the belief, and the last words, the newest first, NONE where there is none."""

    belief_BS: Tensor
    words_BM: Tensor

    @classmethod
    def of(cls, model: Distributions, state: Tensor | None, rows: int) -> Remembered:
        """The parts of a state; of None, those of a text that begins."""
        states, memory = model.config.states, model.config.memory
        if state is None:
            words_BM = torch.full((rows, memory), NONE, device=model.device)
            return cls(not_begun(next(model.parameters()).new_empty(rows, states)), words_BM)
        words_BM = state[:, states:].round().long()
        if words_BM.numel() and (int(words_BM.min()) < MISSING or int(words_BM.max()) >= model.config.vocab_size):
            raise InputError(
                f"a state with words outside of this model's {model.config.vocab_size} is none: give the one that the "
                "last call returned."
            )
        return cls(state[:, :states], words_BM)

    def joined(self) -> Tensor:
        """The state that is carried on."""
        return torch.cat([self.belief_BS, self.words_BM.to(self.belief_BS)], 1)


def refuse_gaps(model: Distributions) -> None:
    """Refuse to sum over more words than one, and over tables of words and states that do not fit in memory."""
    if model.config.memory > 1:
        raise TrellisError(
            f"a gap in a text would be summed over all {model.config.memory}-word memories: ask a model with "
            "model.memory=1."
        )
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

    def gap(self) -> Tensor:
        """p(next state | state) after a word that was not seen, S×S."""
        return self.model.kept("gap", self._gap)

    def _gap(self) -> Tensor:
        refuse_gaps(self.model)
        return gap_matrix(self.transition, self.model.log_emission(), self.log_enter_of_all())

    def of_all_words(self) -> tuple[Tensor, Tensor, Tensor]:
        """T, S×S, and what `leaving` gives of every word, both V×S."""
        refuse_gaps(self.model)
        return self.transition.matrix_SS, *leaving(self.transition, self.model.log_emission(), self.log_enter_of_all())

    def log_enter_of_all(self) -> Tensor:
        """c of every word, V×S."""
        return self.log_enter(torch.arange(self.model.config.vocab_size, device=self.model.device)[:, None])


def push(model: Distributions, state: Tensor) -> Tensor:
    """p(next state | all before), B×S."""
    steps = _Steps(model, model.vectors(model.everything))
    belief_BS, words_BM = Remembered.of(model, state, len(state))
    belief_BS, _ = carried(belief_BS)
    log_enter_BS = steps.log_enter(words_BM)
    leave_BS = belief_BS * (-log_totals(steps.transition, log_enter_BS)).exp()
    return _past_gaps(steps, belief_BS, words_BM, steps.transition.push(leave_BS, 0) * log_enter_BS.exp())


def _past_gaps(steps: _Steps, belief_BS: Tensor, words_BM: Tensor, pushed_BS: Tensor) -> Tensor:
    """These pushed beliefs, but where the last word was not seen, those that sum over it."""
    missing_B = (words_BM == MISSING).any(1)
    if not bool(missing_B.any()):
        return pushed_BS
    return torch.where(missing_B[:, None], (belief_BS @ steps.gap()).to(pushed_BS), pushed_BS)


@torch.no_grad()
def whichever_word(model: Distributions) -> Tensor:
    """p(next state | state), S×S, whichever word the state emitted; the states alone are a Markov chain of it."""
    return _Steps(model, model.vectors(model.everything)).gap()


@torch.no_grad()
def steps_after_words(model: Distributions) -> tuple[Tensor, Tensor, Tensor]:
    """T[z, z′], a[x, z] and b[x, z′], of which T a b is p(x | z) p(z′ | z, x): of every word x, for a memory of one."""
    return model.kept("steps after words", _Steps(model, model.vectors(model.everything)).of_all_words)


def gap_words(model: Distributions, belief_NS: Tensor, next_NS: Tensor) -> Tensor:
    """p(word of a gap | the rest of its row), N×V, but for a factor a gap.

        Σ_z b[z] p(x | z) Σ_z′ p(z′ | z, x) m[z′]

    with the belief b about the gap's state given all before. The message m, what the rest says of the state after the
    gap, is that state's posterior `next_NS` divided by its belief.
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
    ids_BT = asked.ids_BT if asked.missing_BT is None else asked.ids_BT.masked_fill(asked.missing_BT, MISSING)
    contexts = Contexts.of(before.words_BM, ids_BT, model.config.vocab_size)
    log_enter_KS = steps.log_enter(contexts.words_KM)
    log_total_KS = log_totals(steps.transition, log_enter_KS)
    log_columns_NS, index_BT, _ = model.columns(
        asked.ids_BT, lambda words_N: model.emission.columns(steps.vectors, steps.everything, words_N)
    )
    missing_BT = torch.zeros_like(ids_BT, dtype=torch.bool) if asked.missing_BT is None else asked.missing_BT
    last_B = asked.lengths_B if asked.lengths_B is not None else torch.full((batch,), time, device=ids_BT.device)
    inside_BT = torch.arange(1, time + 1, device=ids_BT.device) < last_B[:, None]  # but for the last token
    after_gap_BT = torch.cat([(before.words_BM == MISSING).any(1)[:, None], missing_BT[:, :-1]], 1)[:, :time]
    ahead_BT = torch.where(inside_BT & ~missing_BT, contexts.place_BT1[:, 1:], -1)
    evidence_NS = row_sums(  # in the order of a walk: time first
        (log_columns_NS, index_BT.masked_fill(missing_BT, -1).T.flatten()),
        (log_enter_KS, contexts.place_BT1[:, :-1].masked_fill(after_gap_BT, -1).T.flatten()),
        (-log_total_KS, ahead_BT.T.flatten()),
    )
    return Chain(
        _log_first(steps, asked, before, log_total_KS[contexts.place_BT1[:, 0]]),
        steps.transition if not bool(after_gap_BT[:, 1:].any()) else _with_gaps(steps, after_gap_BT),
        evidence_NS,
        torch.arange(batch * time, device=ids_BT.device).view(time, batch).T,
        asked.lengths_B,
        labels_BT=asked.labels_BT,
        carry=carrying(before, contexts, last_B),
        ahead=Ahead(log_total_KS, ahead_BT),
    )


def _log_first(steps: _Steps, asked: Asked, before: Remembered, log_total_BS: Tensor) -> Tensor:
    """log p(first state) but for what its context adds, which the evidence of the first token has."""

    def log_start() -> Tensor:
        return steps.model.log_start(steps.vectors, steps.everything)

    if asked.state is None:
        return log_start().expand(len(before.belief_BS), -1)
    belief_BS, fresh_B1 = carried(before.belief_BS)
    pushed_BS = steps.transition.push(belief_BS * (-log_total_BS).exp(), 0)
    log_first_BS = log_belief(_past_gaps(steps, belief_BS, before.words_BM, pushed_BS), belief_BS)
    return begun_or_not(log_first_BS, fresh_B1, log_start)


def _with_gaps(steps: _Steps, after_gap_BT: Tensor) -> BlockPairs:
    """Two matrices: the plain one, and the one after a word that was not seen."""
    into_PSS = torch.stack([steps.transition.matrix_SS.T, steps.gap().T])
    return BlockPairs(into_PSS, after_gap_BT.long(), lambda chosen_N: widened(into_PSS.detach()[chosen_N]).log())


def carrying(before: Remembered, contexts: Contexts, last_B: Tensor) -> Callable[[Tensor], Tensor]:
    """From beliefs after each row's last token to the state carried on; a row without tokens ends as it began."""

    def carry(final_BS: Tensor) -> Tensor:
        words_BM = contexts.words_KM[contexts.place_BT1.gather(1, last_B[:, None]).squeeze(1)]
        belief_BS = torch.where((last_B > 0)[:, None], final_BS, before.belief_BS)
        return Remembered(belief_BS, words_BM).joined()

    return carry
