"""What an HMM is made of, and the distributions that its parts stand for: made once and kept while nothing changes."""

from __future__ import annotations

from collections.abc import Callable
from os import PathLike
from typing import ClassVar, Self, TypeVar, cast

import torch
from torch import Tensor, nn

from trellis.errors import TrellisError
from trellis.inference.chain import NOT_BEGUN, begun_or_not, carried, log_carried
from trellis.models import remembering, remembering_blocks
from trellis.models.asking import state_of_rows
from trellis.models.budgets import within_budget
from trellis.models.chains import all_lists, log_push_lists, push_beliefs, stepper
from trellis.models.counted_ngrams import CountedNGrams
from trellis.models.emissions import EMISSIONS
from trellis.models.encoders import ENCODERS, Picked, Vectors
from trellis.models.hmm_config import HMMConfig
from trellis.models.kept import Kept
from trellis.models.lists import Listed
from trellis.models.memory import Memory
from trellis.models.model import Model, ModelConfig, drawn_from
from trellis.models.remembering import Remembered, whichever_word
from trellis.models.remembering_blocks import rows_after, rows_after_any_word
from trellis.models.starts import STARTS
from trellis.models.supports import Support, TakingPart, any_support, shortened, thinned, thinned_everywhere
from trellis.models.tensor_files import check_finite
from trellis.models.transitions import TRANSITIONS
from trellis.ops.evidence import scaled
from trellis.ops.precision import widened

FREE_LOGITS = frozenset({"start.table", "transition.table", "emission.table"})  # where −inf is a probability of zero
LARGEST_KEPT = 1 << 26  # numbers of a table that is kept in use: 256 MB of float32

T = TypeVar("T")
Scaled = tuple[Tensor, Tensor]


