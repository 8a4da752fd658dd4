"""The words at gaps: as scoring every word there says, the other gaps summed over."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.models import HMM, HMMConfig, questions

from .makers import DENSE, VOCABULARY, every_kind, make_kind, random_ids

# Gaps at the beginning, at the end, side by side, throughout and not at all; and a row without tokens.
LENGTHS = torch.tensor([6, 2, 1, 5, 4, 0])
GAPS = {0: [0, 3, 4], 1: [1], 2: [0], 3: [], 4: [0, 1, 2, 3], 5: []}
MISSING = torch.tensor([[time in GAPS[row] for time in range(6)] for row in range(6)])
PLACES = [(row, place) for row, places in GAPS.items() for place in places]


def by_scoring(model, ids, missing, state, row, place, words):
    """log p(word at a gap | the rest): the text scored with each word there, divided by the sum."""
    size = int(LENGTHS[row])
    texts, gaps = ids[row, :size].expand(words, -1).clone(), missing[row, :size].expand(words, -1).clone()
    texts[:, place], gaps[:, place] = torch.arange(words), False
    begin = None if state is None else state[row].expand(words, -1)
    return model.score(texts, begin, missing_BT=gaps)[0].sum(1).log_softmax(0)


def check(model, words, carried):
    ids = random_ids(6, 6, words)
    ids[MISSING | (torch.arange(6) >= LENGTHS[:, None])] = 10**6  # padding and gaps hold any id
    state = None
    with torch.no_grad():
        if carried:  # from a gap, so that every state carries belief
            gap = torch.tensor([[False, True]]).expand(6, -1)
            _, state = model.score(random_ids(6, 2, words, seed=5), missing_BT=gap)
        found = model.fill(ids, MISSING, state, LENGTHS)
        assert list(zip(found.row_N.tolist(), found.place_N.tolist(), strict=True)) == PLACES
        for number, (row, place) in enumerate(PLACES):
            want = by_scoring(model, ids.masked_fill(MISSING, 0), MISSING, state, row, place, words)
            assert_close(found.log_prob_NV[number], want, rtol=1e-9, atol=1e-9)
    return found


@every_kind
@pytest.mark.parametrize("carried", [False, True])
def test_each_gap_is_what_scoring_every_word_says(kind, carried):
    found = check(make_kind(**kind).eval(), VOCABULARY, carried)
    assert_close(found.log_prob_NV.exp().sum(1), torch.ones(len(PLACES), dtype=torch.float64))


def remembering(memory=1):
    parts = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 3}
    model = HMM(HMMConfig(5, 4, memory=memory, **parts), seed=0).double().eval()
    with torch.no_grad():
        model.memory.words.normal_(generator=torch.Generator().manual_seed(1)).mul_(1.5)
    return model


@pytest.mark.parametrize("carried", [False, True])
def test_states_that_remember_the_word_of_the_gap(carried):
    check(remembering(), 5, carried)


def test_states_that_remember_two_words():
    check(remembering(memory=2), 5, carried=False)


def test_a_memory_of_two_words_fills_the_end():
    model, ids = remembering(memory=2), random_ids(1, 3, 5)
    found = model.fill(ids, torch.tensor([[False, False, True]]))
    _, state = model.score(ids[:, :2])
    assert_close(found.log_prob_NV, model.next_token(state))


def test_rows_are_asked_a_few_at_a_time_where_there_are_very_many_states(monkeypatch):
    model, ids = make_kind(support="brown").eval(), random_ids(6, 6, VOCABULARY)
    whole = model.fill(ids, MISSING, lengths_B=LENGTHS)
    monkeypatch.setattr(questions, "BELIEFS", 1)
    for ours, theirs in zip(model.fill(ids, MISSING, lengths_B=LENGTHS), whole, strict=True):
        assert_close(ours, theirs)


def test_the_best_words_come_first():
    model = make_kind(**DENSE["dense table"]).eval()
    found = model.fill(random_ids(6, 6, VOCABULARY), MISSING, lengths_B=LENGTHS)
    probability_NK, word_NK = found.best(3)
    for probabilities, words, log_prob_V in zip(probability_NK, word_NK, found.log_prob_NV, strict=True):
        assert words.tolist() == log_prob_V.argsort(descending=True)[:3].tolist()
        assert_close(probabilities, log_prob_V[words].exp())
    assert found.best(1000)[1].shape == (len(PLACES), VOCABULARY)


def test_an_impossible_row_has_no_words():
    model = HMM(HMMConfig(3, states=2))
    model.set_tables(
        torch.tensor([1.0, 0.0]), torch.tensor([[1.0, 0.0], [0.0, 1.0]]), torch.tensor([[0.5, 0.5, 0.0], [0, 0, 1.0]])
    )
    found = model.eval().fill(torch.tensor([[2, 0], [1, 0]]), torch.tensor([[False, True]] * 2))
    assert bool((found.log_prob_NV[0] == -torch.inf).all())
    assert found.log_prob_NV[1].exp().tolist() == pytest.approx([0.5, 0.5, 0.0])


def test_nothing_to_fill():
    model, ids = make_kind(**DENSE["dense table"]).eval(), random_ids(2, 3, VOCABULARY)
    assert model.fill(ids, torch.zeros_like(ids, dtype=torch.bool)).log_prob_NV.shape == (0, VOCABULARY)
    with pytest.raises(TrellisError, match="nothing is missing"):
        model.fill(ids, None)


def test_it_says_how_much_there_is():
    model = make_kind(**DENSE["dense table"]).eval()
    assert repr(model.fill(torch.tensor([[0, 1]]), torch.tensor([[True, False]]))) == "Filled(1 gap, 11 words)"
