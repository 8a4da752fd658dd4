"""One token of an HMM where tokens fall into classes: what a constraint can see of a model."""

from __future__ import annotations

import functools
from abc import ABC, abstractmethod
from typing import TYPE_CHECKING

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor
from typing_extensions import override

from trellis.errors import TrellisError
from trellis.models.hmm import LARGEST_DENSE
from trellis.models.remembering import steps_after_words
from trellis.models.remembering_blocks import rows_after, rows_after_any_word

if TYPE_CHECKING:
    from trellis.models.hmm import HMM

LARGEST = 1 << 28  # numbers in the matrices of all classes: 1 GB of float32


class Steps(ABC):
    """How a state emits a token of some class and is left for the next state.

    A message m[z] says how probable what follows is, if the next token comes from state z.
    """

    def __init__(self, model: HMM, class_V: NDArray[np.int32], classes: int) -> None:
        if model.config.states > LARGEST_DENSE:
            raise TrellisError(
                f"constraints need all pairs of states, and those of {model.config.states:,} do not fit in memory: use "
                f"a model of at most {LARGEST_DENSE:,} states."
            )
        if len(class_V) != model.config.vocab_size:
            raise TrellisError(
                f"the constraint was compiled for {len(class_V):,} tokens and the model has "
                f"{model.config.vocab_size:,}: use the tokenizer that was saved with the model."
            )
        self.model, self.classes = model, classes
        self.class_V = torch.from_numpy(class_V.astype(np.int64)).to(model.device)

    def left(self, message_NS: Tensor) -> Tensor:
        """What `emit` takes of messages, made once for all classes."""
        return message_NS

    @abstractmethod
    def emit(self, left_NS: Tensor, token_class: int) -> Tensor:
        """Σ_v p(v | z) Σ_z′ p(z′ | z, v) m[z′] over the tokens v of a class, N×S: the messages one token earlier."""

    @abstractmethod
    def token_weights(self, states_N: Tensor, message_NCS: Tensor) -> Tensor:
        """p(v | z) Σ_z′ p(z′ | z, v) m[z′] of every token v in given states z, N×V; m is that of the token's class."""

    @abstractmethod
    def next_states(self, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        """p(next state | state, its token), N×S."""


def steps_of(model: HMM, class_V: NDArray[np.int32], classes: int) -> Steps:
    """Those of a model, whether or not its states remember words."""
    if model.config.memory > 1 or model.ngrams is not None:
        raise TrellisError(
            "gaps, words further on and constraints would be summed over all that this model remembers: ask one with "
            "model.memory=1 and no model.ngrams, or `trellis fill` about a single gap."
        )
    if model.memory is None:
        return Plain(model, class_V, classes)
    return (Remembering if model.support is None else RememberingBlocks)(model, class_V, classes)


class Plain(Steps):
    """The next state depends on the state alone."""

    @torch.no_grad()
    def __init__(self, model: HMM, class_V: NDArray[np.int32], classes: int) -> None:
        super().__init__(model, class_V, classes)
        self.matrix_SS = model.kept("all pairs", lambda: model.transition_rows(model.everything()))
        self.emission_CS = model.class_emission(self.class_V, classes)

    @functools.cached_property
    def best_emission_CS(self) -> Tensor:
        """p(the best token of a class | state)."""
        return self.model.class_emission(self.class_V, self.classes, most=True)

    @override
    def left(self, message_NS: Tensor) -> Tensor:
        """Σ_z′ p(z′ | z) m[z′], N×S."""
        return message_NS @ self.matrix_SS.T

    @override
    def emit(self, left_NS: Tensor, token_class: int) -> Tensor:
        return left_NS * self.emission_CS[token_class]

    @override
    def token_weights(self, states_N: Tensor, message_NCS: Tensor) -> Tensor:
        left_NC = (message_NCS @ self.matrix_SS[states_N].unsqueeze(-1)).squeeze(-1)
        return self.model.emission_rows(states_N) * left_NC[:, self.class_V]

    @override
    def next_states(self, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        return self.matrix_SS[states_N]


class Remembering(Steps):
    """The next state depends on the state and the token that it emitted."""

    @torch.no_grad()
    def __init__(self, model: HMM, class_V: NDArray[np.int32], classes: int) -> None:
        super().__init__(model, class_V, classes)
        self._check_size()
        self.plain_SS, self.leave_VS, self.enter_VS = steps_after_words(model)
        self.tokens = [(self.class_V == one).nonzero().flatten() for one in range(classes)]
        self.matrices = [self.plain_SS * (self.leave_VS[some].T @ self.enter_VS[some]) for some in self.tokens]

    def _check_size(self) -> None:
        if self.classes * self.model.config.states**2 > LARGEST:
            raise TrellisError(
                f"a constraint that tells {self.classes:,} classes of tokens apart does not fit in memory with states "
                "that remember words: make it simpler, or use a model without model.memory."
            )

    @override
    def emit(self, left_NS: Tensor, token_class: int) -> Tensor:
        return left_NS @ self.matrices[token_class].T

    @override
    def token_weights(self, states_N: Tensor, message_NCS: Tensor) -> Tensor:
        weight_NV = self.leave_VS[:, states_N].T.clone()
        for one, some in enumerate(self.tokens):
            weight_NV[:, some] *= (self.plain_SS[states_N] * message_NCS[:, one]) @ self.enter_VS[some].T
        return weight_NV

    @override
    def next_states(self, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        weight_NS = self.plain_SS[states_N] * self.enter_VS[tokens_N]
        return weight_NS / weight_NS.sum(1, keepdim=True)


class RememberingBlocks(Remembering):
    """The same of states in blocks, each of which emits the words of its own."""

    @torch.no_grad()
    def __init__(self, model: HMM, class_V: NDArray[np.int32], classes: int) -> None:
        Steps.__init__(self, model, class_V, classes)
        self._check_size()
        everything = model.everything()
        self.matrices = [rows_after_any_word(model, everything, self.class_V == one) for one in range(classes)]

    @override
    def token_weights(self, states_N: Tensor, message_NCS: Tensor) -> Tensor:
        weight_NV = message_NCS.new_zeros(len(states_N), self.model.config.vocab_size)
        for state in states_N.unique():
            rows_M = (states_N == state).nonzero().flatten()
            words_X = (self.model.block_V == state // self.model.block_size).nonzero().flatten()
            emission_X = self.model.emission_table()[words_X, state % self.model.block_size]
            joint_XS = self.next_states(state.expand(len(words_X)), words_X) * emission_X[:, None]
            for one in self.class_V[words_X].unique():
                some = self.class_V[words_X] == one
                weight_NV[rows_M[:, None], words_X[some]] = message_NCS[rows_M, one] @ joint_XS[some].T
        return weight_NV

    @override
    def next_states(self, states_N: Tensor, tokens_N: Tensor) -> Tensor:
        return rows_after(self.model, states_N, tokens_N[:, None])
