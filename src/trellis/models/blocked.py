"""Hidden Markov language models with very many states: each word is emitted by one group of them.

Chiu & Rush (2020). A token names its group, so exact inference looks at the K states of that group alone, and at the
K×K transitions between the groups of neighbouring tokens. In training mode, dropout leaves the same number of states of
every group, another choice each batch. The state that is carried is a belief over all states, whatever was dropped.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar, NamedTuple, Self, cast

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.inference import (
    Blocks,
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
)
from trellis.inference.sampling import draw
from trellis.models.block_transitions import Lists
from trellis.models.blocked_parts import BlockedConfig, any_groups, build_parts
from trellis.models.groups import Groups, clusters_of, keep
from trellis.models.hmm import HMM, Tables
from trellis.models.model import Model, ModelConfig
from trellis.models.pairs import Pairs
from trellis.models.parameters import HMMConfig
from trellis.models.scorer import check_ids, without_padding
from trellis.text import IdFile, Tokenizer

LARGEST_DENSE = 1 << 14  # states whose pairs fit in memory: 1 GB of float32
PIECE = 1 << 27  # numbers in the pair matrices of one piece of a long text: 512 MB of float32


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


class _Batch(NamedTuple):
    """A batch made ready: what inference takes, and the states its numbers stand for."""

    blocks: Blocks
    enter_GJ: Tensor
    list_BT: Tensor

    def states(self) -> Tensor:
        """The states each token may have, B×T×J."""
        return self.enter_GJ[self.list_BT]

    def named(self, places_BNT: Tensor) -> Tensor:
        """States by their numbers, from paths of places in the tokens' lists; −1 stays."""
        places = places_BNT.clamp_min(0).transpose(1, 2)
        return self.states().gather(2, places).transpose(1, 2).where(places_BNT >= 0, -1)


class _Kept(NamedTuple):
    """The states that take part in a batch: of each group, which of those are alive (None: all), and all together."""

    states_GJ: Tensor
    alive_S: Tensor | None
    all_S: Tensor


