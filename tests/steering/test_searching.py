"""The k best texts are those that enumeration finds."""

import pytest
import torch
from torch.testing import assert_close

from trellis.steering import k_best, searching

from .worlds import ALL, accepted, automaton_of, every_kind, model_of, probability, read


@every_kind
@pytest.mark.parametrize("ends", [False, True])
@pytest.mark.parametrize("narrow", [False, True])
@pytest.mark.parametrize("seed", range(3))
def test_the_best_of_all_texts(kind, ends, narrow, seed, monkeypatch):
    if narrow:  # the beam misses what the search must find
        monkeypatch.setattr(searching, "BEAM", 1)
    model, automaton = model_of(kind, seed), automaton_of(seed + 1, ends=ends)
    for length, before, k in ((4, [], 5), (3, [3, 1], 1), (2, [0], 40)):
        carried = read(model, before)
        weights = sorted((probability(model, text, carried) for text in accepted(automaton, length)), reverse=True)
        found = k_best(model, automaton, length, k, carried)
        assert found.proven
        assert_close(torch.tensor(found.log_probs, dtype=torch.float64).exp(), torch.tensor(weights[:k]).double())
        assert len({tuple(text) for text in found.texts}) == len(found.texts)
        for text, log_prob in zip(found.texts, found.log_probs, strict=True):
            assert automaton.accepts(text)
            assert_close(torch.tensor(log_prob).exp(), torch.tensor(probability(model, tuple(text), carried)))


def test_a_search_that_is_cut_short_says_so(monkeypatch):
    monkeypatch.setattr(searching, "BEAM", 1)
    monkeypatch.setattr(searching, "EXPANSIONS", 1)
    found = k_best(model_of("scalar"), ALL, 5, 3)
    assert not found.proven
    assert len(found.texts) == 3


def test_nothing_is_found_where_nothing_can_be():
    found = k_best(model_of("scalar"), ~ALL, 3, 2)
    assert found.texts == []
    assert found.proven


def test_no_more_texts_than_there_are():
    found = k_best(model_of("scalar"), ALL, 1, 10)
    assert sorted(found.texts) == [[0], [1], [2], [3]]


def test_a_text_of_no_tokens():
    assert k_best(model_of("scalar"), ALL, 0, 1).texts == [[]]
