"""Gaps where more than a word is remembered: answers are those of the plain HMM over all pairs, or of every way."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError

from . import test_memory as dense
from . import test_memory_blocks as blocks
from .pairs import every_way, pairs_of
from .test_counted_ngrams import counting

LENGTHS = torch.tensor([5, 5, 4, 3, 0, 1])
MISSING = torch.tensor(
    [[0, 1, 0, 1, 0], [1, 0, 0, 0, 0], [0, 1, 1, 0, 1], [0, 0, 0, 0, 0], [1, 0, 0, 0, 0], [1, 1, 0, 0, 0]]
).bool()


def texts(words, seed=0, time=5):
    return torch.randint(words, (6, time), generator=torch.Generator().manual_seed(seed))


def over_all_states(found_BTS, states_BTS, states):
    return found_BTS.new_zeros(*found_BTS.shape[:2], states).scatter_add(2, states_BTS, found_BTS)


@pytest.fixture(params=["dense, two words", "dense, two frequent words", "hierarchical", "low_rank"])
@torch.no_grad()
def both(request):
    """A model that remembers two words, and the plain HMM over pairs of them and a state."""
    if request.param.startswith("dense"):
        model = dense.model_of(2, memory_words=2 if "frequent" in request.param else None)
        return model, dense.pairs(model)
    model = blocks.model_of(request.param, 2, support=blocks.SMALL)
    start, emission = model.log_start().exp(), blocks.emission_of(model)
    return model, pairs_of(2, start, emission, lambda context: blocks.stepping(model, context))


@pytest.fixture(
    params=[("brown", 2, 1, 0), ("brown", 3, 1, 4), ("brown", 3, 2, 3), ("dense", 3, 1, 0), ("dense", 3, 1, 4)],
    ids=lambda p: f"{p[0]}, {p[1]}-grams, memory {p[2]}, cache {p[3]}",
)
def counted(request):
    support, order, memory, cache = request.param
    return counting(order, memory, cache, support=support)


def test_scores_are_those_of_the_pairs_token_by_token(both):
    ids = texts(both[0].config.vocab_size).masked_fill(MISSING, 10**9)  # whatever stands there
    (ours, _), (theirs, _) = (one.score(ids, None, LENGTHS, MISSING) for one in both)
    assert_close(ours, theirs.detach())
    assert bool((ours < 0).any())


def test_beliefs_are_those_of_the_pairs(both):
    ids, states = texts(both[0].config.vocab_size), both[0].config.states
    for question, name in (("filter", "belief_BTS"), ("smooth", "posterior_BTS")):
        ours, theirs = (getattr(one, question)(ids, None, LENGTHS, MISSING) for one in both)
        found = over_all_states(getattr(ours, name), ours.states_BTS, states)
        assert_close(found, getattr(theirs, name).unflatten(2, (-1, states)).sum(2))
        assert_close(ours.log_prob_BT, theirs.log_prob_BT)


def test_words_for_gaps_are_those_of_the_pairs(both):
    model, _ = both
    ours, theirs = (one.fill(texts(model.config.vocab_size), MISSING, None, LENGTHS) for one in both)
    assert_close(ours, theirs)
    assert len(ours.row_N) == 6


def test_a_text_goes_on_after_a_gap_that_is_no_longer_remembered(both):
    model, twin = both
    ids, more = texts(model.config.vocab_size)[:2], texts(model.config.vocab_size, seed=1)[:2]
    missing = torch.tensor([[0, 1, 1, 0, 0], [0, 0, 0, 0, 0]]).bool()
    states = [one.score(ids, None, None, missing)[1] for one in both]
    assert_close(*(one.score(more, state)[0] for one, state in zip(both, states, strict=True)))
    assert_close(model.next_token(states[0]), twin.next_token(states[1]))
    assert_close(*(one.score(more, state, None, missing)[0] for one, state in zip(both, states, strict=True)))


def test_scores_are_those_of_every_way(counted):
    model = counted
    ids = texts(blocks.WORDS)
    found, _ = model.score(ids, None, LENGTHS, MISSING)
    for row, length in enumerate(LENGTHS.tolist()):
        for end in range(1, length + 1):
            ways = every_way(ids[row, :end], MISSING[row, :end], blocks.WORDS)
            wanted = model.score(ways)[0].sum(1).logsumexp(0)
            assert_close(found[row, :end].sum(), wanted.detach())
    assert not found[MISSING].any()


def test_beliefs_and_words_are_those_of_every_way(counted):
    model, row = counted, 0
    ids, words = texts(blocks.WORDS), blocks.WORDS
    filtered, smoothed = model.filter(ids, None, LENGTHS, MISSING), model.smooth(ids, None, LENGTHS, MISSING)
    filled = model.fill(ids, MISSING, None, LENGTHS)
    ways = every_way(ids[row], MISSING[row], words)
    chance_N5 = model.score(ways)[0].cumsum(1).exp().detach()
    each = model.smooth(ways)
    posterior = over_all_states(each.posterior_BTS, each.states_BTS, blocks.STATES)
    wanted = torch.einsum("n,nts->ts", chance_N5[:, -1] / chance_N5[:, -1].sum(), posterior)
    assert_close(over_all_states(smoothed.posterior_BTS, smoothed.states_BTS, blocks.STATES)[row], wanted)
    each = model.filter(ways)
    belief = over_all_states(each.belief_BTS, each.states_BTS, blocks.STATES)
    wanted = torch.einsum("nt,nts->ts", chance_N5 / chance_N5.sum(0), belief)
    assert_close(over_all_states(filtered.belief_BTS, filtered.states_BTS, blocks.STATES)[row], wanted)
    for gap, place in enumerate((1, 3)):
        wanted = torch.stack([chance_N5[ways[:, place] == word, -1].sum() for word in range(words)])
        assert_close(filled.log_prob_NV[gap].exp(), wanted / wanted.sum())
    assert_close(filled.log_prob_NV.exp().sum(1), torch.ones(6, dtype=torch.float64))


def test_a_gap_of_which_nothing_else_is_known_has_the_first_word(counted):
    found = counted.fill(torch.zeros(1, 1, dtype=torch.int64), torch.ones(1, 1, dtype=torch.bool))
    assert_close(found.log_prob_NV, counted.next_token())


def test_a_gap_at_the_end_has_the_next_word(counted):
    ids, state = texts(blocks.WORDS), counted.score(texts(blocks.WORDS, seed=1))[1]
    gap = torch.zeros_like(ids, dtype=torch.bool).index_fill(1, torch.tensor([4]), 1)
    found = counted.fill(ids, gap, state)
    assert_close(found.log_prob_NV, counted.next_token(counted.score(ids[:, :4], state)[1]))


def test_ways_may_be_tried_a_few_at_a_time(counted, monkeypatch):
    ids = texts(blocks.WORDS)
    at_once = counted.score(ids, None, LENGTHS, MISSING), counted.smooth(ids, None, LENGTHS, MISSING)
    monkeypatch.setattr("trellis.models.enumerated_gaps.AT_ONCE", 5)
    assert_close((counted.score(ids, None, LENGTHS, MISSING), counted.smooth(ids, None, LENGTHS, MISSING)), at_once)


def test_a_model_that_learns_answers_as_it_does_in_use(counted):
    ids = texts(blocks.WORDS)
    in_use = counted.score(ids, None, LENGTHS, MISSING)
    counted.train()
    assert_close(counted.score(ids, None, LENGTHS, MISSING), in_use)
    assert counted.training


def test_an_impossible_text_with_a_gap_is_impossible_from_there_on():
    model = dense.model_of(2, emission="scalar")
    with torch.no_grad():
        model.emission.table[1] = -torch.inf
    ids, missing = torch.tensor([[0, 2, 3, 1, 0]]), torch.tensor([[0, 1, 0, 0, 0]]).bool()
    found, _ = model.score(ids, None, None, missing)
    assert found[0, :3].isfinite().all()
    assert found[0, 3:].tolist() == [-torch.inf] * 2
    assert (model.fill(ids, missing).log_prob_NV == -torch.inf).all()
    assert not model.smooth(ids, None, None, missing).posterior_BTS.any()
    possible = model.fill(ids[:, :3], missing[:, :3]).log_prob_NV
    assert possible[0, 1] == -torch.inf
    assert_close(possible.exp().sum(), torch.ones((), dtype=torch.float64))


def test_more_ways_than_can_be_tried_are_refused(counted, monkeypatch):
    monkeypatch.setattr("trellis.models.enumerated_gaps.LARGEST", blocks.WORDS**2 - 1)
    ids = texts(blocks.WORDS)
    counted.score(ids[1:2], None, None, MISSING[1:2])
    for question in (counted.score, counted.smooth):
        with pytest.raises(TrellisError, match="2 gaps has 36 ways to fill them"):
            question(ids[:1], None, None, MISSING[:1])
    with pytest.raises(TrellisError, match="leave fewer gaps in a text, or ask a model with"):
        counted.fill(ids[:1], MISSING[:1])


@pytest.mark.parametrize("question", ["viterbi", "entropy", "k_best", "sample_posterior"])
def test_what_no_sum_over_ways_answers_is_refused(question, counted, both):
    more = {"k_best": (2,), "sample_posterior": (2,)}.get(question, ())
    for model in (counted, both[0]):
        ids = texts(model.config.vocab_size)
        with pytest.raises(TrellisError, match=r"score, filter, smooth and fill alone about texts"):
            getattr(model, question)(ids, *more, lengths_B=LENGTHS, missing_BT=MISSING)


@pytest.mark.parametrize("go_on", ["score", "next_token", "sample"])
def test_going_on_after_a_gap_that_is_remembered_is_refused(go_on, counted, both):
    for model in (counted, both[0]):
        ids = texts(model.config.vocab_size)[:1]
        _, state = model.score(ids, missing_BT=torch.tensor([[0, 0, 0, 0, 1]]).bool())
        given = {"score": (ids, state), "next_token": (state,), "sample": (1, 2, state)}[go_on]
        with pytest.raises(TrellisError, match="to go on after a gap"):
            getattr(model, go_on)(*given)


@pytest.mark.parametrize("question", ["score", "smooth", "viterbi", "entropy"])
def test_what_is_missing_past_the_end_of_a_row_is_no_gap(question, counted, both):
    for model in (counted, both[0]):
        ids, lengths = texts(model.config.vocab_size), torch.tensor([3, 5, 0, 1, 4, 2])
        padding = torch.arange(5) >= lengths[:, None]
        wanted = getattr(model, question)(ids, lengths_B=lengths)
        assert_close(getattr(model, question)(ids, lengths_B=lengths, missing_BT=padding), wanted)


def test_entropies_and_words_where_a_row_ends_in_a_gap(both):
    model, _ = both
    ids, lengths = texts(model.config.vocab_size), torch.tensor([3, 5, 1, 1, 4, 2])
    missing = torch.arange(5) == lengths[:, None] - 1
    assert_close(*(one.fill(ids, missing, None, lengths) for one in both))
    paths = model.k_best(ids, model.config.states**5, lengths_B=lengths, missing_BT=missing).log_prob_BK
    posterior = (paths - paths.logsumexp(1, keepdim=True)).exp()
    entropy = torch.special.entr(posterior).sum(1)
    assert_close(model.entropy(ids, lengths_B=lengths, missing_BT=missing), entropy)


def test_a_text_so_long_that_its_ways_do_not_fit_is_refused(counted, monkeypatch):
    monkeypatch.setattr("trellis.models.enumerated_gaps.NUMBERS", 5 * blocks.WORDS - 1)
    with pytest.raises(TrellisError, match="1 gap has 6 ways to fill them"):
        counted.score(texts(blocks.WORDS)[:1], None, None, MISSING[1:2])
