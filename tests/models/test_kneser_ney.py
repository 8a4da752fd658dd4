import json
import math
from collections import Counter, defaultdict

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trellis.errors import TrellisError
from trellis.manifests import MANIFEST
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.text import MemoryCorpus, WordTokenizer, prepare

from .scoring import (
    assert_it_survives_the_disk,
    assert_padding_does_not_matter,
    assert_pieces_make_the_whole,
    total_probability,
)

EOS = 1
TEXTS = st.lists(st.integers(0, 4), min_size=1, max_size=60)


class Slow:
    """The formulas, with dictionaries and sentences as lists of words."""

    def __init__(self, ids, vocab_size, order, end):
        self.vocab_size, self.order, self.end = vocab_size, order, end
        seen = Counter()
        for history, word in self.histories(ids):
            for length in range(order):
                if length <= len(history):
                    seen[(*history[len(history) - length :], word)] += 1
        before = defaultdict(set)
        for gram in seen:
            if len(gram) > 1:
                before[gram[1:]].add(gram[0])
        self.counts = {gram: len(before[gram]) or count for gram, count in seen.items()}
        self.discounts = {length: self.discount(length) for length in range(1, order + 1)}

    def histories(self, ids):
        """Each word with the words of its sentence before it, the end of the one before that first of all."""
        history = [] if self.end is None else [self.end]
        for word in ids:
            yield tuple(history[-(self.order - 1) :]), word
            history = [self.end] if word == self.end else [*history, word]

    def discount(self, length):
        many = Counter(count for gram, count in self.counts.items() if len(gram) == length)
        if not all(many[k] for k in (1, 2, 3, 4)):
            return (0.0, 0.5, 1.0, 1.5)
        share = many[1] / (many[1] + 2 * many[2])
        found = [k - (k + 1) * share * many[k + 1] / many[k] for k in (1, 2, 3)]
        return (0.0, *found) if all(0 < d <= k for k, d in enumerate(found, 1)) else (0.0, 0.5, 1.0, 1.5)

    def prob(self, word, history):
        lower = self.prob(word, history[1:]) if history else 1 / self.vocab_size
        discount = self.discounts[len(history) + 1]
        followers = {gram[-1]: n for gram, n in self.counts.items() if gram[:-1] == history}
        if not followers:
            return lower
        total = sum(followers.values())
        left = sum(discount[min(n, 3)] for n in followers.values()) / total
        count = followers.get(word, 0)
        return (count - discount[min(count, 3)]) / total + left * lower

    def score(self, ids):
        return [math.log(self.prob(word, history)) for history, word in self.histories(ids)]


def fit(ids, order=3, end=EOS, vocab_size=5):
    return KneserNey.fit(KneserNeyConfig(vocab_size, order), np.array(ids), end, quiet=True)


@given(learnt=TEXTS, scored=TEXTS, order=st.integers(2, 5), end=st.sampled_from([None, EOS]))
def test_it_is_what_the_formulas_say(learnt, scored, order, end):
    slow, model = Slow(learnt, 5, order, end), fit(learnt, order, end)
    scores, _ = model.score(torch.tensor([scored]))
    assert scores[0].tolist() == pytest.approx(slow.score(scored), abs=1e-12)


def zipf(size=4000, vocab_size=40):
    return np.minimum(np.random.default_rng(0).zipf(1.3, size) - 1, vocab_size - 1)


@pytest.mark.parametrize("end", [None, EOS])
def test_enough_text_has_discounts_of_its_own(end):
    slow, model = Slow(zipf().tolist(), 40, 4, end), fit(zipf(), 4, end, 40)
    assert sum(slow.discounts[length] != (0.0, 0.5, 1.0, 1.5) for length in slow.discounts) >= 3
    scored = np.random.default_rng(1).integers(40, size=50).tolist()
    assert model.score(torch.tensor([scored]))[0][0].tolist() == pytest.approx(slow.score(scored), abs=1e-12)


def test_probabilities_sum_to_one_after_contexts_seen_and_unseen():
    model = fit(zipf()[:400], 4, EOS, 60)  # twenty words were never seen at all
    states = [None]
    for begin in range(0, 40, 2):
        states.append(model.score(torch.from_numpy(zipf()[None, begin : begin + 5].copy()))[1])
        states.append(model.score(torch.randint(60, (1, 3), generator=torch.Generator().manual_seed(begin)))[1])
    assert [total_probability(model, state, 60) for state in states] == pytest.approx([1.0] * len(states), abs=1e-12)


@pytest.mark.parametrize("end", [None, EOS])
def test_the_state_is_all_there_is_to_know(end):
    model = fit(zipf(), 5, end, 40)
    assert_pieces_make_the_whole(model, 40, tolerance=1e-15)
    assert_padding_does_not_matter(model, 40, tolerance=1e-15)


def test_a_new_sentence_knows_nothing_of_the_last():
    model = fit(zipf(), 5, EOS, 40)
    first, _ = model.score(torch.tensor([[7, 3, EOS, 2, 5]]))
    second, _ = model.score(torch.tensor([[2, 5]]))
    assert torch.equal(first[:, 3:], second)
    running, _ = fit(zipf(), 5, None, 40).score(torch.tensor([[7, 3, EOS, 2, 5]]))
    assert not torch.allclose(first[:, 3:], running[:, 3:])


def test_it_survives_the_disk(tmp_path):
    model = fit(zipf(), 5, EOS, 40)
    assert_it_survives_the_disk(model, 40, tmp_path)
    again = KneserNey.from_pretrained(tmp_path / "model")
    assert {name: b.dtype for name, b in again.named_buffers()} == {name: b.dtype for name, b in model.named_buffers()}


@pytest.mark.parametrize("change", [{"order": 4}, {"order": 6}, {"vocab_size": 41}])
def test_tables_of_another_shape_are_refused(change, tmp_path):
    fit(zipf(), 5, EOS, 40).save_pretrained(tmp_path / "model")
    path = tmp_path / "model" / "config.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | change))
    (path.parent / MANIFEST).unlink()
    with pytest.raises(TrellisError, match=r"do not fit its config\.json"):
        KneserNey.from_pretrained(tmp_path / "model")


def test_a_text_brings_its_own_end(tmp_path):
    words = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])
    text = prepare(MemoryCorpus("text", ("a b", "b c a", "c")), words, tmp_path, quiet=True)
    config = KneserNeyConfig(5)
    assert int(KneserNey.for_text(config, text, words).end) == EOS
    assert int(KneserNey.for_text(KneserNeyConfig(5, sentences=False), text, words).end) == -1


def test_what_cannot_be_counted():
    with pytest.raises(TrellisError, match="no tokens to count"):
        fit([])
    with pytest.raises(TrellisError, match="token id 9 is outside"):
        fit([1, 9])
    with pytest.raises(TrellisError, match="token id 9 is outside"):
        fit([1, 2]).score(torch.tensor([[9]]))
    with pytest.raises(TrellisError, match=r"model.order must lie between 2 and 9, not 1"):
        KneserNeyConfig(5, order=1)
