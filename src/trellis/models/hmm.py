"""The hidden Markov language model: a support, an encoder and three parameterisations, and the exact questions."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from trellis import inference
from trellis.errors import TrellisError
from trellis.inference import Chain, Filtered, KBest, Paths, Smoothed
from trellis.inference.chain import check_lengths, scaled
from trellis.inference.forward import possible
from trellis.models import generation
from trellis.models.budgets import within_budget
from trellis.models.chains import Asked, chain_of, push_beliefs
from trellis.models.emissions import EMISSIONS, ScalarEmission
from trellis.models.encoders import ENCODERS, Picked, Vectors
from trellis.models.generation import Samples
from trellis.models.hmm_config import HMMConfig
from trellis.models.kept import Kept
from trellis.models.lists import Listed
from trellis.models.memory import Memory
from trellis.models.model import Model, ModelConfig, drawn_from
from trellis.models.networked import placed
from trellis.models.remembering import Remembered, push
from trellis.models.scorer import MaybeTensor
from trellis.models.starts import STARTS, ScalarStart
from trellis.models.supports import (
    Support,
    TakingPart,
    any_support,
    shortened,
    support_of,
    thinned,
    thinned_everywhere,
)
from trellis.models.transitions import TRANSITIONS, ScalarTransition
from trellis.text import IdFile, Tokenizer

LARGEST_DENSE = 1 << 14  # states whose pairs fit in memory: 1 GB of float32
LARGEST_KEPT = 1 << 26  # numbers of a table that is kept in use: 256 MB of float32
PIECE = 1 << 28  # numbers in the pair matrices of one piece of a long text: 1 GB of float32
BELIEFS = 1 << 26  # numbers in the beliefs over all states of rows with gaps that are asked about together

T = TypeVar("T")
Scaled = tuple[Tensor, Tensor]


class Tables(NamedTuple):
    """The distributions an HMM stands for, as probabilities: every row of each sums to one."""

    start_S: Tensor
    transition_SS: Tensor
    emission_SV: Tensor

    def rows(self, states_N: Tensor) -> tuple[Tensor, Tensor]:
        """p(next state | state), N×S, and p(word | state), N×V, of these states."""
        states_N = states_N.to(self.transition_SS.device)
        return self.transition_SS[states_N], self.emission_SV[states_N]


class Counts(NamedTuple):
    """Expected counts of a batch: what Baum–Welch normalises. Emissions are V×S, as they are stored."""

    log_prob_BT: Tensor
    state: Tensor
    start_S: Tensor
    transition_SS: Tensor
    emission_VS: Tensor


class HMM(Model):
    """A hidden Markov language model.

    Every question takes `ids_BT` with, if rows differ in length, `lengths_B`; `missing_BT` marks tokens to
    marginalise; `state` is what an earlier call ended with, and None means the start of a text. Where the states of
    some tokens are given (`labels_BT`, −1 where unknown), ask `trellis.inference` about `chain(…)`.
    """

    config: HMMConfig
    config_class: ClassVar[type[ModelConfig]] = HMMConfig
    block_V: Tensor
    states_MK: Tensor

    def __init__(self, config: HMMConfig, seed: int | None = None, support: Support | None = None) -> None:
        super().__init__(config)
        if config.support != "dense":
            support = support or any_support(config)
            self.register_buffer("block_V", support.block_V)
            self.register_buffer("states_MK", support.states_MK)
        blocks, roles = (1 if support is None else len(support.states_MK)), config.roles()
        self.config = config = within_budget(config, blocks, self.block_size)
        with drawn_from(seed):
            self.encoder = ENCODERS[config.encoder if roles else "table"](config, blocks, roles)
            self.config = self.encoder.described(config)
            self.start = STARTS[config.start](config)
            self.transition = TRANSITIONS[config.transition](config, blocks)
            self.emission = EMISSIONS[config.emission](config, self.block_size)
            self.memory = Memory(config) if config.memory else None
        self._kept = Kept()

    @classmethod
    def for_text(
        cls, config: ModelConfig, text: IdFile, tokenizer: Tokenizer, seed: int, data_dir: str | None = None
    ) -> Self:
        """A fresh model, its words in blocks as the configuration says; its network may lie in the data folder."""
        assert isinstance(config, HMMConfig)
        model = cls(placed(config, data_dir), seed, support_of(config, text, tokenizer, seed))
        model.config = replace(model.config, network=config.network)  # wherever it lay
        model.encoder.begin_with(torch.from_numpy(text.ids[: config.states].astype("int64")))
        return model

    def network_parameters(self) -> list[nn.Parameter]:
        """Parameters of the encoder's networks, which may learn at a rate of their own."""
        return self.encoder.network_parameters()

    def train(self, mode: bool = True) -> Self:
        """As of any module; going back to learning drops what was kept for use."""
        if mode:
            self._kept = Kept()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert all numbers; there and back is no change that PyTorch counts, but may have rounded them."""
        self._kept = Kept()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # as all of `Module`'s own
        return self

    # Questions

    def chain(
        self,
        ids_BT: Tensor,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
        state: Tensor | None = None,
        labels_BT: Tensor | None = None,
    ) -> Chain:
        """The batch as a chain, which all of `trellis.inference` takes."""
        return chain_of(self, Asked(ids_BT, lengths_B, missing_BT, state, labels_BT))

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
        model with blocks.
        """
        if missing_BT is not None and labels_BT is None:
            return self._ask(inference.score, ids_BT, state, lengths_B, missing_BT)
        Asked(ids_BT, lengths_B, missing_BT, state, labels_BT).check_shapes(self)  # before any of them is cut
        scores = []
        for when, lengths in self._pieces(ids_BT, lengths_B):
            missing, labels = (None if given is None else given[:, when] for given in (missing_BT, labels_BT))
            log_prob_BT, state = inference.score(self.chain(ids_BT[:, when], lengths, missing, state, labels))
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
        predicted_BS, emission_VK = self.predicted(1, state), self.emission_table()
        if self.support is None:
            return (predicted_BS @ emission_VK.T).log()
        lists_VK = self.support.lists()
        words = [(row_S[lists_VK] * emission_VK).sum(1) for row_S in predicted_BS]
        return torch.stack(words).log() if words else emission_VK.new_zeros(0, len(emission_VK))

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
        lengths_B = torch.full((batch,), length, device=self.device)
        memory = None
        if self.memory is not None:
            memory = generation.Memory(Remembered.of(self, state, batch).words_BM.clone(), self._after)
        return generation.sample(self.predicted(batch, state), self.rows, lengths_B, end, generator, memory)

    def expected_counts(
        self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None, labels_BT: MaybeTensor = None
    ) -> Counts:
        """Expected starts, transitions and emissions of a batch: the gradients of its log-likelihood."""
        self._check_scalar("expected counts are for")
        asked, everything = Asked(ids_BT, lengths_B, None, state, labels_BT).ready(self), self.everything()
        words_N, index_BT = asked.ids_BT.unique(return_inverse=True)
        with torch.no_grad():
            log_columns_NS = self.emission.columns(self.encoder, everything, words_N)
            log_rows_SS = self.transition.log_rows(self.encoder, everything, everything)
            tables = [self.log_start().detach(), log_rows_SS, log_columns_NS]
        with torch.enable_grad():
            start_S, transition_SS, columns_NS = (table.requires_grad_() for table in tables)
            chain = Chain.dense(start_S, transition_SS, columns_NS, lengths_B, state, index_BT)
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
        asked, rows = Asked(ids_BT, lengths_B, missing_BT, state), max(1, len(ids_BT))
        asked.check_shapes(self)  # before any of them is cut
        if missing_BT is not None and self.support is not None:
            rows = max(1, BELIEFS // max(1, ids_BT.shape[1] * self.config.states))
        starts = range(0, max(1, len(ids_BT)), rows)
        parts = [question(chain_of(self, asked.some(slice(begin, begin + rows))), *more) for begin in starts]
        return parts[0] if len(parts) == 1 else cast(T, _joined(parts))

    def _pieces(self, ids_BT: Tensor, lengths_B: Tensor | None) -> Iterator[tuple[slice, Tensor | None]]:
        """The batch cut in time, so that the matrices of its pairs fit in memory; one piece when learning."""
        check_lengths(lengths_B, ids_BT.shape[1])
        time = max(1, ids_BT.shape[1])
        if self.support is not None and not torch.is_grad_enabled() and not self.training:
            pairs = PIECE // self.block_size**2
            if pairs < len(self.states_MK) ** 2:  # else every pair there is fits
                time = max(1, pairs // max(1, len(ids_BT)))
        for begin in range(0, max(1, ids_BT.shape[1]), time):
            when = slice(begin, min(begin + time, ids_BT.shape[1]))
            yield when, None if lengths_B is None else (lengths_B - begin).clamp(0, when.stop - when.start)

    # What the questions are made of

    @property
    def support(self) -> Support | None:
        """Which states may emit a word; None: all."""
        return None if self.config.support == "dense" else Support(self.block_V, self.states_MK)

    @property
    def block_size(self) -> int:
        """How many states may emit a word."""
        return self.config.states if self.config.support == "dense" else self.states_MK.shape[1]

    def everything(self) -> Tensor:
        """All states."""
        return torch.arange(self.config.states, device=self.device)

    def everything_taking_part(self) -> TakingPart:
        """All states, as those that take part in a batch."""
        everything = self.everything()
        return TakingPart(everything[None] if self.support is None else self.states_MK, None, everything)

    def taking_part(self, *, labelled: bool = False) -> TakingPart:
        """The states that take part in a batch: all, or in training mode those that dropout leaves.

        Where states are given, none is dropped.
        """
        if not self.training or self.config.dropout == 0 or labelled:
            return self.everything_taking_part()
        if self.config.support == "uniform":
            return thinned_everywhere(self.states_MK, self.config.states, self.config.kept(self.config.states))
        return thinned(self.everything_taking_part().states_MJ, self.config.kept(self.block_size))

    @property
    def _in_use(self) -> bool:
        return not self.training and not torch.is_grad_enabled()

    def kept(self, name: str, make: Callable[[], T]) -> T:
        """Something made of the parameters alone: in use, made once and kept until they change."""
        return self._kept.get(self, name, make) if self._in_use else make()

    def vectors(self, involved: Callable[[], Tensor]) -> Vectors:
        """The vectors of the states involved in a batch; in use, of all states."""
        roles = len(self.config.roles())
        if self._in_use and self.config.states * self.config.width * roles <= LARGEST_KEPT:
            return self._kept.get(
                self, "vectors", lambda: Picked(self.encoder, self.everything(), self.config.states, lasting=True)
            )
        if self.encoder.independent:
            return self.encoder
        return Picked(self.encoder, involved(), self.config.states, lasting=False)

    def listed(self, vectors: Vectors, taking_part: TakingPart, blocks_G: Tensor) -> tuple[Listed, Tensor | None]:
        """The states of some blocks that take part, and which of these are alive; None: all."""
        states_GJ = taking_part.states_MJ[blocks_G]
        if taking_part.alive_S is None:
            return Listed(vectors, states_GJ), None
        alive_GJ = taking_part.alive_S[states_GJ]
        if len(blocks_G):
            states_GJ, alive_GJ = shortened(states_GJ, alive_GJ)
        return Listed(vectors, states_GJ), alive_GJ

    # Distributions

    def log_start(self, vectors: Vectors | None = None, kept_S: Tensor | None = None) -> Tensor:
        """log p(first state), S, among the states that take part; −inf of the others."""
        if vectors is None or kept_S is None or len(kept_S) == self.config.states:
            return self.kept("start", lambda: self._log_start(vectors or self.vectors(self.everything)))
        log_start_N = self._log_start(vectors, kept_S)
        return log_start_N.new_full((self.config.states,), -torch.inf).index_copy(0, kept_S, log_start_N)

    def _log_start(self, vectors: Vectors, states_N: Tensor | None = None) -> Tensor:
        logits_N = self.start.logits(vectors, self.everything() if states_N is None else states_N)
        return logits_N.to(next(self.parameters()).dtype).log_softmax(0)

    def columns(self, ids_BT: Tensor, make: Callable[[Tensor], Tensor]) -> tuple[Tensor, Tensor, Scaled | None]:
        """log p(word | state) of the distinct words, which `make` makes, the column of each token, and those scaled.

        In use, the columns are a table of all words, which is kept.
        """
        if self._in_use and self.config.vocab_size * self.block_size <= LARGEST_KEPT:
            return self.log_emission(), ids_BT, self.kept("scaled", lambda: scaled(self.log_emission()))
        words_N, index_BT = ids_BT.unique(return_inverse=True)
        return make(words_N), index_BT, None

    @torch.no_grad()
    def log_emission(self) -> Tensor:
        """log p(word | state) of every word in the states that may emit it, V×K; K is S where all may."""
        return self.kept("emission", self._log_emission)

    def _log_emission(self) -> Tensor:
        vectors, words_V = self.vectors(self.everything), torch.arange(self.config.vocab_size, device=self.device)
        if self.support is None:
            return self.emission.columns(vectors, self.everything(), words_V)
        blocks_G = self.support.block_V.unique()
        listed, _ = self.listed(vectors, self.everything_taking_part(), blocks_G)
        return self.emission.block_columns(listed, self.support, blocks_G, words_V, self.config.states)

    def emission_table(self) -> Tensor:
        """p(word | state) of every word in the states that may emit it, V×K."""
        return self.kept("emission table", lambda: self.log_emission().exp())

    def predicted(self, batch: int, state: Tensor | None) -> Tensor:
        """p(next state | all before), over all states, B×S."""
        if state is None:
            return self.log_start().exp().expand(batch, -1)
        if self.memory is not None:
            return push(self, state)
        if self.support is not None:
            return push_beliefs(self, self.vectors(self.everything), state)
        between = self.transition.between
        return self.kept("transition", lambda: between(self.vectors(self.everything), self.everything())).push(state, 0)

    def _after(self, states_N: Tensor, words_NM: Tensor) -> Tensor:
        """p(next state | state, words), N×S, where states remember words, the newest first."""
        belief_NS = torch.nn.functional.one_hot(states_N, self.config.states).to(next(self.parameters()))
        return push(self, Remembered(belief_NS, words_NM).joined())

    @torch.no_grad()
    def rows(self, states_N: Tensor) -> tuple[Tensor, Tensor]:
        """p(next state | state), N×S, and p(word | state), N×V, of these states."""
        states_N = states_N.to(self.device)
        log_rows_NS = self.transition.log_rows(self.vectors(self.everything), states_N, self.everything())
        return log_rows_NS.exp(), self._emission_rows(states_N)

    def _emission_rows(self, states_N: Tensor) -> Tensor:
        """p(word | state) of every word, N×V: of the words whose block the state is in."""
        emission_VK = self.emission_table()
        if self.support is None:
            return emission_VK[:, states_N].T
        if self.config.support == "uniform":
            lists_VK = self.support.lists()
            return torch.stack([torch.where(lists_VK == z, emission_VK, 0.0).sum(1) for z in states_N])
        size = self.block_size
        return torch.where(self.block_V == states_N[:, None] // size, emission_VK[:, states_N % size].T, 0.0)

    @torch.no_grad()
    def tables(self) -> Tables:
        """All three distributions, whole: S×S numbers for the transition, S×V for the emission."""
        self._check_pairs("and their long run needs them: measure usage on text, in trellis inspect by --corpus")
        emission_VS = self._log_emission().exp_()  # not the table that is kept: this one is the caller's
        if self.support is not None:
            zeros_VS = emission_VS.new_zeros(self.config.vocab_size, self.config.states)
            emission_VS = zeros_VS.scatter_(1, self.support.lists(), emission_VS)
            emission_VS[:, emission_VS.sum(0) == 0] = 1.0 / len(emission_VS)  # a state of no word's emits anything
        return Tables(self.log_start().exp(), self._log_transition().exp(), emission_VS.T)

    def _log_transition(self) -> Tensor:
        """log p(next state | state), S×S."""
        everything = self.everything()
        return self.transition.log_rows(self.vectors(self.everything), everything, everything)

    @torch.no_grad()
    def set_tables(self, start_S: Tensor, transition_SS: Tensor, emission_SV: Tensor) -> None:
        """Take these probabilities as parameters; all must be scalar, the support dense. Zeros stay zeros for good."""
        self._check_scalar("only such parameters can be set to given probabilities:")
        self._take_logits(start_S.log(), transition_SS.log(), emission_SV.T.log())

    def _take_logits(self, start_S: Tensor, transition_SS: Tensor, emission_VK: Tensor) -> None:
        """Copy free logits into scalar parts."""
        cast(ScalarStart, self.start).table.copy_(start_S)
        cast(ScalarTransition, self.transition).table.copy_(transition_SS)
        cast(ScalarEmission, self.emission).table.copy_(emission_VK)

    @property
    def scalar(self) -> bool:
        """Whether this is a dense model of free logits alone: a plain HMM."""
        return self.support is None and {self.config.start, self.config.transition, self.config.emission} == {"scalar"}

    def _check_scalar(self, why: str) -> None:
        if not self.scalar:
            raise TrellisError(f"{why} a dense model of scalar parameters: make start, transition and emission scalar.")

    @torch.no_grad()
    def plain(self) -> HMM:
        """The same distributions with free logits on the same support: a plain HMM with the same scores."""
        self._check_pairs("to be written out as a plain HMM")
        shape = self.config.vocab_size, self.config.states, self.config.support, self.config.blocks
        config = HMMConfig(*shape, unclustered=self.config.unclustered)
        model = HMM(config, seed=0, support=self.support).to(self.device, next(self.parameters()).dtype)
        model._take_logits(self.log_start(), self._log_transition(), self.log_emission())
        return model.eval()

    @torch.no_grad()
    def dense(self) -> HMM:
        """The same distributions as a dense HMM of scalar parameters, all pairs of states at once."""
        tables = self.tables()
        model = HMM(HMMConfig(self.config.vocab_size, self.config.states), seed=0).to(tables.start_S)
        model.set_tables(*tables)
        return model

    def _check_pairs(self, why: str) -> None:
        if self.memory is not None:
            raise TrellisError(
                "states that remember words have no tables of their own: ask about texts, or about a model without "
                "model.memory."
            )
        if self.config.states > LARGEST_DENSE:
            raise TrellisError(f"all pairs of {self.config.states:,} states do not fit in memory, {why}.")


def _joined(parts: list[Any]) -> Any:
    """Answers about some rows each, put together."""
    if isinstance(parts[0], Tensor):
        return torch.cat(parts)
    joined = [torch.cat(tensors) for tensors in zip(*parts, strict=True)]
    return type(parts[0])(*joined) if hasattr(parts[0], "_fields") else tuple(joined)
