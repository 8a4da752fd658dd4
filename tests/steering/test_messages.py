"""The probability that a constraint is met is the sum over all texts that meet it."""

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.automata import nothing, one_after_another
from trellis.steering import Messages

from .worlds import ALL, END, WORDS, accepted, automaton_of, every_kind, model_of, probability, read


def log_prob(model, automaton, length, carried=None, state=None):
    messages = Messages(model, automaton, length)
    start = torch.tensor([automaton.start if state is None else state])
    return messages.log_prob(model.predicted(1, carried), start, length)


@every_kind
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("seed", range(6))
def test_the_sum_over_all_texts(kind, ends, seed):
    model, automaton = model_of(kind, seed), automaton_of(seed, ends=ends)
    for length, before in ((0, [1]), (1, []), (3, [2, 0]), (4, [])):
        carried = read(model, before)
        want = sum(probability(model, text, carried) for text in accepted(automaton, length))
        assert_close(log_prob(model, automaton, length, carried).exp(), torch.tensor([want], dtype=torch.float64))


@every_kind
def test_what_is_certain_has_probability_one_and_never_more(kind):
    model = model_of(kind).float()
    for length in (1, 7, 60):
        found = log_prob(model, ALL, length)
        assert float(found) <= 0
        assert_close(found, torch.zeros(1), atol=1e-5, rtol=0)


def test_what_cannot_be_met_has_no_probability():
    assert float(log_prob(model_of("scalar"), ~ALL, 3)) == -torch.inf


def test_a_probability_that_no_float_holds_is_a_logarithm():
    """A text of 400 given tokens: e^-1,000 or so, beside states of the automaton with a probability near one."""
    model = model_of("low-rank").float()
    text = torch.randint(WORDS, (1, 400), generator=torch.Generator().manual_seed(0))
    automaton = one_after_another([np.arange(WORDS) == int(token) for token in text[0]], WORDS)
    with torch.no_grad():
        want = model_of("low-rank").score(text)[0].sum()
    assert want < -300
    assert_close(float(log_prob(model, automaton, 400)), float(want), rtol=1e-4, atol=0)


def test_one_state_of_the_automaton_asks_for_far_more_than_another():
    """Two hundred given tokens, or anything else than their first: neither is lost beside the other."""
    model = model_of("scalar").float()
    text = torch.randint(WORDS, (1, 200), generator=torch.Generator().manual_seed(1))
    given = one_after_another([np.arange(WORDS) == int(token) for token in text[0]], WORDS)
    other = one_after_another([np.arange(WORDS) != int(text[0, 0]), *[np.ones(WORDS, np.bool_)] * 199], WORDS)
    messages = Messages(model, given | other, 200)
    with torch.no_grad():
        log_prob_BT, carried = model.score(text[:, :1])
        rest = model.score(text[:, 1:], carried)[0].sum()
    state = torch.tensor([(given | other).run(text[0, :1].tolist())])
    assert_close(messages.log_prob(model.predicted(1, carried), state, 199), rest[None], rtol=1e-4, atol=0)
    first = torch.tensor([messages.automaton.start])
    want = (1 - log_prob_BT.exp()).log()[0]  # the given text adds nothing to speak of
    assert_close(messages.log_prob(model.predicted(1, None), first, 200), want, rtol=1e-4, atol=1e-5)


def test_after_the_end_nothing_is_asked():
    model, automaton = model_of("scalar"), automaton_of(3, ends=True)
    assert float(log_prob(model, automaton, 5, state=automaton.end)) == 0.0
    assert automaton.step(automaton.end, END) == automaton.end


def test_it_is_refused_in_one_sentence():
    model = model_of("scalar")
    with pytest.raises(TrellisError, match="length of 0 or more"):
        Messages(model, automaton_of(0), -1)
    with pytest.raises(TrellisError, match="does not fit in memory"):
        Messages(model, automaton_of(0), 10**9)
    with pytest.raises(TrellisError, match="tokenizer that was saved with the model"):
        Messages(model, nothing(WORDS + 1), 3)
