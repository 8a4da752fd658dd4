"""Models whose words have blocks of states, each batch of which is a chain of every kind: they must all agree."""

from collections.abc import Iterator
from typing import NamedTuple

import torch
from hypothesis import strategies as st
from torch import Tensor

from trellis.inference import BlockPairs, Chain, Streamed
from trellis.inference.chain import NOT_BEGUN, log_belief

from .. import reference
from .models import InPieces, random_belief, random_hmm, random_log_emission

KINDS = ("dense", "in pieces", "blocks", "streamed")
EXAMPLES = 60  # each of which is a chain of every kind


class BlockedHmm(NamedTuple):
    """A dense HMM whose every word is emitted by the states of its block alone."""

    log_start_S: Tensor
    log_transition_SS: Tensor
    log_word_VS: Tensor  # log p(word | state), taken in the states of the word's block only
    states_MK: Tensor  # the states of each block
    block_V: Tensor  # the block of each word

    def log_words(self) -> Tensor:
        """log p(word | state) with −inf outside the block of each word, V×S."""
        states_VK = self.states_MK[self.block_V]
        return torch.full_like(self.log_word_VS, -torch.inf).scatter(
            -1, states_VK, self.log_word_VS.gather(-1, states_VK)
        )

    def to(self, dtype: torch.dtype) -> "BlockedHmm":
        """The same model in another precision."""
        return BlockedHmm(*(x.to(dtype) for x in self[:3]), *self[3:])


