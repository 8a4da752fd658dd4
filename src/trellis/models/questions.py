"""The exact questions to an HMM: each is one function of the chain that a batch of texts is made into."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple, TypeVar, cast

import torch
from torch import Tensor

from trellis import inference
from trellis.inference import Chain, Filtered, KBest, Paths, Smoothed
from trellis.inference.brief import brief
from trellis.inference.chain import check_lengths
from trellis.inference.forward import possible
from trellis.models import enumerated_gaps, generation
from trellis.models.asking import Asked, count, state_of_rows, texts_asked
from trellis.models.chain_of import chain_of
from trellis.models.distributions import Distributions
from trellis.models.filling import Filled, fill
from trellis.models.generation import Samples
from trellis.models.remembering import Remembered
from trellis.models.scorer import MaybeTensor
from trellis.ops.walks import limits

PIECE = 1 << 28  # numbers in the pair matrices of one piece of a long text: 1 GB of float32
BELIEFS = 1 << 26  # numbers in the beliefs over all states of rows with gaps that are asked about together

T = TypeVar("T")


class Counts(NamedTuple):
    """Expected counts of a batch: what Baum–Welch normalises. Emissions are V×S, as they are stored."""

    log_prob_BT: Tensor
    state: Tensor
    start_S: Tensor
    transition_SS: Tensor
    emission_VS: Tensor

    def __repr__(self) -> str:
        return brief(self)


class Questions(Distributions):
    """What a model with start, transition and emission can be asked about texts."""

    def chain(
        self,
        ids_BT: Tensor,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
        state: Tensor | None = None,
        labels_BT: Tensor | None = None,
    ) -> Chain:
        """The batch as a chain, which all of `trellis.inference` takes."""
        return chain_of(self, Asked.of(self, ids_BT, lengths_B, missing_BT, state, labels_BT))

    def score(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
        labels_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, and the state to carry on from.

        Where a token's state is given it is that of token and state. Differentiable, but for tokens missing from a
        model with blocks, or that remembers more than a word.
        """
        if missing_BT is not None and labels_BT is None:
            return self._ask(inference.score, ids_BT, state, lengths_B, missing_BT)
        asked = Asked.of(self, ids_BT, lengths_B, missing_BT, state, labels_BT)
        scores, state = [], asked.state
        for piece in self._pieces(asked):
            log_prob_BT, state = inference.score(chain_of(self, piece._replace(state=state)))
            scores.append(log_prob_BT)
        return torch.cat(scores, 1), cast(Tensor, state)

    @torch.no_grad()
    def filter(
        self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None, missing_BT: MaybeTensor = None
    ) -> Filtered:
        """The belief over states after each token."""
        return self._ask(inference.filter, ids_BT, state, lengths_B, missing_BT)

    @torch.no_grad()
    def smooth(
        self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None, missing_BT: MaybeTensor = None
    ) -> Smoothed:
        """The posterior over states at each token given all of them."""
        return self._ask(inference.smooth, ids_BT, state, lengths_B, missing_BT)

    @torch.no_grad()
    def viterbi(
        self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None, missing_BT: MaybeTensor = None
    ) -> Paths:
        """The most probable state path of each row."""
        return self._ask(inference.viterbi, ids_BT, state, lengths_B, missing_BT)

    @torch.no_grad()
    def k_best(
        self,
        ids_BT: Tensor,
        k: int,
        state: MaybeTensor = None,
        lengths_B: MaybeTensor = None,
        missing_BT: MaybeTensor = None,
    ) -> KBest:
        """The k most probable state paths of each row."""
        k = count(k, "k, the number of paths,", 1)
        return self._ask(inference.k_best, ids_BT, state, lengths_B, missing_BT, k)

    @torch.no_grad()
    def sample_posterior(
        self,
        ids_BT: Tensor,
        samples: int,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
        generator: torch.Generator | None = None,
    ) -> Tensor:
        """State paths drawn from the posterior, B×N×T."""
        samples = count(samples, "the number of samples", 1)
        return self._ask(inference.sample_posterior, ids_BT, state, lengths_B, missing_BT, samples, generator)

    @torch.no_grad()
    def entropy(
        self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None, missing_BT: MaybeTensor = None
    ) -> Tensor:
        """How unsure the model is of each row's state path: the posterior's entropy in nats, B."""
        return self._ask(inference.entropy, ids_BT, state, lengths_B, missing_BT)

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""
        predicted_BS = self.predicted(1, state)
        log_prob_BV = self.words_after(predicted_BS, state).log()
        if self.ngrams is not None:  # whose counts leave no word next to nothing
            return log_prob_BV.clamp_max_(0.0)
        low_BV = log_prob_BV < math.log(limits(log_prob_BV.dtype).lowest_belief)
        for row in low_BV.any(1).nonzero().flatten().cpu().tolist():  # what float32 cannot hold, or is impossible
            words_N = low_BV[row].nonzero().flatten()
            log_predicted_S = self.log_predicted(None if state is None else state[row])
            log_prob_BV[row, words_N] = self.log_words_of(log_predicted_S, words_N).to(log_prob_BV)
        return log_prob_BV.clamp_max_(0.0)

    @torch.no_grad()
    def fill(
        self, ids_BT: Tensor, missing_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None
    ) -> Filled:
        """log p(word | all tokens seen) at each missing token, the others summed over."""
        return fill(self, Asked.of(self, ids_BT, lengths_B, missing_BT, state))

    @torch.no_grad()
    def sample(
        self,
        batch: int,
        length: int,
        state: Tensor | None = None,
        end: int | None = None,
        generator: torch.Generator | None = None,
    ) -> Samples:
        """Token sequences drawn from the model, with the states that emitted them; `end` stops a row."""
        batch, length, end = texts_asked(batch, length, end, self.config.vocab_size)
        lengths_B = torch.full((batch,), length, device=self.device)
        state = state_of_rows(state, batch, self.state_width, next(self.parameters()))
        memory = None
        if self.memory is not None:
            words_BM = Remembered.of(self, state, batch).words_BM.clone()
            memory = generation.Memory(words_BM, self._after, self.emission_after)
        return generation.sample(self.predicted(batch, state), self.rows, lengths_B, end, generator, memory)

    def expected_counts(
        self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None, labels_BT: MaybeTensor = None
    ) -> Counts:
        """Expected starts, transitions and emissions of a batch: the gradients of its log-likelihood."""
        self._check_scalar("expected counts are for")
        asked = Asked.of(self, ids_BT, lengths_B, None, state, labels_BT).ready(self)
        everything = self.everything()
        words_N, index_BT = asked.ids_BT.unique(return_inverse=True)
        with torch.no_grad():
            log_columns_NS = self.emission.columns(self.encoder, everything, words_N)
            log_rows_SS = self.transition.log_rows(self.encoder, everything, everything)
            tables = [self.log_start().detach(), log_rows_SS, log_columns_NS]
        with torch.enable_grad():
            start_S, transition_SS, columns_NS = (table.requires_grad_() for table in tables)
            chain = Chain.dense(start_S, transition_SS, columns_NS, asked.lengths_B, asked.state, index_BT)
            log_prob_BT, after = inference.score(chain._replace(labels_BT=asked.labels_BT))
            found = torch.autograd.grad(log_prob_BT, tables, possible(log_prob_BT.detach().T).T, allow_unused=True)
        # Rounding can leave a state that is next to impossible a little less than nothing, and no logarithm.
        start_S, transition_SS, columns_NS = (
            torch.zeros_like(table) if count is None else count.clamp_min_(0.0)
            for table, count in zip(tables, found, strict=True)
        )
        emission_VS = columns_NS.new_zeros(self.config.vocab_size, self.config.states).index_copy_(
            0, words_N, columns_NS
        )
        return Counts(log_prob_BT.detach(), after.detach(), start_S, transition_SS, emission_VS)

    def _ask(
        self,
        question: Callable[..., T],
        ids_BT: Tensor,
        state: MaybeTensor,
        lengths_B: MaybeTensor,
        missing_BT: MaybeTensor,
        *more: Any,
    ) -> T:
        """Ask a question of the batch's chain; with gaps and very many states, of some rows at a time."""
        asked = Asked.of(self, ids_BT, lengths_B, missing_BT, state)
        if question in enumerated_gaps.ANSWERS and enumerated_gaps.needed(self, asked):
            return cast(T, enumerated_gaps.ANSWERS[question](self, asked))
        parts = [question(chain_of(self, part), *more) for part in self.row_parts(asked)]
        return parts[0] if len(parts) == 1 else cast(T, _joined(parts))

    def row_parts(self, asked: Asked) -> Iterator[Asked]:
        """The batch; with gaps and very many states, some of its rows at a time."""
        batch, time = asked.ids_BT.shape
        rows = max(1, batch)
        if asked.missing_BT is not None and self.support is not None:
            rows = max(1, BELIEFS // max(1, time * self.config.states))
        for begin in range(0, max(1, batch), rows):
            yield asked.some(slice(begin, begin + rows))

    def _pieces(self, asked: Asked) -> Iterator[Asked]:
        """The batch cut in time, so that the matrices of its pairs fit in memory; one piece when learning."""
        batch, time = asked.ids_BT.shape
        check_lengths(asked.lengths_B, time)
        length = max(1, time)
        if self.support is not None and not torch.is_grad_enabled() and not self.training:
            pairs = PIECE // self.block_size**2
            if pairs < len(self.states_MK) ** 2:  # else every pair there is fits
                length = max(1, pairs // max(1, batch))
        for begin in range(0, max(1, time), length):
            yield asked.between(begin, min(begin + length, time))


def _joined(parts: list[Any]) -> Any:
    """Answers about some rows each, put together."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    joined = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    return type(parts[0])(*joined) if hasattr(parts[0], "_fields") else tuple(joined)
