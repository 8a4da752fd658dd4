"""Questions about texts with gaps, of states that remember a word: answers are those of every way to fill the gaps."""

import pytest
import torch

from . import test_memory as dense
from . import test_memory_blocks as blocks
from .pairs import Gapped


def with_tables(kind):
    """A model, p(first state), p(word | state), p(next state | state, words), and texts of its words."""
    if kind.startswith("dense"):
        model = dense.model_of(memory_words=2 if "frequent" in kind else None)
        tables = model.log_emission().exp(), lambda words: dense.stepping(model, words)
        return model, model.log_start().exp(), *tables, dense.texts(batch=4)
    model = blocks.model_of(kind)
    tables = blocks.emission_of(model), lambda words: blocks.stepping(model, words)
    return model, model.log_start().exp(), *tables, blocks.texts(batch=4)


@pytest.fixture(params=[0, 2], ids=["from the start", "from a text"])
def cut(request):
    return request.param


@pytest.fixture(params=["dense", "dense, of two frequent words", *blocks.KINDS])
def gapped(request, cut):
    with torch.no_grad():
        return Gapped.of(*with_tables(request.param), cut)


def test_the_best_paths_over_gaps_are_the_best_of_all(gapped):
    gapped.assert_best_paths_agree()


def test_entropy_over_gaps_is_that_of_all_paths(gapped):
    gapped.assert_entropies_agree()


def test_states_over_gaps_are_drawn_as_often_as_they_are_probable(gapped):
    gapped.assert_draws_agree(4000, near=0.03)


def test_beliefs_over_gaps_are_those_of_all_paths(gapped):
    gapped.assert_beliefs_agree()


def test_the_next_word_after_gaps_is_that_of_every_way_to_fill_them(gapped):
    gapped.assert_next_words_agree()
