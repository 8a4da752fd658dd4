"""What is said of a next token is what adding it to the text would show."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.steering import Messages, NextTokens

from .worlds import WORDS, accepted, automaton_of, model_of, probability, read

PLAIN = ["scalar", "low-rank", "blocked"]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("seed", range(4))
def test_every_token_of_rows_at_every_place(kind, ends, seed):
    model, automaton, left = model_of(kind, seed), automaton_of(seed, ends=ends), 3
    state_B = torch.arange(automaton.states)
    carried = read(model, [1, 2])
    found = NextTokens(Messages(model, automaton, 5)).chances(
        model.predicted(1, carried).expand(len(state_B), -1), state_B, left
    )
    for state in state_B.tolist():
        for token in range(WORDS):
            texts = [text for text in accepted(automaton, left, state) if text and text[0] == token]
            joint = sum((probability(model, text, carried) for text in texts), 0.0)
            if state == automaton.end:  # nothing follows: whatever is said of it is never asked
                continue
            assert_close(float(found.log_joint_BV[state, token].exp()), joint, rtol=1e-9, atol=1e-12)
            alone = probability(model, (token,), carried)
            assert_close(float(found.log_met()[state, token].exp()), joint / alone, rtol=1e-9, atol=1e-12)


def test_no_chance_is_above_one():
    model, automaton = model_of("low-rank").float(), automaton_of(2)
    found = NextTokens(Messages(model, automaton, 40)).chances(model.predicted(1, None), torch.tensor([0]), 40)
    assert (found.log_met() <= 0).all()
    assert not found.log_met().isnan().any()


def test_states_that_remember_words_are_refused():
    with pytest.raises(TrellisError, match=r"without model\.memory"):
        NextTokens(Messages(model_of("memory"), automaton_of(0), 2))
