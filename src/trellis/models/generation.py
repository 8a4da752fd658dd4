"""Text drawn from a model: of an HMM a state from the last one's row, a word from the state's; of others a word."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple, Protocol

import torch
from torch import Tensor

from trellis.inference.brief import brief
from trellis.inference.draws import draw
from trellis.models.scorer import Scorer


class Samples(NamedTuple):
    """z_1 ~ start, z_t+1 ~ transition[z_t], o_t ~ emission[z_t].

    states_BT, tokens_BT  −1 past a row's end; states are −1 throughout where a model has none
    lengths_B             tokens drawn, the end token included
    """

    states_BT: Tensor
    tokens_BT: Tensor
    lengths_B: Tensor

    def __repr__(self) -> str:
        return brief(self)


class Memory(NamedTuple):
    """For states that remember words.

    words_BM  the last ones of each row, the newest first
    after     p(next state | state, words), N×S
    emission  p(word | state, words before it), N×V
    """

    words_BM: Tensor
    after: Callable[[Tensor, Tensor], Tensor]
    emission: Callable[[Tensor, Tensor], Tensor]

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
    p(word | state), N×V; where states remember words, `memory` gives both.
    """
    batch, time = len(lengths_B), int(lengths_B.max()) if len(lengths_B) else 0
    states_BT, tokens_BT = torch.full((2, batch, time), -1, device=lengths_B.device).unbind()
    lengths_B, weight_BS = lengths_B.clone(), predicted_BS
    for t in range(time):
        running_N = (lengths_B > t).nonzero().flatten()
        if len(running_N) == 0:
            break
        state_N = draw(weight_BS[running_N], generator)
        if memory is None:
            next_NS, emission_NV = rows(state_N)
            token_N = draw(emission_NV, generator)
        else:
            token_N = draw(memory.emission(state_N, memory.words_BM[running_N]), generator)
            next_NS = memory.next(running_N, state_N, token_N)
        weight_BS = torch.zeros_like(weight_BS).index_copy(0, running_N, next_NS)
        states_BT[running_N, t], tokens_BT[running_N, t] = state_N, token_N
        if end_token is not None:
            lengths_B[running_N[token_N == end_token]] = t + 1
    return Samples(states_BT, tokens_BT, lengths_B)


class Predictor(Scorer, Protocol):
    """A language model that knows the distribution of the next word."""

    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""

    def advance(self, ids_BT: Tensor, state: Tensor | None = None) -> Tensor:
        """The state after these tokens."""


def sample_words(
    model: Predictor,
    lengths_B: Tensor,
    state: Tensor | None,
    end_token: int | None = None,
    generator: torch.Generator | None = None,
) -> Samples:
    """Draw rows of tokens from a model without states, each given those before it."""
    lengths_B, rows_N = lengths_B.clone(), torch.arange(len(lengths_B), device=lengths_B.device)
    time = int(lengths_B.max()) if len(lengths_B) else 0
    states_BT, tokens_BT = torch.full((2, len(lengths_B), time), -1, device=lengths_B.device).unbind()
    for t in range(time):
        going_N = lengths_B[rows_N] > t
        rows_N, state = rows_N[going_N], None if state is None else state[going_N]
        if len(rows_N) == 0:
            break
        token_N = draw(model.next_token(state).exp().expand(len(rows_N), -1), generator)
        tokens_BT[rows_N, t] = token_N
        if end_token is not None:
            lengths_B[rows_N[token_N == end_token]] = t + 1
        state = model.advance(token_N[:, None], state)
    return Samples(states_BT, tokens_BT, lengths_B)
