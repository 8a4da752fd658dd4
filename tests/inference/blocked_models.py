"""Blocked models to test on, each held densely, so that dense inference can answer the same questions."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from trellis.inference import Blocks

from .models import random_belief, random_hmm, random_log_emission


class BlockedHmm(NamedTuple):
    """A dense HMM whose every word is emitted by the states of its group alone."""

    log_start_S: Tensor
    log_transition_SS: Tensor
    log_word_VS: Tensor  # log p(word | state), taken in the states of the word's group only
    states_MK: Tensor  # the states of each group
    group_V: Tensor  # the group of each word

    def log_emission(self, tokens: Tensor) -> Tensor:
        """As dense inference takes them: −inf outside the group of each token."""
        states = self.states_MK[self.group_V[tokens]]
        never = self.log_word_VS.new_full((*tokens.shape, len(self.log_start_S)), -torch.inf)
        return never.scatter(-1, states, self.log_word_VS[tokens].gather(-1, states))

    def first(self, belief_BS: Tensor | None, batch: int) -> Tensor:
        """p(first state), over all states."""
        if belief_BS is None:
            return self.log_start_S.exp().expand(batch, -1)
        return belief_BS @ self.log_transition_SS.exp()

    def blocks(self, tokens_BT: Tensor, lengths_B: Tensor | None = None, belief_BS: Tensor | None = None) -> Blocks:
        """Slices of the dense tensors, each distinct pair and word once; differentiable as they are."""
        group_BT = self.group_V[tokens_BT]
        inside_BT = torch.ones_like(tokens_BT, dtype=torch.bool)
        if lengths_B is not None:
            inside_BT = torch.arange(tokens_BT.shape[1]) < lengths_B[:, None]
        crosses_BT = inside_BT & (torch.arange(tokens_BT.shape[1]) > 0)
        code_BT = group_BT.roll(1, 1) * len(self.states_MK) + group_BT
        codes_P, pair_N = code_BT[crosses_BT].unique(return_inverse=True)
        words_N, index_N = tokens_BT[inside_BT].unique(return_inverse=True)
        pair_BT = torch.zeros_like(tokens_BT).masked_scatter(crosses_BT, pair_N)
        index_BT = torch.zeros_like(tokens_BT).masked_scatter(inside_BT, index_N)
        from_PK, to_PJ = self.states_MK[codes_P // len(self.states_MK)], self.states_MK[codes_P % len(self.states_MK)]
        log_into_PJK = self.log_transition_SS[from_PK[:, None, :], to_PJ[:, :, None]]
        exact = log_into_PJK.detach().double()
        first_BK = self.first(belief_BS, len(tokens_BT)).gather(1, self.states_MK[group_BT[:, 0]])
        log_columns_NK = self.log_word_VS[words_N].gather(1, self.states_MK[self.group_V[words_N]])
        return Blocks(
            first_BK, log_into_PJK.exp(), log_columns_NK, pair_BT, index_BT, lengths_B, lambda pairs: exact[pairs]
        )

    def rows(
        self, tokens_BT: Tensor, lengths_B: Tensor, belief_BS: Tensor | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The dense problem of each row as the reference takes it; a carried belief has become its start."""
        first_BS, log_emission_BTS = self.first(belief_BS, len(tokens_BT)), self.log_emission(tokens_BT)
        for first_S, log_emission_TS, length in zip(first_BS, log_emission_BTS, lengths_B.tolist(), strict=True):
            yield first_S.log(), self.log_transition_SS, log_emission_TS[:length]

    def spread(self, local: Tensor, tokens: Tensor) -> Tensor:
        """Numbers of a token's group as numbers of all states, zero outside it."""
        zeros = local.new_zeros(*tokens.shape, len(self.log_start_S))
        return zeros.scatter(-1, self.states_MK[self.group_V[tokens]], local)

    def spread_steps(self, blocks: Blocks, count_PJK: Tensor, tokens_BT: Tensor) -> Tensor:
        """Numbers of each pair's steps [to, from] as numbers of all steps [from, to]."""
        total_SS = torch.zeros_like(self.log_transition_SS)
        group_BT, seen = self.group_V[tokens_BT], set()
        for b, length in enumerate(blocks.lengths().tolist()):
            for t in range(1, length):
                pair = int(blocks.pair_BT[b, t])
                if pair not in seen:
                    seen.add(pair)
                    states_K, states_J = self.states_MK[group_BT[b, t - 1]], self.states_MK[group_BT[b, t]]
                    total_SS[states_K[:, None], states_J] += count_PJK[pair].T.to(total_SS)
        return total_SS

    def named(self, local_BNT: Tensor, tokens_BT: Tensor) -> Tensor:
        """States within groups as states of the whole model; −1 stays."""
        states_BTK = self.states_MK[self.group_V[tokens_BT]]
        named_BNT = states_BTK.transpose(1, 2).gather(1, local_BNT.clamp_min(0))
        return torch.where(local_BNT < 0, -1, named_BNT)

    def to(self, dtype: torch.dtype) -> "BlockedHmm":
        """The same model in another precision."""
        return self._replace(
            log_start_S=self.log_start_S.to(dtype),
            log_transition_SS=self.log_transition_SS.to(dtype),
            log_word_VS=self.log_word_VS.to(dtype),
        )


