"""Predictions at all places of a batch are those of each text by itself, word by word."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.hf import prediction
from trellis.hf.prediction import Rows, not_begun, predictions, states_after

from ..models.makers import random_ids
from ..models.test_any_logits import KINDS, extreme
from .models import MAKERS, dense, enumerated, obvious, remembering

every_maker = pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS.keys())


def everywhere(model, ids_BT, there_BT=None):
    there_BT = torch.ones_like(ids_BT, dtype=torch.bool) if there_BT is None else there_BT
    rows, places_K = Rows.of(ids_BT, there_BT), torch.arange(ids_BT.shape[1])
    return predictions(model, rows, not_begun(model, len(ids_BT)), places_K)


@every_maker
def test_every_place_predicts_what_scoring_each_word_says(make):
    model = make()
    ids_BT = random_ids(2, 5, model.config.vocab_size)
    found_BTV, state = everywhere(model, ids_BT)
    for row in range(2):
        for t in range(5):
            assert_close(found_BTV[row, t], obvious(model, ids_BT[row, : t + 1].tolist()), atol=1e-7, rtol=0)
    assert_close(state, model.score(ids_BT)[1], check_dtype=False)


@pytest.mark.parametrize("kind", sorted(KINDS))
def test_every_place_of_an_extreme_model_predicts_what_its_text_up_to_there_does(kind):
    model, ids_BT = extreme(kind, 300.0, seed=2), random_ids(2, 5, 5)
    found_BTV, _ = everywhere(model, ids_BT)
    for t in range(5):
        with torch.no_grad():
            wanted_BV = model.next_token(model.score(ids_BT[:, : t + 1])[1])
        assert_close(found_BTV[:, t], wanted_BV, rtol=1e-5, atol=1e-3)


def test_a_dense_model_predicts_what_the_sum_over_all_paths_says():
    model = dense()
    text = [3, 0, 4, 4]
    found_BTV, _ = everywhere(model, torch.tensor([text]))
    for t in range(len(text)):
        assert_close(found_BTV[0, t], enumerated(model, text[: t + 1]), atol=1e-9, rtol=0)


@settings(max_examples=40)
@given(st.lists(st.lists(st.booleans(), min_size=6, max_size=6), min_size=1, max_size=3), st.sampled_from(list(MAKERS)))
def test_padding_may_stand_anywhere_and_is_not_there(there, name):
    model, there_BT = MAKERS[name](), torch.tensor(there)
    ids_BT = random_ids(len(there), 6, model.config.vocab_size, seed=3)
    hostile_BT = ids_BT.masked_fill(~there_BT, 10**9)
    found_BTV, state = everywhere(model, hostile_BT, there_BT)
    for row, kept in enumerate(there):
        text = []
        for t in range(6):
            text += [int(ids_BT[row, t])] if kept[t] else []
            assert_close(found_BTV[row, t], obvious(model, text), atol=1e-7, rtol=0)
        alone = model.score(torch.tensor([text], dtype=torch.long))[1]
        assert_close(state[row], alone[0], check_dtype=False)


@every_maker
@pytest.mark.parametrize("numbers", [1, 100])
def test_pieces_of_a_long_text_predict_what_the_whole_does(make, numbers, monkeypatch):
    model, there_BT = make(), torch.rand(3, 9, generator=torch.Generator().manual_seed(1)) < 0.7
    ids_BT = random_ids(3, 9, model.config.vocab_size)
    whole_BTV, whole_state = everywhere(model, ids_BT, there_BT)
    monkeypatch.setattr(prediction, "NUMBERS", numbers)
    pieces_BTV, state = everywhere(model, ids_BT, there_BT)
    assert_close(pieces_BTV, whole_BTV)
    assert_close(state, whole_state)


@every_maker
def test_states_after_each_token_are_those_of_one_step_at_a_time(make):
    model = make()
    ids_BT, lengths_B = random_ids(3, 4, model.config.vocab_size), torch.tensor([4, 0, 2])
    state = model.score(random_ids(3, 2, model.config.vocab_size, seed=5))[1].detach()
    rows = Rows(ids_BT, lengths_B, torch.zeros_like(ids_BT))
    after_BTN, last = states_after(model, rows, state)
    for row, length in enumerate(lengths_B.tolist()):
        one = state[row : row + 1]
        for t in range(length):
            one = model.score(ids_BT[row : row + 1, t : t + 1], one)[1]
            assert_close(after_BTN[row, t], one[0], check_dtype=False)
        assert_close(last[row], one[0], check_dtype=False)


def test_after_an_impossible_token_nothing_is_known_and_nothing_is_nan():
    model = dense()
    tables = model.tables()
    emission_SV = tables.emission_SV.clone()
    emission_SV[:, 2] = 0
    model.set_tables(tables.start_S, tables.transition_SS, emission_SV / emission_SV.sum(1, keepdim=True))
    found_BTV, _ = everywhere(model, torch.tensor([[0, 2, 1]]))
    assert found_BTV[0, 0, 2] == -torch.inf
    assert_close(found_BTV[0, 0].exp().sum().item(), 1.0)
    assert (found_BTV[0, 1:] == 0).all()
    assert found_BTV.log_softmax(-1)[0, [0, 1], [2, 1]].sum() == -torch.inf  # what is measured of such a text


def test_the_order_of_the_last_words_counts():
    model = remembering(2)
    found_BTV, _ = everywhere(model, torch.tensor([[2, 3], [3, 2]]))
    assert not torch.allclose(found_BTV[0, 1], found_BTV[1, 1], atol=1e-3)