class BlockedHMM(Model):
    """A hidden Markov language model whose words are emitted by groups of states.

    It answers what `HMM` answers; beliefs and posteriors are over the states of each token's group (`Beliefs`).
    """

    config: BlockedConfig
    config_class: ClassVar[type[ModelConfig]] = BlockedConfig
    group_V: Tensor
    states_GK: Tensor

    def __init__(self, config: BlockedConfig, seed: int | None = None, groups: Groups | None = None) -> None:
        super().__init__(config)
        groups = groups or any_groups(config)
        self.register_buffer("group_V", groups.group_V)
        self.register_buffer("states_GK", groups.states_GK)
        with torch.random.fork_rng(devices=[], enabled=seed is not None):
            if seed is not None:
                torch.manual_seed(seed)
            self.vectors, self.transition, self.emission = build_parts(config, groups)

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

    @property
    def groups(self) -> Groups:
        """Which states may emit a word."""
        return Groups(self.group_V, self.states_GK)

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
            return self.dense().score(ids_BT, state, lengths_B, missing_BT)
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
            dense = self.dense().filter(ids_BT, state, lengths_B, missing_BT)
            return _everywhere(dense.log_prob_BT, dense.belief_BTS, dense.final_BS)
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
            dense = self.dense().smooth(ids_BT, state, lengths_B, missing_BT)
            return _everywhere(dense.log_prob_BT, dense.posterior_BTS, dense.final_BS)
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
            return self.dense().viterbi(ids_BT, state, lengths_B, missing_BT)
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
            return self.dense().k_best(ids_BT, k, state, lengths_B, missing_BT)
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
            return self.dense().sample_posterior(ids_BT, samples, state, lengths_B, missing_BT, generator)
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
            return self.dense().entropy(ids_BT, state, lengths_B, missing_BT)
        return blocked_entropy(self._whole(ids_BT, state, lengths_B).blocks)

    @torch.no_grad()
    def next_token(self, state: Tensor | None = None) -> Tensor:
        """log p(next token | all before), B×V; with no state, of the first token, 1×V."""
        predicted_BS = self._start(self._everything())[None] if state is None else self._push(state)
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
        predicted_BS = self._start(self._everything()).expand(batch, -1) if state is None else self._push(state)
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

    # Distributions

    @torch.no_grad()
    def log_emission(self) -> Tensor:
        """log p(word | state) of every word in the states of its list, V×K."""
        words_V = torch.arange(self.config.vocab_size, device=self.device)
        groups_G = self.group_V.unique()
        return self.emission.columns(
            self.vectors, self.groups, groups_G, self.states_GK[groups_G], words_V, self.config.states
        )

    @torch.no_grad()
    def dense(self) -> HMM:
        """The same distributions as a dense HMM, for questions that need every pair of states at once."""
        states, vocab_size = self.config.states, self.config.vocab_size
        if states > LARGEST_DENSE:
            raise TrellisError(
                f"all pairs of {states:,} states do not fit in memory, and this question needs them: leave no token "
                "out, or, of trellis inspect, give it a --corpus."
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

    def _everything(self) -> Tensor:
        return torch.arange(self.config.states, device=self.device)

    def _start(self, kept_S: Tensor) -> Tensor:
        """p(first state) among the states alive, zero elsewhere, S."""
        probability = self.vectors.start_logits(kept_S).to(next(self.parameters()).dtype).softmax(0)
        return probability.new_zeros(self.config.states).index_add(0, kept_S, probability)

    def _push(self, belief_BS: Tensor) -> Tensor:
        """The belief over all states one step on, B×S, from the few states that carry it."""
        pushed = []
        for row_S in belief_BS:
            there = row_S.nonzero().squeeze(-1)
            pushed.append(row_S[there] @ self.transition.log_rows(self.vectors, there, self.config.states).exp())
        return torch.stack(pushed)

    # A batch made ready

    def _keep(self) -> _Kept:
        """The states of every group that take part: all, or in training mode those that dropout leaves."""
        if not self.training or self.config.dropout == 0:
            return _Kept(self.states_GK, None, self._everything())
        if self.config.clusters == "uniform":  # lists overlap: a state is dropped from all of them
            states = self.config.states
            kept_S = torch.randperm(states, device=self.device)[: self.config.kept(states)].sort().values
            alive_S = torch.zeros(states, dtype=torch.bool, device=self.device).index_fill_(0, kept_S, True)
            return _Kept(self.states_GK, alive_S, kept_S)
        kept_GJ = keep(self.states_GK, self.config.kept(self.states_GK.shape[1]))
        return _Kept(kept_GJ, None, kept_GJ.flatten())

    def _pieces(self, ids_BT: Tensor, lengths_B: Tensor | None) -> Iterator[tuple[Tensor, Tensor | None]]:
        """The batch cut in time, so that the matrices of its pairs fit in memory; one piece when learning."""
        time = max(1, ids_BT.shape[1])
        if not torch.is_grad_enabled():
            time = max(1, PIECE // (self.states_GK.shape[1] ** 2 * max(1, len(ids_BT))))
        for begin in range(0, max(1, ids_BT.shape[1]), time):
            ids = ids_BT[:, begin : begin + time]
            yield ids, None if lengths_B is None else (lengths_B - begin).clamp(0, ids.shape[1])

    def _whole(self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None) -> _Batch:
        return self._batch(ids_BT, state, lengths_B, _Kept(self.states_GK, None, self._everything()))

    def _batch(self, ids_BT: Tensor, state: Tensor | None, lengths_B: Tensor | None, kept: _Kept) -> _Batch:
        """Everything inference needs to know of a batch."""
        ids_BT = without_padding(ids_BT, lengths_B)
        check_ids(ids_BT, self.config.vocab_size)
        words_N, index_BT = ids_BT.unique(return_inverse=True)
        groups_G, list_BT = self.group_V[ids_BT].unique(return_inverse=True)
        enter_GJ = kept.states_GJ[groups_G]
        alive_GJ = None if kept.alive_S is None else kept.alive_S[enter_GJ]
        if alive_GJ is not None and not bool(alive_GJ.any(1).all()):
            raise TrellisError(
                "dropout has left a word no state: lower model.dropout, or model.blocks to give it more."
            )
        if alive_GJ is not None and len(groups_G):
            enter_GJ, alive_GJ = _shortened(enter_GJ, alive_GJ)
        code_N, pair = (list_BT[:, :-1] * len(groups_G) + list_BT[:, 1:]).unique(return_inverse=True)
        pairs = Pairs(code_N // max(1, len(groups_G)), code_N % max(1, len(groups_G)))
        lists = Lists(enter_GJ, enter_GJ, groups_G, alive_GJ, pairs, kept.all_S)
        blocks = Blocks(
            into_PJK=self.transition.into(self.vectors, lists),
            # After the pairs: on the way back its few rows come before their whole table and are added in place.
            first_BK=self._first(state, list_BT, lists),
            log_columns_NK=self.emission.columns(
                self.vectors, self.groups, groups_G, enter_GJ, words_N, self.config.states
            ),
            pair_BT=torch.nn.functional.pad(pair, (1, 0))[:, : ids_BT.shape[1]],
            index_BT=index_BT,
            lengths_B=lengths_B,
            log_into=lambda chosen_N: self.transition.log_into(self.vectors, lists, chosen_N),
        )
        return _Batch(blocks, enter_GJ, list_BT)

    def _first(self, state: Tensor | None, list_BT: Tensor, lists: Lists) -> Tensor:
        """p(first state) of each row, among the states of its first token's list."""
        if list_BT.shape[1] == 0:
            return next(self.parameters()).new_zeros(len(list_BT), lists.enter_GJ.shape[1])
        entered_B = list_BT[:, 0]
        if state is None:
            first_BJ = self._start(lists.kept_S)[lists.enter_GJ[entered_B]]
            return first_BJ if lists.alive_GJ is None else first_BJ * lists.alive_GJ[entered_B]
        # The states that carry belief, as many as the row that has most: dropped since or not, they are left.
        width = max([1, *(state > 0).sum(1).tolist()])
        belief_BK, leave_BK = state.topk(width, sorted=False)
        pairs = Pairs(torch.arange(len(state), device=state.device), entered_B)
        into_BJK = self.transition.into(self.vectors, lists._replace(leave_NK=leave_BK, pairs=pairs, few=True))
        return (into_BJK * belief_BK.unsqueeze(1)).sum(-1)

    def _carried(self, batch: _Batch, final_BJ: Tensor, before: Tensor | None, lengths_B: Tensor | None) -> Tensor:
        """The belief after the last token over all states; rows without tokens keep the one they had."""
        time, rows = batch.list_BT.shape[1], len(final_BJ)
        if before is None:
            before = self._start(self._everything()).expand(rows, -1)
        if time == 0:
            return before
        last_B = torch.full((rows,), time, device=self.device) if lengths_B is None else lengths_B
        place_B1 = (last_B - 1).clamp_min(0).unsqueeze(1)
        states_BJ = batch.enter_GJ[batch.list_BT.gather(1, place_B1).squeeze(1)]
        after = final_BJ.new_zeros(rows, self.config.states).scatter_add(1, states_BJ, final_BJ)
        return after if lengths_B is None else torch.where((last_B > 0).unsqueeze(1), after, before)


def _shortened(enter_GJ: Tensor, alive_GJ: Tensor) -> tuple[Tensor, Tensor]:
    """Lists of the states alive, as long as the longest (a multiple of 16 is quick to multiply), and which places live.

    A shorter list is filled up with its first state again; those places are dead, so that it is entered once.
    """
    longest = -(-int(alive_GJ.sum(1).max()) // 16) * 16
    order_GJ = alive_GJ.sort(dim=1, descending=True, stable=True).indices[:, :longest]
    enter_GJ, alive_GJ = enter_GJ.gather(1, order_GJ), alive_GJ.gather(1, order_GJ)
    return torch.where(alive_GJ, enter_GJ, enter_GJ[:, :1]), alive_GJ


def _everywhere(log_prob_BT: Tensor, belief_BTS: Tensor, final_BS: Tensor) -> Beliefs:
    """Beliefs over all states, as a gap leaves them."""
    states_BTS = torch.arange(belief_BTS.shape[2], device=belief_BTS.device).expand_as(belief_BTS)
    return Beliefs(log_prob_BT, belief_BTS, states_BTS, final_BS)
