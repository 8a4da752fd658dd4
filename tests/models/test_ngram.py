import math
from collections import Counter

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.models import Bigram, Unigram, ngram
from trellis.text import MemoryCorpus, WordTokenizer, prepare

V = 5
texts = st.lists(st.integers(0, V - 2), min_size=1, max_size=40).map(np.array)  # one word is never seen


def unigram_by_hand(text, word):
    return (text.tolist().count(word) + 1) / (len(text) + V)


def bigram_by_hand(text, context, word):
    pairs = Counter(zip(text.tolist(), text[1:].tolist(), strict=False))
    kinds = Counter(pairs.values())
    discount = kinds[1] / (kinds[1] + 2 * kinds[2]) if kinds[1] else 0.5
    after = {w: c for (v, w), c in pairs.items() if v == context}
    if not after:
        return unigram_by_hand(text, word)
    total = sum(after.values())
    kept = max(after.get(word, 0) - discount, 0) / total
    return kept + discount * len(after) / total * unigram_by_hand(text, word)


def every_next(model, contexts):
    """p(w | v), contexts × vocabulary; a context of −1 is none."""
    ids = torch.arange(V).repeat(len(contexts))[:, None]
    state = torch.tensor(contexts).repeat_interleave(V)[:, None]
    return model.score(ids, state)[0].exp().view(len(contexts), V)


@given(texts)
def test_probabilities_are_those_of_the_formula(text):
    found = every_next(Unigram.fit(text, V), [-1])
    assert_close(found, torch.tensor([[unigram_by_hand(text, w) for w in range(V)]], dtype=torch.float64))
    truth = [[bigram_by_hand(text, v, w) for w in range(V)] for v in range(V)]
    assert_close(every_next(Bigram.fit(text, V), list(range(V))), torch.tensor(truth, dtype=torch.float64))


@given(texts)
def test_they_sum_to_one_after_any_context(text):
    for model in (Unigram.fit(text, V), Bigram.fit(text, V)):
        found = every_next(model, [-1, *range(V)])
        assert bool((found > 0).all())
        assert_close(found.sum(1), torch.ones(V + 1, dtype=torch.float64))


def test_with_no_state_the_first_word_is_conditioned_on_nothing():
    text = np.array([0, 1, 0, 1, 0, 2])
    ids = torch.tensor([[1, 0]])
    log_prob, state = Bigram.fit(text, V).score(ids)
    assert log_prob[0].tolist() == pytest.approx(
        [math.log(unigram_by_hand(text, 1)), math.log(bigram_by_hand(text, 1, 0))]
    )
    assert state.tolist() == [[0]]
    assert state.dtype == torch.int64


@pytest.mark.parametrize("kind", [Unigram, Bigram])
def test_chunks_carry_the_state(kind):
    rng = np.random.default_rng(0)
    model = kind.fit(rng.integers(V, size=200), V)
    ids = torch.from_numpy(rng.integers(V, size=(3, 20)))
    whole, last = model.score(ids)
    parts, state = [], None
    for chunk in ids.split([1, 7, 3, 9], 1):
        part, state = model.score(chunk, state)
        parts.append(part)
    assert torch.equal(torch.cat(parts, 1), whole)
    assert torch.equal(state, last)
    assert torch.equal(last, ids[:, -1:])


@pytest.mark.parametrize("kind", [Unigram, Bigram])
def test_rows_may_be_ragged_and_even_empty(kind):
    rng = np.random.default_rng(1)
    model = kind.fit(rng.integers(V, size=200), V)
    ids, lengths = torch.from_numpy(rng.integers(V, size=(4, 6))), torch.tensor([6, 2, 0, 0])
    before = torch.tensor([[3], [-1], [2], [-1]])
    log_prob, state = model.score(ids, before, lengths)
    for row, length in enumerate(lengths.tolist()):
        alone, last = model.score(ids[row : row + 1, :length], before[row : row + 1])
        assert torch.equal(log_prob[row, :length], alone[0])
        assert torch.equal(state[row], last[0])
        assert not log_prob[row, length:].any()
    assert state.flatten().tolist() == [int(ids[0, 5]), int(ids[1, 1]), 2, -1]


def test_counting_in_pieces_is_counting_at_once(monkeypatch):
    text = np.random.default_rng(2).integers(V, size=101).astype(np.uint16)
    whole = Bigram.fit(text, V)
    monkeypatch.setattr(ngram, "CHUNK", 10)
    pieces = Bigram.fit(text, V)
    for name in ("key_N", "kept_N", "left_U"):
        assert torch.equal(getattr(pieces, name), getattr(whole, name))
    assert torch.equal(pieces.unigram.log_prob_V, whole.unigram.log_prob_V)


def test_only_pairs_that_were_seen_are_stored():
    text = np.tile(np.arange(50_000), 2)
    model = Bigram.fit(text, 50_000)
    assert len(model.key_N) == 50_001  # of 2.5 thousand million; and the sentinel
    assert float(model.score(torch.tensor([[8]]), torch.tensor([[7]]))[0].exp()) > 0.7


def test_an_id_file_is_as_good_as_an_array(tmp_path):
    words = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])
    file = prepare(MemoryCorpus("small", ("a b a", "c c a b")), words, tmp_path)
    truth = every_next(Bigram.fit(np.array(file.ids), V), [-1, *range(V)])
    assert torch.equal(every_next(Bigram.fit(file, V), [-1, *range(V)]), truth)


@pytest.mark.parametrize("kind", [Unigram, Bigram])
def test_ids_outside_the_vocabulary_are_refused(kind):
    with pytest.raises(TrellisError, match="token id 5 is outside the model's vocabulary of 5"):
        kind.fit(np.array([1, 5]), V)
    model = kind.fit(np.array([1, 2]), V)
    with pytest.raises(TrellisError, match="token id -1 "):
        model.score(torch.tensor([[-1]]))
    with pytest.raises(TrellisError, match="no tokens"):
        kind.fit(np.array([], dtype=np.int64), V)
