"""The plain HMM that states with a memory of words are: over all pairs of the last words and a state."""

import itertools
from typing import NamedTuple

import torch
from torch import Tensor
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig
from trellis.models.memory import NONE, Contexts


def contexts_of(memory, words):
    """All that can be remembered, the newest word first; NONE where there is none yet."""
    return [
        context + (NONE,) * (memory - size)
        for size in range(1, memory + 1)
        for context in itertools.product(range(words), repeat=size)
    ]


def pairs_of(memory, start_S, emission_VS, stepping):
    """That HMM, with the words themselves as emissions; `stepping` says p(next state | state, context), S×S."""
    words, states = emission_VS.shape
    number = {context: place for place, context in enumerate(contexts_of(memory, words))}
    size = len(number) * states
    transition, emission = torch.zeros(size, size, dtype=torch.float64), torch.zeros(size, words, dtype=torch.float64)
    first = torch.zeros(size, dtype=torch.float64)
    for context, place in number.items():
        here = slice(place * states, (place + 1) * states)
        emission[here, context[0]] = 1.0
        step = stepping(context)
        for word in range(words):
            there = number[(word, *context)[:memory]] * states
            transition[here, there : there + states] = step * emission_VS[word]
    for word in range(words):
        place = number[(word,) + (NONE,) * (memory - 1)] * states
        first[place : place + states] = start_S * emission_VS[word]
    twin = HMM(HMMConfig(words, size), seed=0).double().eval()
    twin.set_tables(first, transition, emission)
    return twin


def vector_of(model, place, word):
    """What a word adds at one of the places that are remembered: nothing, if it is none that is."""
    kept = list(range(model.config.vocab_size)) if model.memory.kept_W is None else model.memory.kept_W.tolist()
    vectors_WR = model.memory.words[place]
    return vectors_WR[kept.index(word)] if word in kept else torch.zeros_like(vectors_WR[0])


def number_of(memory, words, context):
    """The place of a context among all of them."""
    return contexts_of(memory, words).index(context)


def labels_of_pairs(memory, words, states, ids, labels):
    """The states of that HMM at tokens whose states here are given."""
    contexts = Contexts.of(torch.full((len(ids), memory), NONE), ids, words)
    seen = contexts.words_KM[contexts.place_BT1[:, 1:]].tolist()
    places = torch.tensor([[number_of(memory, words, tuple(context)) for context in row] for row in seen])
    return places * states + labels


def assert_paths_agree(model, twin, ids, lengths):
    """Entropies of paths, the best path and the best few are those of that HMM, the `twin`."""
    states = model.config.states
    assert_close(model.entropy(ids, lengths_B=lengths), twin.entropy(ids, lengths_B=lengths))
    best, pairs_best = model.viterbi(ids, lengths_B=lengths), twin.viterbi(ids, lengths_B=lengths)
    assert_close(best.log_prob_B, pairs_best.log_prob_B)
    assert torch.equal(best.states_BT, states_of_pairs(pairs_best.states_BT, states))
    some, pairs_some = model.k_best(ids, 4, lengths_B=lengths), twin.k_best(ids, 4, lengths_B=lengths)
    assert_close(some.log_prob_BK, pairs_some.log_prob_BK)
    assert not (some.log_prob_BK.diff() > -1e-6).any(), "paths that are as good come in any order"
    assert torch.equal(some.states_BKT, states_of_pairs(pairs_some.states_BKT, states))


def states_of_pairs(found, states):
    """The states of that HMM without their words; −1 stays."""
    return torch.where(found < 0, -1, found % states)


def every_way(ids_T, missing_T, words):
    """The text with every choice of words in its gaps, N×T."""
    chosen = torch.tensor(list(itertools.product(range(words), repeat=int(missing_T.sum()))), dtype=torch.int64)
    return ids_T.expand(len(chosen), -1).masked_scatter(missing_T.expand(len(chosen), -1), chosen)


def chance(model, ids_NT):
    """The sum of these texts' probabilities."""
    return model.score(ids_NT)[0].sum(1).exp().sum().detach()