def random_blocked_hmm(
    groups: int, width: int, words: int, seed: int, zeros: float = 0.0, overlapping: bool = False
) -> BlockedHmm:
    """Groups that part the states, or any subsets of them, and words dealt to groups at random."""
    generator = torch.Generator().manual_seed(seed + 3_000_017)
    states = groups * width
    states_MK = torch.randperm(states, generator=generator).view(groups, width)
    if overlapping:
        states_MK = torch.stack([torch.randperm(states, generator=generator)[:width] for _ in range(groups)])
    group_V = torch.randint(groups, (words,), generator=generator)
    log_word_VS = random_log_emission(1, words, states, seed, zeros)[0]
    return BlockedHmm(*random_hmm(states, seed, zeros), log_word_VS, states_MK, group_V)


class Case(NamedTuple):
    """A model and a ragged batch for it."""

    hmm: BlockedHmm
    tokens_BT: Tensor
    lengths_B: Tensor
    belief_BS: Tensor | None

    def blocks(self) -> Blocks:
        """The batch as blocked inference takes it."""
        return self.hmm.blocks(self.tokens_BT, self.lengths_B, self.belief_BS)

    def dense(self) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor | None]:
        """The batch as dense inference takes it."""
        log_emission_BTS = self.hmm.log_emission(self.tokens_BT)
        return self.hmm.log_start_S, self.hmm.log_transition_SS, log_emission_BTS, self.lengths_B, self.belief_BS

    def rows(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The rows as the reference takes them, dense."""
        return self.hmm.rows(self.tokens_BT, self.lengths_B, self.belief_BS)


@st.composite
def blocked_cases(draw: st.DrawFn, with_zeros: bool = True) -> Case:
    """Small enough to list all paths of the dense model; with rows of no and of one token, and beliefs at will."""
    groups, width = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 3)]))
    words, time, batch = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seed, zeros = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.0, 0.3, 0.6])) if with_zeros else 0.0
    hmm = random_blocked_hmm(groups, width, words, seed, zeros, overlapping=draw(st.booleans()))
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(words, (batch, time), generator=generator)
    lengths_B = torch.tensor(draw(st.lists(st.integers(0, time), min_size=batch, max_size=batch)))
    belief_BS = random_belief(batch, groups * width, seed, zeros) if draw(st.booleans()) else None
    return Case(hmm, tokens_BT, lengths_B, belief_BS)


def a_large_case(seed: int = 0) -> Case:
    """Four groups of eight states and rows of up to forty tokens: most pairs are crossed many times."""
    hmm = random_blocked_hmm(4, 8, 30, seed, zeros=0.1)
    tokens_BT = torch.randint(30, (7, 40), generator=torch.Generator().manual_seed(seed))
    return Case(hmm, tokens_BT, torch.tensor([40, 1, 17, 0, 40, 2, 39]), None)


def an_improbable_case(surprise: float) -> Case:
    """Two groups of two states, one hardly ever left; rows 0 and 2 have words that only the other explains.

    Row 1 is ordinary. In float32, a surprise of 60 nats can be held by a probability, one of 400 cannot.
    """
    log_start_S = torch.tensor([0.5, 0.0, 0.5, 0.0]).log()
    near, far = torch.tensor([0.5, 0.0, 0.5, 0.0]).log(), torch.tensor([0.0, 0.4, 0.0, 0.6]).log()
    log_transition_SS = torch.stack([near, far, near, far])
    log_transition_SS[0, [1, 3]] = log_transition_SS[2, [1, 3]] = torch.tensor([-1.0, -1.5]) - surprise
    log_transition_SS[1, [0, 2]] = log_transition_SS[3, [0, 2]] = torch.tensor([-2.0, -0.5]) - surprise
    log_word_VS = torch.tensor([[-1.0, -1.5, -2.0, -0.5], [-0.7] * 4, [-torch.inf, -0.2, -torch.inf, -0.3]])
    log_word_VS = torch.cat([log_word_VS, log_word_VS])
    hmm = BlockedHmm(
        log_start_S, log_transition_SS, log_word_VS, torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 0, 0, 1, 1, 1])
    )
    tokens_BT = torch.tensor([[0, 4, 2, 5, 1], [3, 1, 4, 0, 0], [1, 3, 5, 0, 0]])
    return Case(hmm, tokens_BT, torch.tensor([5, 5, 3]), None)
