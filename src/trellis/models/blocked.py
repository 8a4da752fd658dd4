"""Hidden Markov language models with very many states: each word is emitted by one group of them.

Chiu & Rush (2020). A token names its group, so exact inference looks at the K states of that group alone, and at the
K×K transitions between the groups of neighbouring tokens. In training mode, dropout leaves the same number of states of
every group, another choice each batch. The state that is carried is a belief over all states, whatever was dropped.
"""

from __future__ import annotations

from typing import ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import (
    Gapped,
    KBest,
    Paths,
    Samples,
    blocked_entropy,
    blocked_forward,
    blocked_k_best,
    blocked_log_probs,
    blocked_sample_posterior,
    blocked_smooth,
    blocked_viterbi,
    gapped_beliefs,
    gapped_entropy,
    gapped_k_best,
    gapped_log_probs,
    gapped_sample_posterior,
)
from trellis.inference.sampling import draw
from trellis.models.blocked_batches import BlockedBatches
from trellis.models.blocked_parts import BlockedConfig, any_groups
from trellis.models.groups import clusters_of
from trellis.models.hmm import HMM, Tables
from trellis.models.model import ModelConfig
from trellis.models.parameters import HMMConfig
from trellis.models.state_features import Listed
from trellis.text import IdFile, Tokenizer

LARGEST_DENSE = 1 << 14  # states whose pairs fit in memory: 1 GB of float32


class Beliefs(NamedTuple):
    """Beliefs or posteriors, each over the states `states_BTK` that can have emitted its token.

    log_prob_BT  log p(o_t | o_<t)
    belief_BTK   p(z_t = states_BTK | what is known): zero past a row's end
    final_BS     the belief after each row's last token, over all states, to carry on from
    """

    log_prob_BT: Tensor
    belief_BTK: Tensor
    states_BTK: Tensor
    final_BS: Tensor

    def usage(self) -> Tensor:
        """The expected number of tokens that each state emitted, S, float64."""
        count_S = torch.zeros(self.final_BS.shape[1], dtype=torch.float64, device=self.final_BS.device)
        return count_S.index_add_(0, self.states_BTK.flatten(), self.belief_BTK.flatten().double())

    def most_probable(self) -> tuple[Tensor, Tensor]:
        """The highest belief at each token and the state that has it, both B×T."""
        probability_BT1, place_BT1 = self.belief_BTK.max(-1, keepdim=True)
        return probability_BT1.squeeze(-1), self.states_BTK.gather(2, place_BT1).squeeze(-1)