class Distributions(Model):
    """The parts of an HMM and the start, transition and emission made of them, whole or for the states of a batch."""

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
        elif config.ngrams:  # which are of blocks, here of one
            self.register_buffer("block_V", torch.zeros(config.vocab_size, dtype=torch.int64), persistent=False)
        blocks, roles = (1 if support is None else len(support.states_MK)), config.roles()
        self.config = config = within_budget(config, blocks, self.block_size)
        with drawn_from(seed):
            self.encoder = ENCODERS[config.encoder if roles else "table"](config, blocks, roles)
            self.config = self.encoder.described(config)
            self.start = STARTS[config.start](config)
            self.transition = TRANSITIONS[config.transition](config, blocks)
            self.emission = EMISSIONS[config.emission](config, self.block_size)
            self.memory = Memory(config) if config.memory else None
            self.ngrams = CountedNGrams(config, blocks) if config.ngrams else None
        self._kept = Kept()

    def network_parameters(self) -> list[nn.Parameter]:
        """Parameters of the encoder's networks, which may learn at a rate of their own."""
        return self.encoder.network_parameters()

    def check_tensors(self, tensors: dict[str, Tensor], where: str | PathLike[str]) -> None:
        """As of any model; but free logits may be −inf, and every word has a block of states that there are."""
        check_finite(tensors, where, FREE_LOGITS)
        if self.support is not None:
            Support(tensors["block_V"], tensors["states_MK"]).check(self.config.states, where)
        if self.memory is not None:
            self.memory.check(_named(tensors, "memory."), where)
        if self.ngrams is not None:
            self.ngrams.check(_named(tensors, "ngrams."), where)

    def make_room(self, tensors: dict[str, Tensor]) -> None:
        """Room for the n-grams of a model on disk."""
        if self.ngrams is not None:
            self.ngrams.make_room({name: tensor.shape for name, tensor in _named(tensors, "ngrams.").items()})

    def train(self, mode: bool = True) -> Self:
        """As of any module; learning, and going back to it, drops what was kept for use."""
        if mode or self.training:
            self._kept = Kept()
        return super().train(mode)

    def _apply(self, fn: Callable[[Tensor], Tensor], recurse: bool = True) -> Self:
        """Move or convert all numbers; there and back is no change that PyTorch counts, but may have rounded them."""
        self._kept = Kept()
        super()._apply(fn, recurse)  # type: ignore[no-untyped-call]  # as all of `Module`'s own
        return self

    # States that take part

    @property
    def support(self) -> Support | None:
        """Which states may emit a word; None: all."""
        return None if self.config.support == "dense" else Support(self.block_V, self.states_MK)

    @property
    def block_size(self) -> int:
        """How many states may emit a word."""
        return self.config.states if self.config.support == "dense" else self.states_MK.shape[1]

    @property
    def state_width(self) -> int:
        """Numbers in a row of the state that it carries: a belief over all states, and the words it remembers."""
        return self.config.states + self.config.remembered

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
        """p(word | state) of every word in the states that may emit it, V×K.

        Whoever draws or predicts word by word needs it again at each. Without gradients it is kept in training mode
        too, as no dropout reaches it.
        """
        if torch.is_grad_enabled():
            return self.log_emission().exp()
        return self._kept.get(self, "emission table", lambda: self.log_emission().exp())

    def predicted(self, batch: int, state: Tensor | None) -> Tensor:
        """p(next state | all before), over all states, B×S."""
        if state is None:
            return self.log_start().exp().expand(batch, -1)
        rows = len(state) if isinstance(state, Tensor) else batch
        state = state_of_rows(state, rows, self.state_width, next(self.parameters()))
        state = cast(Tensor, state)
        belief_BS, fresh_B1 = carried(state[:, : self.config.states])
        pushed_BS = self._pushed(state, belief_BS)
        return begun_or_not(pushed_BS, fresh_B1, lambda: self.log_start().exp())

    def _pushed(self, state: Tensor, belief_BS: Tensor) -> Tensor:
        """Beliefs one step on, B×S."""
        if self.memory is not None:
            return remembering.push(self, state) if self.support is None else remembering_blocks.push(self, state)
        if self.support is not None:
            return push_beliefs(self, self.vectors(self.everything), belief_BS)
        vectors, everything = self.vectors(self.everything), self.everything()
        return self.kept("transition", lambda: self.transition.between(vectors, everything)).push(belief_BS, 0)

    @torch.no_grad()
    def log_predicted(self, state_S: Tensor | None) -> Tensor:
        """log p(next state | all before), S, in float64: one row's, where float32 may not hold it."""
        if state_S is None or float(state_S[0]) == NOT_BEGUN:
            return widened(self.log_start())
        if self.memory is not None:
            log_push = remembering.log_push if self.support is None else remembering_blocks.log_push
            return log_push(self, state_S)
        _, log_into = stepper(self, self.vectors(self.everything))
        return log_push_lists(log_into, log_carried(state_S), all_lists(self))

    @torch.no_grad()
    def log_words_of(self, log_belief_S: Tensor, words_N: Tensor) -> Tensor:
        """log p(word) of some words, N: what `words_of` says, in float64, of one belief's logarithm."""
        log_emission_NK = widened(self.log_emission()[words_N])
        if self.support is None:
            return (log_emission_NK + log_belief_S).logsumexp(1)
        return (log_emission_NK + log_belief_S[self.support.lists()[words_N]]).logsumexp(1)

    def words_of(self, belief_NS: Tensor, words_V: Tensor | None = None) -> Tensor:
        """p(word), N×V, of beliefs over all states: Σ_z belief[z] p(word | z); of all words, or of these."""
        emission_VK = self.emission_table() if words_V is None else self.emission_table()[words_V]
        if self.support is None:
            return belief_NS @ emission_VK.T
        block_V, states_MK = self.support
        block_V = block_V if words_V is None else block_V[words_V]
        words = [
            torch.linalg.vecdot(belief_S[states_MK].index_select(0, block_V), emission_VK) for belief_S in belief_NS
        ]
        return torch.stack(words) if words else emission_VK.new_zeros(0, len(emission_VK))

    def words_after(self, belief_BS: Tensor, state: Tensor | None) -> Tensor:
        """p(word | all before), B×V, of beliefs about the next state; with what was counted of the last words."""
        if self.ngrams is None:
            return self.words_of(belief_BS)
        gate_BS, counted_BV = self._counted_words(Remembered.of(self, state, len(belief_BS)).words_BM)
        blocks = self.config.states // self.block_size
        block_BM = (belief_BS * gate_BS).view(len(belief_BS), blocks, self.block_size).sum(2)
        return self.words_of(belief_BS * (1 - gate_BS)) + counted_BV * block_BM[:, self.block_V]

    def emission_after(self, states_N: Tensor, words_NM: Tensor) -> Tensor:
        """p(word | state, last words), N×V, the newest first."""
        emission_NV = self.emission_rows(states_N)
        if self.ngrams is None:
            return emission_NV
        gate_NS, counted_NV = self._counted_words(words_NM)
        gate_N1, own_NV = gate_NS.gather(1, states_N[:, None]), self.block_V == states_N[:, None] // self.block_size
        return emission_NV * (1 - gate_N1) + counted_NV * gate_N1 * own_NV

    def _counted_words(self, words_NM: Tensor) -> tuple[Tensor, Tensor]:
        """After some last words, the share of the counts in each state, N×S, and q(word | block of the word), N×V."""
        assert self.ngrams is not None
        log_word_NV, kind_N = self.ngrams.words_after(words_NM, self.block_V)
        gate_NS = self.ngrams.word_states + self.ngrams.word_kinds[kind_N].unsqueeze(1)
        return gate_NS.sigmoid(), log_word_NV.exp()

    def _after(self, states_N: Tensor, words_NM: Tensor) -> Tensor:
        """p(next state | state, words), N×S, where states remember words, the newest first."""
        if self.support is not None:
            return rows_after(self, states_N, words_NM)
        belief_NS = torch.nn.functional.one_hot(states_N, self.config.states).to(next(self.parameters()))
        return remembering.push(self, Remembered(belief_NS, words_NM).joined())

    @torch.no_grad()
    def rows(self, states_N: Tensor) -> tuple[Tensor, Tensor]:
        """p(next state | state), N×S, and p(word | state), N×V, of these states; what n-grams add is left out."""
        return self.transition_rows(states_N), self.emission_rows(states_N)

    @torch.no_grad()
    def transition_rows(self, states_N: Tensor) -> Tensor:
        """p(next state | state), N×S, of these states.

        Where states remember a word, whichever word it was; of several, which are too many, and of n-grams, what they
        add is left out.
        """
        states_N = states_N.to(self.device)
        if self.config.memory == 1:
            return whichever_word(self)[states_N] if self.support is None else rows_after_any_word(self, states_N)
        return self.transition.log_rows(self.vectors(self.everything), states_N, self.everything()).exp()

    @torch.no_grad()
    def emission_rows(self, states_N: Tensor) -> Tensor:
        """p(word | state) of every word, N×V: of the words whose block the state is in."""
        emission_VK, states_N = self.emission_table(), states_N.to(self.device)
        if self.support is None:
            return emission_VK[:, states_N].T
        if self.config.support == "uniform":
            lists_VK = self.support.lists()
            return torch.stack([torch.where(lists_VK == z, emission_VK, 0.0).sum(1) for z in states_N])
        size = self.block_size
        return torch.where(self.block_V == states_N[:, None] // size, emission_VK[:, states_N % size].T, 0.0)

    @torch.no_grad()
    def class_emission(self, class_V: Tensor, classes: int, *, most: bool = False) -> Tensor:
        """p(a word of a class | state), C×S, of classes that every word has one of; `most`: of its best word alone."""
        emission_VK, states = self.emission_table(), self.config.states
        everything_1S = self.everything()[None]
        place_VK = class_V[:, None] * states + (everything_1S if self.support is None else self.support.lists())
        found = emission_VK.new_zeros(classes * states)
        found.scatter_reduce_(0, place_VK.flatten(), emission_VK.flatten(), "amax" if most else "sum")
        return found.view(classes, states)

    def _log_transition(self) -> Tensor:
        """log p(next state | state), S×S."""
        everything = self.everything()
        return self.transition.log_rows(self.vectors(self.everything), everything, everything)

    @property
    def scalar(self) -> bool:
        """Whether this is a dense model of free logits alone: a plain HMM."""
        return self.support is None and {self.config.start, self.config.transition, self.config.emission} == {"scalar"}

    def _check_scalar(self, why: str) -> None:
        if not self.scalar:
            raise TrellisError(f"{why} a dense model of scalar parameters: make start, transition and emission scalar.")


def _named(tensors: dict[str, Tensor], begins: str) -> dict[str, Tensor]:
    """The tables of one part of a model, by their own names."""
    return {name.removeprefix(begins): tensor for name, tensor in tensors.items() if name.startswith(begins)}
