"""The hidden Markov language model: a support, an encoder and three parameterisations, and the exact questions."""

from __future__ import annotations

from dataclasses import replace
from typing import NamedTuple, Self, cast

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference.brief import brief
from trellis.models.asking import probabilities
from trellis.models.emissions import ScalarEmission
from trellis.models.hmm_config import HMMConfig
from trellis.models.model import ModelConfig
from trellis.models.networked import placed
from trellis.models.questions import Counts as Counts
from trellis.models.questions import Questions
from trellis.models.starts import ScalarStart
from trellis.models.supports import support_of
from trellis.models.transitions import ScalarTransition
from trellis.progress import counted
from trellis.text import IdFile, Tokenizer

LARGEST_DENSE = 1 << 14  # states whose pairs fit in memory: 1 GB of float32


class Tables(NamedTuple):
    """The distributions an HMM stands for, as probabilities: every row of each sums to one."""

    start_S: Tensor
    transition_SS: Tensor
    emission_SV: Tensor

    def rows(self, states_N: Tensor) -> tuple[Tensor, Tensor]:
        """p(next state | state), N×S, and p(word | state), N×V, of these states."""
        states_N = states_N.to(self.transition_SS.device)
        return self.transition_SS[states_N], self.emission_SV[states_N]

    def __repr__(self) -> str:
        return brief(self)


class HMM(Questions):
    """A hidden Markov language model.

    Every question takes `ids_BT` with, if rows differ in length, `lengths_B`; `missing_BT` marks tokens to
    marginalise; `state` is what an earlier call ended with, and None means the start of a text. Where the states of
    some tokens are given (`labels_BT`, −1 where unknown), ask `trellis.inference` about `chain(…)`.
    """

    @classmethod
    def for_text(
        cls, config: ModelConfig, text: IdFile, tokenizer: Tokenizer, seed: int, data_dir: str | None = None
    ) -> Self:
        """A fresh model, its words in blocks as the configuration says; its network may lie in the data folder."""
        assert isinstance(config, HMMConfig)
        if 0 < config.memory >= len(text.ids):
            raise TrellisError(
                f"a memory of {counted(config.memory, 'word')} is longer than the text, "
                f"{counted(len(text.ids), 'token')}: set a smaller model.memory, or learn from more text."
            )
        model = cls(placed(config, data_dir), seed, support_of(config, text, tokenizer, seed))
        model.config = replace(model.config, network=config.network)  # wherever it lay
        if model.memory is not None:
            model.memory.keep_frequent(text.ids)
        if model.ngrams is not None:
            model.ngrams.count(text.ids, tokenizer.eos_id)
        model.encoder.begin_with(torch.from_numpy(text.ids[: config.states].astype("int64")))
        return model

    def described(self) -> list[str]:
        """Its states, where they are in blocks, how its distributions are made, and how many numbers it has."""
        config, parts = self.config, ("start", "transition", "emission")
        kinds = [getattr(config, part) for part in parts]
        blocks = [] if self.support is None else [f"{config.support} blocks of {counted(self.block_size, 'state')}"]
        each = [f"{kind} {part}" for kind, part in zip(kinds, parts, strict=True)]
        made = kinds[:1] if len(set(kinds)) == 1 else each
        vectors = [f"{config.encoder} vectors of {config.width}"] if config.roles() else []
        memory = [f"memory of {counted(config.memory, 'word')}"] if config.memory else []
        memory += [f"of {config.memory_words:,} frequent ones"] if config.memory_words else []
        memory += [f"counted {config.ngrams}-grams"] if config.ngrams else []
        memory += [f"cache of {counted(config.cache, 'word')}"] if config.cache else []
        return [counted(config.states, "state"), *blocks, *made, *vectors, *memory, *super().described()]

    @torch.no_grad()
    def tables(self) -> Tables:
        """All three distributions, whole: S×S numbers for the transition, S×V for the emission."""
        self._check_pairs("as whole tables: ask for those of some states, by rows()")
        emission_VS = self._log_emission().exp_()  # not the table that is kept: this one is the caller's
        if self.support is not None:
            zeros_VS = emission_VS.new_zeros(self.config.vocab_size, self.config.states)
            emission_VS = zeros_VS.scatter_(1, self.support.lists(), emission_VS)
            emission_VS[:, emission_VS.sum(0) == 0] = 1.0 / len(emission_VS)  # a state of no word's emits anything
        return Tables(self.log_start().exp(), self._log_transition().exp(), emission_VS.T)

    @torch.no_grad()
    def all_pairs(self) -> Tensor:
        """p(next state | state), whole, S×S; where states remember a word, whichever it was, without n-grams."""
        self._check_size("as one table: ask for those of some states, by transition_rows()")
        if self.config.memory > 1:
            raise TrellisError("states that remember several words have no table of pairs: ask about texts.")
        return self.transition_rows(self.everything())

    @torch.no_grad()
    def set_tables(self, start_S: Tensor, transition_SS: Tensor, emission_SV: Tensor) -> None:
        """Take these probabilities as parameters; all must be scalar, the support dense. Zeros stay zeros for good.

        Each row sums to one within 0.0001, and is divided by its sum. Arrays of NumPy are taken too.
        """
        self._check_scalar("only such parameters can be set to given probabilities:")
        start, transition, emission = self._scalar_tables()
        start_S = probabilities(start_S, "start_S", start)
        transition_SS = probabilities(transition_SS, "transition_SS", transition)
        emission_SV = probabilities(emission_SV, "emission_SV", emission.T)
        self.take_logits(start_S.log(), transition_SS.log(), emission_SV.T.log())

    @torch.no_grad()
    def take_logits(self, start_S: Tensor, transition_SS: Tensor, emission_VK: Tensor) -> None:
        """Take these logits as the parameters of scalar parts: S, S×S and V×K."""
        for table, logits in zip(self._scalar_tables(), (start_S, transition_SS, emission_VK), strict=True):
            table.copy_(logits)

    def _scalar_tables(self) -> tuple[Tensor, Tensor, Tensor]:
        """The free logits of scalar parts: S, S×S and V×K."""
        parts = cast(ScalarStart, self.start), cast(ScalarTransition, self.transition)
        return parts[0].table, parts[1].table, cast(ScalarEmission, self.emission).table

    @torch.no_grad()
    def plain(self) -> HMM:
        """The same distributions with free logits on the same support: a plain HMM with the same scores."""
        self._check_pairs("to be written out as a plain HMM")
        shape = self.config.vocab_size, self.config.states, self.config.support, self.config.blocks
        config = HMMConfig(*shape, unclustered=self.config.unclustered)
        model = HMM(config, seed=0, support=self.support).to(self.device, next(self.parameters()).dtype)
        model.take_logits(self.log_start(), self._log_transition(), self.log_emission())
        return model.eval()

    @torch.no_grad()
    def dense(self) -> HMM:
        """The same distributions as a dense HMM of scalar parameters, all pairs of states at once."""
        tables = self.tables()
        model = HMM(HMMConfig(self.config.vocab_size, self.config.states), seed=0).to(tables.start_S)
        model.take_logits(tables.start_S.log(), tables.transition_SS.log(), tables.emission_SV.T.log())
        return model

    def _check_pairs(self, why: str) -> None:
        if self.memory is not None:
            raise TrellisError(
                "states that remember words have no tables of their own: ask about texts, or about a model without "
                "model.memory."
            )
        self._check_size(why)

    def _check_size(self, why: str) -> None:
        if self.config.states > LARGEST_DENSE:
            raise TrellisError(f"all pairs of {self.config.states:,} states do not fit in memory, {why}.")
