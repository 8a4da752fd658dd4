"""Exact predictions of the next token at any places of a batch, whatever tokens of it are padding."""

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.forward import carried_after
from trellis.models import HMM, Model
from trellis.models.memory import last_words
from trellis.models.remembering import Remembered

NUMBERS = 1 << 26  # in the states of a batch's tokens that are held at once: 256 MB of float32


class Rows(NamedTuple):
    """A batch without its padding: the tokens of each row that are there, from the left.

    ids_BT     anything past a row's end
    lengths_B  how many tokens each row has
    read_BT    at each place of the batch as it was given, how many tokens of its row have been read
    """

    ids_BT: Tensor
    lengths_B: Tensor
    read_BT: Tensor

    @classmethod
    def of(cls, ids_BT: Tensor, there_BT: Tensor) -> Rows:
        """The tokens that are there; padding may stand anywhere."""
        order_BT = (~there_BT).long().argsort(dim=1, stable=True)
        return cls(ids_BT.gather(1, order_BT), there_BT.sum(1), there_BT.cumsum(1))

    def between(self, begin: int, stop: int) -> Rows:
        """The tokens from one place of the rows without padding up to another; `read_BT` counts from there."""
        size = stop - begin
        left_B = (self.lengths_B - begin).clamp(0, size)
        return Rows(self.ids_BT[:, begin:stop], left_B, self.read_BT - begin)


@torch.no_grad()
def predictions(model: Model, rows: Rows, state: Tensor, places_K: Tensor) -> tuple[Tensor, Tensor]:
    """log p(next token | tokens so far) at these places of the batch, B×K×V, and the state after all of its tokens.

    Where the tokens so far are impossible nothing is known: all words are given the same number, zero.
    """
    read_BK = rows.read_BT[:, places_K]
    if bool((read_BK == rows.lengths_B[:, None]).all()):  # all that a step of `generate` needs
        _, state = model.score(rows.ids_BT, state, rows.lengths_B)
        return _known(model.next_token(state))[:, None].expand(-1, len(places_K), -1), state
    found_BKV = torch.empty((*read_BK.shape, model.config.vocab_size), dtype=_dtype(model), device=state.device)
    time = rows.ids_BT.shape[1]
    length = max(1, NUMBERS // max(1, state.numel()))
    for begin in range(0, time, length):
        piece = rows.between(begin, min(begin + length, time))
        after_BTN, last = states_after(model, piece, state)
        read_BK = piece.read_BT[:, places_K]
        here_BK = (read_BK >= 0) & (read_BK <= after_BTN.shape[1])
        before_and_after = torch.cat([state[:, None], after_BTN], 1)
        row_N, _ = here_BK.nonzero(as_tuple=True)
        found_BKV[here_BK] = _known(model.next_token(before_and_after[row_N, read_BK[here_BK]]))
        state = last
    return found_BKV, state


def _dtype(model: Model) -> torch.dtype:
    """Of log-probabilities: that of parameters; of a model that counts, float64."""
    return next((parameter.dtype for parameter in model.parameters()), torch.float64)


def _known(log_prob_NV: Tensor) -> Tensor:
    """The same, with zeros where no word has any probability: a product with such a text is −inf, not NaN."""
    return log_prob_NV.masked_fill(log_prob_NV.amax(1, keepdim=True) == -torch.inf, 0.0)


def states_after(model: Model, rows: Rows, state: Tensor) -> tuple[Tensor, Tensor]:
    """The state after each token, B×T×N, and after the last one of each row; past a row's end anything may stand."""
    if isinstance(model, HMM):
        return _beliefs_after(model, rows, state)
    found = []
    for t in range(rows.ids_BT.shape[1]):
        there_B = (rows.lengths_B > t).long()
        _, state = model.score(rows.ids_BT[:, t : t + 1], state, there_B)
        found.append(state)
    return torch.stack(found, 1), state


def _beliefs_after(model: HMM, rows: Rows, state: Tensor) -> tuple[Tensor, Tensor]:
    """By one walk: beliefs over all states, and beside them the words that are remembered."""
    found_BTJ, states_BTJ, last = carried_after(model.chain(rows.ids_BT, rows.lengths_B, None, state))
    shape = *rows.ids_BT.shape, model.config.states
    belief_BTS = found_BTJ.new_zeros(shape).scatter(2, states_BTJ, found_BTJ)
    if model.memory is None:
        return belief_BTS, last
    before_BM = Remembered.of(model, state, len(state)).words_BM
    there_BT = torch.arange(shape[1], device=state.device) < rows.lengths_B[:, None]
    words_BTM = last_words(before_BM, rows.ids_BT.masked_fill(~there_BT, 0))[:, 1:]
    return torch.cat([belief_BTS, words_BTM.to(belief_BTS)], 2), last


def not_begun(model: Model, rows: int) -> Tensor:
    """The state of texts that have not begun."""
    _, state = model.score(torch.empty(rows, 0, dtype=torch.long, device=model.device))
    return state