class Gapped(NamedTuple):
    """Texts with gaps that are asked about from their token `cut` on, and what is true of them with a memory of one.

    Every way to fill the gaps is tried, with every path of states.
    """

    model: HMM
    start_S: Tensor
    emission_VS: Tensor
    step_VSS: Tensor
    ids_BT: Tensor
    missing_BT: Tensor
    lengths_B: Tensor
    cut: int

    @classmethod
    def of(cls, model, start_S, emission_VS, stepping, ids_BT, cut):
        """Four texts of five tokens; about a cut after two there are gaps before, behind and on both sides."""
        step_VSS = torch.stack([stepping((word,)) for word in range(len(emission_VS))])
        missing_BT = torch.tensor([[0, 1, 0, 1, 0], [1, 0, 0, 0, 1], [0, 1, 1, 0, 1], [0, 1, 0, 0, 0]]).bool()
        return cls(model, start_S, emission_VS, step_VSS, ids_BT, missing_BT, torch.tensor([5, 5, 4, 2]), cut)

    def ask(self, question, *more, **settings):
        """What the model answers."""
        before_BC, gaps_BC = self.ids_BT[:, : self.cut], self.missing_BT[:, : self.cut]
        settings["state"] = self.model.score(before_BC, missing_BT=gaps_BC)[1] if self.cut else None
        settings |= {"lengths_B": self.lengths_B - self.cut, "missing_BT": self.missing_BT[:, self.cut :]}
        return getattr(self.model, question)(self.ids_BT[:, self.cut :], *more, **settings)

    def paths(self, row, end=None):
        """p(state path from the cut on, words seen from there up to `end` | words before), S×…×S."""
        end = int(self.lengths_B[row]) if end is None else end
        if not self.cut:
            return self._paths(row, end)
        return self._paths(row, end).flatten(0, self.cut - 1).sum(0) / self._paths(row, self.cut).sum()

    def _paths(self, row, end):
        total = 0.0
        for text in every_way(self.ids_BT[row, :end], self.missing_BT[row, :end], len(self.emission_VS)).tolist():
            found = self.start_S * self.emission_VS[text[0]]
            for before, word in itertools.pairwise(text):
                found = found[..., None] * self.step_VSS[before] * self.emission_VS[word]
            total = total + found
        return total

    def assert_best_paths_agree(self):
        """The best path and the best few are the best of all."""
        best, some = self.ask("viterbi"), self.ask("k_best", 4)
        for row in range(len(self.ids_BT)):
            every = self.paths(row)
            chances, places = every.flatten().topk(min(4, every.numel()))
            assert not (chances.diff() > -1e-6 * chances[:-1]).any(), "paths that are as good come in any order"
            digits = [len(self.start_S) ** place for place in reversed(range(every.ndim))]
            states = [[place // digit % len(self.start_S) for digit in digits] for place in places.tolist()]
            assert_close(some.log_prob_BK[row, : len(chances)], chances.log())
            assert some.states_BKT[row, : len(chances), : every.ndim].tolist() == states
            assert_close(best.log_prob_B[row], chances[0].log())
            assert best.states_BT[row, : every.ndim].tolist() == states[0]

    def assert_entropies_agree(self):
        """Entropies are those of all paths."""
        posteriors = [paths / paths.sum() for paths in map(self.paths, range(len(self.ids_BT)))]
        assert_close(self.ask("entropy"), torch.stack([torch.special.entr(each).sum() for each in posteriors]))

    def assert_draws_agree(self, draws, near):
        """States side by side are drawn about as often as they are probable."""
        states = len(self.start_S)
        drawn = self.ask("sample_posterior", draws, generator=torch.Generator().manual_seed(0))
        for row in range(len(self.ids_BT)):
            every = self.paths(row)
            for place in range(every.ndim - 1):
                wanted = every.reshape(states**place, states**2, -1).sum((0, 2)) / every.sum()
                pair = drawn[row, :, place] * states + drawn[row, :, place + 1]
                found = torch.bincount(pair, minlength=states**2) / draws
                assert_close(found.double(), wanted, atol=near, rtol=0)

    def assert_beliefs_agree(self):
        """Beliefs after each token are those of all paths up to there."""
        found = self.ask("filter")
        for row, length in enumerate(self.lengths_B.tolist()):
            for end in range(self.cut + 1, length + 1):
                every, at = self.paths(row, end), (row, end - self.cut - 1)
                belief = torch.zeros_like(self.start_S).index_add(0, found.states_BTS[at], found.belief_BTS[at])
                assert_close(belief, every.view(-1, len(belief)).sum(0) / every.sum())

    def assert_next_words_agree(self):
        """The next word is that of every way to fill the gaps before it."""
        found, words = self.model.next_token(self.ask("score")[1]).exp(), len(self.emission_VS)
        for row, length in enumerate(self.lengths_B.tolist()):
            ways = every_way(self.ids_BT[row, :length], self.missing_BT[row, :length], words)
            more = [torch.nn.functional.pad(ways, (0, 1), value=word) for word in range(words)]
            wanted = torch.stack([chance(self.model, each) for each in more])
            assert_close(found[row], wanted / chance(self.model, ways))