class BlockedHMM(BlockedBatches):
    """A hidden Markov language model whose words are emitted by groups of states.

    It answers what `HMM` answers; beliefs and posteriors are over the states of each token's group (`Beliefs`).
    """

    config_class: ClassVar[type[ModelConfig]] = BlockedConfig

    @classmethod
    def for_text(cls, config: ModelConfig, text: IdFile, tokenizer: Tokenizer, seed: int) -> Self:
        """A fresh model, its words grouped as the configuration says."""
        assert isinstance(config, BlockedConfig)
        groups = any_groups(config, seed)
        if config.clusters not in ("words", "uniform"):
            group_V = clusters_of(config.clusters, config.blocks, text, tokenizer, config.unclustered)
            groups = groups._replace(group_V=group_V)
        if idle := config.states - len(groups.states_GK[groups.group_V].unique()):
            raise TrellisError(
                f"{idle:,} of the {config.states:,} states are in no word's subset and would emit nothing: lower "
                "model.states or model.blocks."
            )
        return cls(config, seed, groups)

    # Questions

    def score(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, and the state to carry on from.

        Differentiable, but for missing tokens.
        """
        if missing_BT is not None:
            return gapped_log_probs(self._gapped(ids_BT, state, lengths_B, missing_BT), self.config.states)
        kept, log_probs = self._keep(), []
        for ids, lengths in self._pieces(ids_BT, lengths_B):
            batch = self._batch(ids, state, lengths, kept)
            log_prob_BT, final_BJ = blocked_log_probs(batch.blocks)
            state = self._carried(batch, final_BJ, state, lengths)
            log_probs.append(log_prob_BT)
        return torch.cat(log_probs, 1), cast(Tensor, state)

    @torch.no_grad()
    def filter(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Beliefs:
        """The belief over states after each token."""
        if missing_BT is not None:
            return self._anywhere(self._gapped(ids_BT, state, lengths_B, missing_BT), smoothed=False)
        batch = self._whole(ids_BT, state, lengths_B)
        found = blocked_forward(batch.blocks)
        final_BS = self._carried(batch, found.final_BK, state, lengths_B)
        return Beliefs(found.log_prob_BT, found.belief_BTK, batch.states(), final_BS)

    @torch.no_grad()
    def smooth(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Beliefs:
        """The posterior over states at each token given all of them."""
        if missing_BT is not None:
            return self._anywhere(self._gapped(ids_BT, state, lengths_B, missing_BT), smoothed=True)
        batch = self._whole(ids_BT, state, lengths_B)
        found = blocked_smooth(batch.blocks)
        final_BS = self._carried(batch, found.final_BK, state, lengths_B)
        return Beliefs(found.log_prob_BT, found.posterior_BTK, batch.states(), final_BS)

    @torch.no_grad()
    def viterbi(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Paths:
        """The most probable state path of each row."""
        if missing_BT is not None:
            best = gapped_k_best(self._gapped(ids_BT, state, lengths_B, missing_BT), 1)
            return Paths(best.log_prob_BK[:, 0], best.states_BKT[:, 0])
        batch = self._whole(ids_BT, state, lengths_B)
        found = blocked_viterbi(batch.blocks)
        return Paths(found.log_prob_B, batch.named(found.states_BT.unsqueeze(1)).squeeze(1))

    @torch.no_grad()
    def k_best(
        self,
        ids_BT: Tensor,
        k: int,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> KBest:
        """The k most probable state paths of each row."""
        if missing_BT is not None:
            return gapped_k_best(self._gapped(ids_BT, state, lengths_B, missing_BT), k)
        batch = self._whole(ids_BT, state, lengths_B)
        found = blocked_k_best(batch.blocks, k)
        return KBest(found.log_prob_BK, batch.named(found.states_BKT))

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
        if missing_BT is not None:
            return gapped_sample_posterior(self._gapped(ids_BT, state, lengths_B, missing_BT), samples, generator)
        batch = self._whole(ids_BT, state, lengths_B)
        return batch.named(blocked_sample_posterior(batch.blocks, samples, generator))

    @torch.no_grad()
    def entropy(
        self,
        ids_BT: Tensor,
        state: Tensor | None = None,
        lengths_B: Tensor | None = None,
        missing_BT: Tensor | None = None,
    ) -> Tensor:
        """How unsure the model is of each row's state path: the posterior's entropy in nats, B."""
        if missing_BT is not None:
            return gapped_entropy(self._gapped(ids_BT, state, lengths_B, missing_BT))
        return blocked_entropy(self._whole(ids_BT, state, lengths_B).blocks)

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""
        predicted_BS = self._predicted(1, state)
        lists_VK, emission_VK = self.states_GK[self.group_V], self.log_emission().exp()
        return torch.stack([(row_S[lists_VK] * emission_VK).sum(1) for row_S in predicted_BS]).log()

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
        tokens_BT, states_BT = torch.full((2, batch, length), -1, device=self.device)
        lengths_B = torch.full((batch,), length, device=self.device)
        predicted_BS = self._predicted(batch, state)
        emission_VK = self.log_emission().exp()
        for t in range(length):
            rows = (lengths_B > t).nonzero().flatten()
            if len(rows) == 0:
                break
            if t > 0:
                log_rows_NS = self.transition.log_rows(self.vectors, states_BT[rows, t - 1], self.config.states)
                drawn = draw(log_rows_NS.exp(), generator)
            else:
                drawn = draw(predicted_BS[rows], generator)
            token = draw(self._emission_rows(emission_VK, drawn), generator)
            states_BT[rows, t], tokens_BT[rows, t] = drawn, token
            if end is not None:
                lengths_B[rows[token == end]] = t + 1
        return Samples(states_BT, tokens_BT, lengths_B)

    def _predicted(self, batch: int, state: Tensor | None) -> Tensor:
        """p(next state | all before), over all states, B×S."""
        if state is None:
            return self._start(self._everything()).expand(batch, -1)
        return torch.stack([self._push(belief_S, self._all()) for belief_S in state])

    def _anywhere(self, gapped: Gapped, *, smoothed: bool) -> Beliefs:
        """Beliefs or posteriors over all states, as gaps leave them."""
        found = gapped_beliefs(gapped, self.config.states, smoothed=smoothed)
        return Beliefs(
            found.log_prob_BT, found.belief_BTS, self._everything().expand_as(found.belief_BTS), found.final_BS
        )

    # Distributions

    @torch.no_grad()
    def log_emission(self) -> Tensor:
        """log p(word | state) of every word in the states of its list, V×K."""
        words_V = torch.arange(self.config.vocab_size, device=self.device)
        groups_G = self.group_V.unique()
        enter = Listed(self.vectors, self.states_GK[groups_G])
        return self.emission.columns(enter, self.groups, groups_G, words_V, self.config.states)

    @torch.no_grad()
    def dense(self) -> HMM:
        """The same distributions as a dense HMM, all pairs of states at once."""
        states, vocab_size = self.config.states, self.config.vocab_size
        if states > LARGEST_DENSE:
            raise TrellisError(
                f"all pairs of {states:,} states do not fit in memory, and their long run needs them: measure usage on "
                "text, in trellis inspect by --corpus."
            )
        everything = self._everything()
        emission_VK = self.log_emission().exp()
        emission_VS = emission_VK.new_zeros(vocab_size, states)
        emission_VS.scatter_(1, self.states_GK[self.group_V], emission_VK)
        lonely_S = emission_VS.sum(0) == 0  # a state in nobody's list emits nothing; it must emit something
        emission_VS[:, lonely_S] = 1.0 / vocab_size
        transition_SS = self.transition.log_rows(self.vectors, everything, states).exp()
        model = HMM(HMMConfig(vocab_size, states), seed=0).to(emission_VK)
        model.set_tables(self._start(everything), transition_SS, emission_VS.T)
        return model

    def tables(self) -> Tables:
        """All three distributions, whole, as those of a dense HMM."""
        return self.dense().tables()

    @torch.no_grad()
    def rows(self, states_N: Tensor) -> tuple[Tensor, Tensor]:
        """p(next state | state), N×S, and p(word | state), N×V, of these states; for models too large for `tables`."""
        return self.transition.log_rows(self.vectors, states_N, self.config.states).exp(), self._emission_rows(
            self.log_emission().exp(), states_N
        )

    def _emission_rows(self, emission_VK: Tensor, states_N: Tensor) -> Tensor:
        """p(word | state) of every word, N×V: of the words whose list the state is in."""
        if self.config.clusters == "uniform":
            lists_VK = self.states_GK[self.group_V]
            return torch.stack([torch.where(lists_VK == z, emission_VK, 0.0).sum(1) for z in states_N])
        size = self.states_GK.shape[1]
        return torch.where(self.group_V == states_N[:, None] // size, emission_VK[:, states_N % size].T, 0.0)
