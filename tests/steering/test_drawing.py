"""Draws are distributed as p(text | the constraint is met), and every one meets it."""

import collections

import pytest
import torch

from trellis.steering import Messages, drawing, sample

from .worlds import ALL, accepted, automaton_of, every_kind, model_of, probability, read


def drawn(model, automaton, length, count, before=()):
    messages = Messages(model, automaton, length)
    carried = read(model, list(before))
    carried = None if carried is None else carried.expand(count, -1)
    generator = torch.Generator().manual_seed(1)
    return sample(messages, model.predicted(count, carried), torch.full((count,), automaton.start), generator)


def texts(found):
    return [tuple(row[:size]) for row, size in zip(found.tokens_BT.tolist(), found.lengths_B.tolist(), strict=True)]


@every_kind
@pytest.mark.parametrize("ends", [False, True])
def test_texts_come_as_often_as_they_should(kind, ends, monkeypatch):
    monkeypatch.setattr(drawing, "AT_ONCE", 700)  # several parts of the rows
    model, automaton, before, count = model_of(kind), automaton_of(5, ends=ends), [0, 2], 4_000
    weight = {text: probability(model, text, read(model, before)) for text in accepted(automaton, 4)}
    total = sum(weight.values())
    seen = collections.Counter(texts(drawn(model, automaton, 4, count, before)))
    assert seen.keys() <= weight.keys()
    expected = {text: count * one / total for text, one in weight.items()}
    often = [text for text, one in expected.items() if one >= 5]
    squares = sum((seen[text] - expected[text]) ** 2 / expected[text] for text in often)
    # A χ² of n degrees of freedom is n on average, with a standard deviation of √2n.
    assert squares < len(often) + 5 * (2 * len(often)) ** 0.5
    assert len(often) > 3


@every_kind
def test_the_states_are_those_that_could_emit_the_texts(kind):
    """Given a text, its states are drawn from the posterior."""
    model, automaton, count = model_of(kind), automaton_of(2), 4_000
    found = drawn(model, automaton, 3, count)
    text, often = collections.Counter(texts(found)).most_common(1)[0]
    rows = [row for row, one in enumerate(texts(found)) if one == text]
    posterior_TS = model.smooth(torch.tensor([text])).posterior_BTS[0]
    states_TJ = model.smooth(torch.tensor([text])).states_BTS[0]
    for t in range(3):
        for state, chance in zip(states_TJ[t].tolist(), posterior_TS[t].tolist(), strict=True):
            share = (found.states_BT[rows, t] == state).double().mean()
            assert abs(float(share) - chance) < 5 * (chance * (1 - chance) / often) ** 0.5 + 1e-3


def test_what_cannot_be_met_has_no_tokens():
    found = drawn(model_of("scalar"), ~ALL, 4, 3)
    assert found.lengths_B.tolist() == [0, 0, 0]
    assert (found.tokens_BT == -1).all()


def test_rows_may_stand_at_different_places_of_the_automaton():
    model, automaton = model_of("low-rank"), automaton_of(4)
    messages = Messages(model, automaton, 3)
    state_B = torch.arange(automaton.states).repeat_interleave(50)
    found = sample(messages, model.predicted(len(state_B), None), state_B, torch.Generator().manual_seed(0))
    for state, text in zip(state_B.tolist(), texts(found), strict=True):
        possible = accepted(automaton, 3, state)
        assert text in possible or (text == () and not possible)
