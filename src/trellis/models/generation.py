"""Text drawn from an HMM: a state from the last one's row, a word from the state's."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.inference.brief import brief
from trellis.inference.draws import draw


class Samples(NamedTuple):
    """z_1 ~ start, z_t+1 ~ transition[z_t], o_t ~ emission[z_t].

    states_BT, tokens_BT  −1 past a row's end
    lengths_B             tokens drawn, the end token included
    """

    states_BT: Tensor
    tokens_BT: Tensor
    lengths_B: Tensor

    def __repr__(self) -> str:
        return brief(self)


class Memory(NamedTuple):
    """For states that remember words: the last ones of each row, the newest first, and p(next state | state, words)."""

    words_BM: Tensor
    after: Callable[[Tensor, Tensor], Tensor]

    def next(self, rows_N: Tensor, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        """The next state's distribution in some rows, N×S, which remember their new tokens from now on."""
        words_NM = torch.cat([tokens_N[:, None], self.words_BM[rows_N]], 1)[:, :-1]
        self.words_BM[rows_N] = words_NM
        return self.after(states_N, words_NM)


def sample(
    predicted_BS: Tensor,
    rows: Callable[[Tensor], tuple[Tensor, Tensor]],
    lengths_B: Tensor,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
    memory: Memory | None = None,
) -> Samples:
    """Draw rows of states and tokens, of the given lengths or up to and including the first `end_token`.

    `predicted_BS` is the distribution of each row's first state; `rows` gives p(next state | state), N×S, and
    p(word | state), N×V; where states remember words, `memory` gives the former.
    """
    batch, time = len(lengths_B), int(lengths_B.max()) if len(lengths_B) else 0
    states_BT, tokens_BT = torch.full((2, batch, time), -1, device=lengths_B.device).unbind()
    lengths_B, weight_BS = lengths_B.clone(), predicted_BS
    for t in range(time):
        running_N = (lengths_B > t).nonzero().flatten()
        if len(running_N) == 0:
            break
        state_N = draw(weight_BS[running_N], generator)
        next_NS, emission_NV = rows(state_N)
        token_N = draw(emission_NV, generator)
        next_NS = next_NS if memory is None else memory.next(running_N, state_N, token_N)
        weight_BS = torch.zeros_like(weight_BS).index_copy(0, running_N, next_NS)
        states_BT[running_N, t], tokens_BT[running_N, t] = state_N, token_N
        if end_token is not None:
            lengths_B[running_N[token_N == end_token]] = t + 1
    return Samples(states_BT, tokens_BT, lengths_B)
