"""The words that gaps in a text may hold: p(word | all that was seen, on both sides), exactly."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, NamedTuple

import torch
from torch import Tensor

from trellis import inference
from trellis.errors import TrellisError
from trellis.models import enumerated_gaps, remembering, remembering_blocks
from trellis.models.asking import Asked
from trellis.models.chain_of import chain_of
from trellis.ops.precision import widened
from trellis.progress import counted

if TYPE_CHECKING:
    from trellis.models.questions import Questions

LEAST = math.log(1e-30)  # of a word less probable, float32 has lost digits, or all
AT_ONCE = 256  # rows of such words that are scored together


class Filled(NamedTuple):
    """What may stand in each of a batch's N gaps, row by row and from left to right.

    row_N, place_N  where the gap is
    log_prob_NV     log p(word | all tokens seen), of every word; −inf throughout where those tokens are impossible

    A word's probability is known to a millionth of what the tokens before the gap give it; it is −inf only if it is
    impossible. Each gap is by itself: what stands in the others of its row is summed over. So the best words of two
    gaps need not be the best pair of words.
    """

    row_N: Tensor
    place_N: Tensor
    log_prob_NV: Tensor

    def best(self, k: int) -> tuple[Tensor, Tensor]:
        """The probabilities of each gap's k best words and their ids, both N×k, the best first."""
        log_prob_NK, word_NK = self.log_prob_NV.topk(min(k, self.log_prob_NV.shape[1]))
        return log_prob_NK.exp(), word_NK

    def __repr__(self) -> str:
        return f"Filled({counted(len(self.row_N), 'gap')}, {counted(self.log_prob_NV.shape[1], 'word')})"


@torch.no_grad()
def fill(model: Questions, asked: Asked) -> Filled:
    """The distribution of the word at each gap of a batch, the others summed over."""
    if asked.missing_BT is None:
        raise TrellisError("nothing is missing: say by missing_BT which tokens are to be filled in.")
    gap_BT = asked.gaps()
    if enumerated_gaps.needed(model, asked):
        row_N, place_N = gap_BT.nonzero().T
        return Filled(row_N, place_N, enumerated_gaps.fill(model, asked).clamp_max(0.0))
    parts = [_fill_rows(model, part) for part in model.row_parts(asked)]
    weight_NV = torch.cat(parts)
    total_N1 = weight_NV.sum(1, keepdim=True)
    # In an impossible row there is nothing to divide by.
    log_prob_NV = (weight_NV / torch.where(total_N1 > 0, total_N1, 1.0)).log()
    row_N, place_N = gap_BT.nonzero().T
    for number in (~(log_prob_NV >= LEAST)).any(1).nonzero().flatten().tolist():
        words_M = (~(log_prob_NV[number] >= LEAST)).nonzero().flatten()
        found_M = _exactly(model, asked, int(row_N[number]), int(place_N[number]), words_M)
        log_prob_NV[number, words_M] = found_M.to(log_prob_NV)
    return Filled(row_N, place_N, log_prob_NV.clamp_max(0.0))


def _exactly(model: Questions, asked: Asked, row: int, place: int, words_M: Tensor) -> Tensor:
    """log p(word at a gap | the rest) of words that float32 has no probability for: each is scored in its place."""
    one = asked.some(slice(row, row + 1))
    log_rest = _log_prob(model, one)
    if log_rest == -torch.inf:
        return torch.full_like(words_M, -torch.inf, dtype=log_rest.dtype)
    found = []
    for some_M in words_M.split(AT_ONCE):
        ids_MT, lengths_M, missing_MT, state, _ = (
            None if given is None else given.expand(len(some_M), *given.shape[1:]).clone() for given in one
        )
        assert ids_MT is not None
        assert missing_MT is not None
        ids_MT[:, place], missing_MT[:, place] = some_M, False
        found.append(_log_prob(model, Asked(ids_MT, lengths_M, missing_MT, state, None)) - log_rest)
    return torch.cat(found)


def _log_prob(model: Questions, asked: Asked) -> Tensor:
    """log p of whole rows, B, in float64."""
    log_prob_BT, _ = model.score(asked.ids_BT, asked.state, asked.lengths_B, asked.missing_BT)
    return widened(log_prob_BT).sum(1)


def _fill_rows(model: Questions, asked: Asked) -> Tensor:
    """p(word at a gap | the rest) of the gaps of some rows, N×V, but for a factor a gap."""
    gap_BT = asked.gaps()
    if not bool(gap_BT.any()):
        return next(model.parameters()).new_zeros(0, model.config.vocab_size)
    chain = chain_of(model, asked)
    smoothed = inference.smooth(chain)
    posterior_NS = _over_all_states(model, smoothed.posterior_BTS[gap_BT], smoothed.states_BTS[gap_BT])
    if model.memory is None:
        return model.words_of(posterior_NS)
    # The word of a gap decides how its state is left: only at the end of a row is the state all that there is.
    belief_NS = inference.filter(chain).belief_BTS[gap_BT]
    weight_NV = model.words_of(posterior_NS)
    row_N, place_N = gap_BT.nonzero().T
    inner_N = place_N + 1 < chain.lengths()[row_N]
    if bool(inner_N.any()):
        next_NS = smoothed.posterior_BTS[row_N[inner_N], place_N[inner_N] + 1]
        gap_words = (remembering if model.support is None else remembering_blocks).gap_words
        weight_NV[inner_N] = gap_words(model, belief_NS[inner_N], next_NS).to(weight_NV)
    return weight_NV


def _over_all_states(model: Questions, posterior_NJ: Tensor, states_NJ: Tensor) -> Tensor:
    """The same posteriors over all of the model's states, N×S."""
    return posterior_NJ.new_zeros(len(posterior_NJ), model.config.states).scatter_add_(1, states_NJ, posterior_NJ)
