"""What is said of a next token is what adding it to the text would show."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.steering import Messages, NextTokens, next_tokens

from .worlds import WORDS, accepted, automaton_of, model_of, probability, read

PLAIN = ["scalar", "low-rank", "blocked"]


@pytest.mark.parametrize("kind", PLAIN)
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize(
    ("many", "few", "at_once"),
    [(99, 1 << 10, 64), (99, 1 << 10, 1), (99, 0, 64), (99, 5, 2), (1, 0, 64), (2, 1 << 10, 64)],
)
@pytest.mark.parametrize("seed", range(4))
def test_every_token_of_rows_at_every_place(kind, ends, many, few, at_once, seed, monkeypatch):
    monkeypatch.setattr(next_tokens, "MANY", many)  # groups of so many tokens are rows of the product with all
    monkeypatch.setattr(next_tokens, "FEW", few)  # groups of tokens are taken together, or each by itself
    monkeypatch.setattr(next_tokens, "AT_ONCE", at_once)
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


@pytest.mark.parametrize("kind", PLAIN)
def test_several_constraints_are_asked_as_each_by_itself(kind):
    model, left = model_of(kind), 3
    asked = []
    for seed, rows in ((0, 2), (1, 1), (2, 3)):
        automaton = automaton_of(seed)
        state_B = torch.arange(rows) % automaton.states
        predicted_BS = model.predicted(1, read(model, [seed])).expand(rows, -1)
        asked.append((NextTokens(Messages(model, automaton, left)), predicted_BS, state_B))
    for (ahead, predicted_BS, state_B), found in zip(asked, next_tokens.chances_of(asked, left), strict=True):
        want = ahead.chances(predicted_BS, state_B, left)
        assert_close(found.log_joint_BV, want.log_joint_BV)
        assert_close(found.log_token_BV, want.log_token_BV)


def test_a_class_without_tokens_is_no_group():
    model, automaton = model_of("low-rank"), automaton_of(3)
    more = replace(automaton, next_QC=np.pad(automaton.next_QC, ((0, 0), (0, 2)), constant_values=1))
    want, found = (
        NextTokens(Messages(model, one, 3)).chances(model.predicted(1, None), torch.tensor([0]), 3)
        for one in (automaton, more)
    )
    assert_close(found.log_joint_BV, want.log_joint_BV)
