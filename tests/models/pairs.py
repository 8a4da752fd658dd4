"""The plain HMM that states with a memory of words are: over all pairs of the last words and a state."""

import itertools

import torch
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
    """Entropies of paths, the best path and the probabilities of the best few are those of that HMM, the `twin`."""
    states = model.config.states
    assert_close(model.entropy(ids, lengths_B=lengths), twin.entropy(ids, lengths_B=lengths))
    best, pairs_best = model.viterbi(ids, lengths_B=lengths), twin.viterbi(ids, lengths_B=lengths)
    assert_close(best.log_prob_B, pairs_best.log_prob_B)
    assert torch.equal(best.states_BT, torch.where(pairs_best.states_BT < 0, -1, pairs_best.states_BT % states))
    some, pairs_some = model.k_best(ids, 4, lengths_B=lengths), twin.k_best(ids, 4, lengths_B=lengths)
    assert_close(some.log_prob_BK, pairs_some.log_prob_BK)
