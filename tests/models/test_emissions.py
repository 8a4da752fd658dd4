"""Emissions of every parameterisation: each state normalised over its words, in any choice of words and states."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig
from trellis.models.lists import Listed

from .makers import (
    VOCABULARY,
    assert_same_gradients,
    every_config,
    every_kind,
    every_kind_with_blocks,
    gradients,
    make,
    make_kind,
)
from .slow_twin import slow_tables

WORDS = torch.tensor([0, 3, 4, 9])


def slow_columns(model):
    return slow_tables(model, model.everything_taking_part())[2]


@every_kind
def test_every_state_is_normalised_over_its_words(kind):
    model = make_kind(**kind)
    log_VK, lists_VK = model.log_emission(), torch.arange(model.config.states).expand(VOCABULARY, -1)
    if model.support is not None:
        lists_VK = model.support.lists()
    total_S = torch.zeros(model.config.states, dtype=torch.float64).scatter_add(
        0, lists_VK.flatten(), log_VK.exp().flatten()
    )
    assert_close(total_S, torch.ones_like(total_S))
    assert_close(log_VK, slow_columns(model).gather(1, lists_VK))
    assert_close(model.emission_table(), log_VK.exp())


@every_config
@pytest.mark.parametrize("states", [[0, 1, 2, 3], [1, 3], [2]])
def test_columns_of_some_words_and_states_are_those_of_all(config, states):
    """Also of states that dropout has left: a state's words are the same whoever else takes part."""
    model, states, words = make(config), torch.tensor(states), torch.tensor([0, 6, 2])
    weight = torch.rand(3, len(states), dtype=torch.float64)
    found, slow = model.emission.columns(model.encoder, states, words), slow_columns(model)[words][:, states]
    assert_close(found, slow)
    want = gradients(model, (slow * weight).sum())
    assert_same_gradients(gradients(model, (found * weight).sum()), want)


@every_kind_with_blocks
@pytest.mark.parametrize("dropped", [False, True])
def test_block_columns_of_some_words_are_those_of_all(kind, dropped):
    model = make_kind(**kind)
    blocks = model.block_V[WORDS].unique()
    lists = model.states_MK[blocks]
    lists = lists[:, 1:] if dropped else lists
    found = model.emission.block_columns(
        Listed(model.encoder, lists), model.support, blocks, WORDS, model.config.states
    )
    slow = slow_columns(model)[WORDS].gather(1, lists[torch.searchsorted(blocks, model.block_V[WORDS])])
    weight = torch.rand(found.shape, dtype=torch.float64)
    assert_close(found, slow)
    want = gradients(model, (slow * weight).sum())
    assert_same_gradients(gradients(model, (found * weight).sum()), want)


@pytest.mark.parametrize("kind", ["scalar", "low_rank"])
def test_logits_begin_with_unit_variance(kind):
    model = HMM(HMMConfig(400, 300, emission=kind, width=64), seed=0)
    if kind == "scalar":
        logits = model.emission.table
    else:
        logits = model.emission.words @ model.encoder.vectors("emitting", torch.arange(300)).T
    assert float(logits.detach().std()) == pytest.approx(1.0, abs=0.05)


def test_a_bias_is_there_if_it_was_asked_for():
    with_bias, without = (HMM(HMMConfig(7, 4, emission="low_rank", width=3, bias=bias)) for bias in (True, False))
    assert with_bias.emission.bias.tolist() == [0.0] * 7
    assert without.emission.bias is None