class Case(NamedTuple):
    """A model and a ragged batch for it: a chain of every kind, and the rows as the reference takes them.

    Missing tokens may have any state, so that a chain of blocks has none. Labels are states of the whole model, of the
    block of their token; −1 is none. Soiled padding names columns and pairs full of NaN.
    """

    hmm: BlockedHmm
    tokens_BT: Tensor
    lengths_B: Tensor | None = None
    belief_BS: Tensor | None = None
    missing_BT: Tensor | None = None
    labels_BT: Tensor | None = None
    soiled: bool = False

    def kinds(self) -> list[str]:
        """The kinds of chains that this batch has."""
        return [kind for kind in KINDS if kind != "blocks" or self.missing_BT is None]

    def chains(self) -> Iterator[tuple[str, Chain]]:
        """A chain of each kind, and its name."""
        for kind in self.kinds():
            yield kind, self.chain(kind)

    def chain(self, kind: str) -> Chain:
        """The chain of one kind."""
        make = {"dense": self.dense, "in pieces": self.in_pieces, "blocks": self.blocks, "streamed": self.streamed}
        return make[kind]()

    def inside(self) -> Tensor:
        """Which tokens are there, B×T."""
        return torch.arange(self.tokens_BT.shape[1]) < self.lengths()[:, None]

    def lengths(self) -> Tensor:
        """How many tokens each row has."""
        batch, time = self.tokens_BT.shape
        return torch.full((batch,), time) if self.lengths_B is None else self.lengths_B

    def dense(self) -> Chain:
        """Of tables: −inf outside the block of each token, zero where it is missing."""
        log_emission_BTS = self.hmm.log_words()[self.tokens_BT]
        if self.missing_BT is not None:
            log_emission_BTS = log_emission_BTS.masked_fill(self.missing_BT[..., None], 0.0)
        if self.soiled:
            log_emission_BTS = log_emission_BTS.masked_fill(~self.inside()[..., None], torch.nan)
        tables = self.hmm.log_start_S, self.hmm.log_transition_SS, log_emission_BTS
        return Chain.dense(*tables, self.lengths_B, self.belief_BS)._replace(labels_BT=self.labels_BT)

    def in_pieces(self) -> Chain:
        """The same with a transition that knows its pieces alone."""
        return self.dense()._replace(transition=InPieces(self.hmm.log_transition_SS))

    def blocks(self) -> Chain:
        """Slices of the dense tensors, each distinct pair and word once; differentiable as they are."""
        states_MK, block_BT, inside_BT = self.hmm.states_MK, self.hmm.block_V[self.tokens_BT], self.inside()
        crosses_BT = inside_BT & (torch.arange(inside_BT.shape[1]) > 0)
        code_BT = block_BT.roll(1, 1) * len(states_MK) + block_BT
        codes_P, pair_N = code_BT[crosses_BT].unique(return_inverse=True)
        words_N, index_N = self.tokens_BT[inside_BT].unique(return_inverse=True)
        pair_BT = torch.zeros_like(self.tokens_BT).masked_scatter(crosses_BT, pair_N)
        index_BT = torch.zeros_like(self.tokens_BT).masked_scatter(inside_BT, index_N)
        from_PK, to_PJ = states_MK[codes_P // len(states_MK)], states_MK[codes_P % len(states_MK)]
        log_into_PJK = self.hmm.log_transition_SS[from_PK[:, None, :], to_PJ[:, :, None]]
        exact = log_into_PJK.detach().double()
        states_BK = states_MK[block_BT[:, 0]]
        chain = Chain(
            self._log_first().gather(1, states_BK),
            BlockPairs(log_into_PJK.exp(), pair_BT, lambda pairs: exact[pairs]),
            self.hmm.log_word_VS[words_N].gather(1, states_MK[self.hmm.block_V[words_N]]),
            index_BT,
            self.lengths_B,
            states_MK,
            block_BT,
            self._places(),
            self._carry(states_MK[block_BT.gather(1, (self.lengths() - 1).clamp_min(0)[:, None])].squeeze(1)),
            None if self.belief_BS is None else lambda row: self._exact_first(row)[states_BK[row]],
        )
        return soiled(chain) if self.soiled else chain

    def streamed(self) -> Chain:
        """Matrices cut out of the dense one as they are crossed."""
        states, block_BT = len(self.hmm.log_start_S), self.hmm.block_V[self.tokens_BT]
        log_transition_SS, index_BT = self.hmm.log_transition_SS.detach(), self.tokens_BT
        if self.missing_BT is not None:
            block_BT = block_BT.masked_fill(self.missing_BT, -1)
            index_BT = index_BT.masked_fill(self.missing_BT, len(self.hmm.log_word_VS))

        def log_into(from_N: Tensor, enter_MJ: Tensor) -> Tensor:
            return log_transition_SS[from_N][:, enter_MJ.flatten()].T.double()

        def into(from_N: Tensor, enter_MJ: Tensor) -> Tensor:
            return log_into(from_N, enter_MJ).to(log_transition_SS).exp()

        all_MK = torch.randperm(states, generator=torch.Generator().manual_seed(0)).view(self.hmm.states_MK.shape)
        chain = Chain(
            self._log_first(),
            Streamed(self.hmm.states_MK, block_BT, all_MK, into, log_into),
            torch.cat([self.hmm.log_words(), self.hmm.log_word_VS.new_zeros(1, states)]),
            index_BT,
            self.lengths_B,
            labels_BT=self.labels_BT,
            carry=self._carry(torch.arange(states).expand(len(block_BT), -1)),
            log_first=None if self.belief_BS is None else self._exact_first,
        )
        return soiled(chain) if self.soiled else chain

    def rows(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """The dense problem of each row as the reference takes it; a carried belief has become its start."""
        log_emission_BTS = self._replace(soiled=False).dense().log_columns_NS.view(*self.tokens_BT.shape, -1)
        if self.labels_BT is not None:
            given_BTS = torch.nn.functional.one_hot(self.labels_BT.clamp_min(0), len(self.hmm.log_start_S)) > 0
            given_BTS |= self.labels_BT[..., None] < 0
            log_emission_BTS = log_emission_BTS.masked_fill(~given_BTS, -torch.inf)
        for b, length in enumerate(self.lengths().tolist()):
            yield self._exact_first(b), self.hmm.log_transition_SS, log_emission_BTS[b, :length]

    def _log_first(self) -> Tensor:
        """log p(first state), in the model's precision and over all of its states."""
        if self.belief_BS is None:
            return self.hmm.log_start_S.expand(len(self.tokens_BT), -1)
        return log_belief(self.belief_BS @ self.hmm.log_transition_SS.exp(), self.belief_BS)

    def _exact_first(self, row: int) -> Tensor:
        log_belief_S = None if self.belief_BS is None else self.belief_BS[row].double().log()
        return reference.first_state(self.hmm.log_start_S, self.hmm.log_transition_SS, log_belief_S)

    def _carry(self, states_BK: Tensor):
        """To beliefs over all states; a row of no tokens ends with what it began with."""
        before_BS = torch.tensor(NOT_BEGUN) if self.belief_BS is None else self.belief_BS

        def carry(final_BK: Tensor) -> Tensor:
            after_BS = final_BK.new_zeros(len(final_BK), len(self.hmm.log_start_S)).scatter(1, states_BK, final_BK)
            return torch.where((self.lengths() > 0)[:, None], after_BS, before_BS)

        return carry

    def _places(self) -> Tensor | None:
        """Labels as places in the block of their token."""
        if self.labels_BT is None:
            return None
        states_BTK = self.hmm.states_MK[self.hmm.block_V[self.tokens_BT]]
        place_BT = (states_BTK == self.labels_BT[..., None]).int().argmax(-1)
        return torch.where(self.labels_BT < 0, -1, place_BT)


def soiled(chain: Chain) -> Chain:
    """The same chain, whose padding names columns and pairs full of NaN, and whose first tokens name no pair."""
    _, time, states = chain.shape
    padding_BT = torch.arange(time) >= chain.lengths()[:, None]
    nan = chain.log_columns_NS.new_full((1, states, states), torch.nan)
    transition = chain.transition
    if isinstance(transition, BlockPairs):
        pair_BT = transition.pair_BT.masked_fill(padding_BT, len(transition.into_PJK))
        pair_BT[:, :1] = -12345
        transition = BlockPairs(torch.cat([transition.into_PJK, nan]), pair_BT, transition.log_into)
    index_BT = chain.index_BT.masked_fill(padding_BT, len(chain.log_columns_NS))
    columns_NS = torch.cat([chain.log_columns_NS, nan[0, :1]])
    return chain._replace(transition=transition, index_BT=index_BT, log_columns_NS=columns_NS)


def spread(states: int, states_BTK: Tensor, local_BTK: Tensor) -> Tensor:
    """Numbers of the states that each token may have as numbers of all states, zero of others."""
    return local_BTK.new_zeros(*local_BTK.shape[:-1], states).scatter(-1, states_BTK, local_BTK)


def spread_steps(case: Case, chain: Chain, count_PJK: Tensor) -> Tensor:
    """Numbers of each pair's steps [to, from] as numbers of all steps [from, to]."""
    assert isinstance(chain.transition, BlockPairs)
    total_SS = torch.zeros_like(case.hmm.log_transition_SS)
    block_BT, seen = case.hmm.block_V[case.tokens_BT], set()
    for b, length in enumerate(case.lengths().tolist()):
        for t in range(1, length):
            pair = int(chain.transition.pair_BT[b, t])
            if pair not in seen:
                seen.add(pair)
                from_K, to_J = case.hmm.states_MK[block_BT[b, t - 1]], case.hmm.states_MK[block_BT[b, t]]
                total_SS[from_K[:, None], to_J] += count_PJK[pair].T.to(total_SS)
    return total_SS


def random_blocked_hmm(
    blocks: int, width: int, words: int, seed: int, zeros: float = 0.0, overlapping: bool = False
) -> BlockedHmm:
    """Blocks that part the states, or any subsets of them, and words dealt to blocks at random."""
    generator = torch.Generator().manual_seed(seed + 3_000_017)
    states = blocks * width
    states_MK = torch.randperm(states, generator=generator).view(blocks, width)
    if overlapping:
        states_MK = torch.stack([torch.randperm(states, generator=generator)[:width] for _ in range(blocks)])
    block_V = torch.randint(blocks, (words,), generator=generator)
    log_word_VS = random_log_emission(1, words, states, seed, zeros)[0]
    return BlockedHmm(*random_hmm(states, seed, zeros), log_word_VS, states_MK, block_V)


@st.composite
def cases(draw: st.DrawFn, zeros: bool = True, missing: bool = True, labelled: bool = False, soil: bool = True) -> Case:
    """Small enough to list all paths of the dense model; with rows of no and of one token, and beliefs at will.

    Without `zeros` every row is possible, unless labels forbid it. Labels are of some tokens, or of all.
    """
    blocks, width = draw(st.sampled_from([(1, 1), (1, 3), (2, 1), (2, 2), (3, 2), (2, 3)]))
    words, time, batch = draw(st.integers(1, 5)), draw(st.integers(1, 4)), draw(st.integers(1, 4))
    seed, share = draw(st.integers(0, 10_000)), draw(st.sampled_from([0.0, 0.3, 0.6])) if zeros else 0.0
    hmm = random_blocked_hmm(blocks, width, words, seed, share, overlapping=draw(st.booleans()))
    generator = torch.Generator().manual_seed(seed)
    tokens_BT = torch.randint(words, (batch, time), generator=generator)
    lengths_B = torch.tensor(draw(st.lists(st.integers(0, time), min_size=batch, max_size=batch)))
    belief_BS = random_belief(batch, blocks * width, seed, share) if draw(st.booleans()) else None
    missing_BT = None
    if missing and draw(st.booleans()):
        missing_BT = torch.rand(batch, time, generator=generator) < 0.4
    case = Case(hmm, tokens_BT, lengths_B, belief_BS, missing_BT, soiled=soil and draw(st.booleans()))
    return (
        case._replace(labels_BT=_labels(case, draw(st.sampled_from([0.3, 0.7, 1.0])), generator)) if labelled else case
    )


def _labels(case: Case, share: float, generator: torch.Generator) -> Tensor:
    """States of the block of each token for a share of the tokens; none past a row's end."""
    states_BTK = case.hmm.states_MK[case.hmm.block_V[case.tokens_BT]]
    place_BT1 = torch.randint(states_BTK.shape[-1], (*case.tokens_BT.shape, 1), generator=generator)
    given_BT = (torch.rand(case.tokens_BT.shape, generator=generator) < share) & case.inside()
    return states_BTK.gather(-1, place_BT1).squeeze(-1).masked_fill(~given_BT, -1)


def a_large_case(seed: int = 0) -> Case:
    """Four blocks of eight states and rows of up to forty tokens: most pairs are crossed many times."""
    hmm = random_blocked_hmm(4, 8, 30, seed, zeros=0.1)
    tokens_BT = torch.randint(30, (7, 40), generator=torch.Generator().manual_seed(seed))
    return Case(hmm, tokens_BT, torch.tensor([40, 1, 17, 0, 40, 2, 39]))


def an_improbable_hmm(surprise: float) -> BlockedHmm:
    """Two blocks of two states; from one of the two in each, one hardly ever gets to the other. In float32.

    It begins with the first of each, 0 and 2; only the others, 1 and 3, explain words 2 and 5.
    """
    log_start_S = torch.tensor([0.5, 0.0, 0.5, 0.0]).log()
    near, far = torch.tensor([0.5, 0.0, 0.5, 0.0]).log(), torch.tensor([0.0, 0.4, 0.0, 0.6]).log()
    log_transition_SS = torch.stack([near, far, near, far])
    log_transition_SS[0, [1, 3]] = log_transition_SS[2, [1, 3]] = torch.tensor([-1.0, -1.5]) - surprise
    log_transition_SS[1, [0, 2]] = log_transition_SS[3, [0, 2]] = torch.tensor([-2.0, -0.5]) - surprise
    log_word_VS = torch.tensor([[-1.0, -1.5, -2.0, -0.5], [-0.7] * 4, [-torch.inf, -0.2, -torch.inf, -0.3]])
    log_word_VS = torch.cat([log_word_VS, log_word_VS])
    return BlockedHmm(
        log_start_S, log_transition_SS, log_word_VS, torch.tensor([[0, 1], [2, 3]]), torch.tensor([0, 0, 0, 1, 1, 1])
    )


def an_improbable_case(surprise: float) -> Case:
    """Rows 0 and 2 have words that only states hardly ever reached explain; row 1 is ordinary.

    In float32, a surprise of 60 nats can be held by a probability, one of 400 cannot.
    """
    tokens_BT = torch.tensor([[0, 4, 2, 5, 1], [3, 1, 4, 0, 0], [1, 3, 5, 0, 0]])
    return Case(an_improbable_hmm(surprise), tokens_BT, torch.tensor([5, 5, 3]))


def an_improbable_beginning(surprise: float) -> Case:
    """Beliefs from which the first word of rows 0 and 2 is improbable; that of row 1 is not."""
    tokens_BT = torch.tensor([[2, 1, 5], [5, 4, 0], [5, 0, 1]])
    belief_BS = torch.tensor([[0.5, 0.0, 0.5, 0.0], [0.0, 0.3, 0.0, 0.7], [0.0, 0.0, 1.0, 0.0]])
    return Case(an_improbable_hmm(surprise), tokens_BT, torch.tensor([3, 3, 2]), belief_BS)


@st.composite
def improbable_cases(draw: st.DrawFn, missing: bool = True) -> Case:
    """Batches of the improbable model: rows too improbable for float32, impossible ones, and beliefs at will.

    88 nats are a denormal. The belief is in states from which the words 2 and 5 are improbable, or in others.
    """
    surprise = draw(st.sampled_from([30.0, 60.0, 88.0, 400.0, 5000.0]))
    words_BT = draw(st.lists(st.lists(st.integers(0, 6), min_size=5, max_size=5), min_size=1, max_size=3))
    lengths_B = torch.tensor([draw(st.integers(0, 5)) for _ in words_BT])
    hmm = an_improbable_hmm(surprise)
    never = torch.full((1, 4), -torch.inf)  # word 6 makes a row impossible
    hmm = hmm._replace(log_word_VS=torch.cat([hmm.log_word_VS, never]), block_V=torch.tensor([0, 0, 0, 1, 1, 1, 0]))
    beliefs = st.sampled_from([[0.5, 0.0, 0.5, 0.0], [0.0, 1.0, 0.0, 0.0], [0.0, 0.0, 1.0, 0.0]])
    belief_BS = torch.tensor([draw(beliefs) for _ in words_BT]) if draw(st.booleans()) else None
    missing_BT = None
    if missing and draw(st.booleans()):
        missing_BT = torch.tensor([[draw(st.booleans()) for _ in words_T] for words_T in words_BT])
    return Case(hmm, torch.tensor(words_BT), lengths_B, belief_BS, missing_BT)


def with_leaves(case):
    """The case of the distributions that some logits make, these logits, and a carried belief."""
    leaves = [x.clone().requires_grad_() for x in case.hmm[:3]]
    leaves += [] if case.belief_BS is None else [case.belief_BS.clone().requires_grad_()]
    logs = [leaf.log_softmax(-1) for leaf in leaves[:2]] + [leaves[2].log_softmax(0)]
    belief_BS = leaves[3] if len(leaves) > 3 else None
    return case._replace(hmm=BlockedHmm(*logs, *case.hmm[3:]), belief_BS=belief_BS), leaves
