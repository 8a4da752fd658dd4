"""The plain HMM that states with a memory of words are: over all pairs of the last words and a state."""

import itertools

import torch

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
