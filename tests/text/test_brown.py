import itertools

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.errors import TrellisError
from trellis.text.brown import Window, brown


def mutual_information(ids, clusters):
    """Σ p(c, d) log p(c, d) / (p(c) p(d)) over neighbouring clusters, word by word from the text."""
    of = {word: c for c, words in enumerate(clusters) for word in words}
    size = len(clusters)
    pairs, left, right = np.zeros((size, size)), np.zeros(size), np.zeros(size)
    for a, b in itertools.pairwise(ids):
        if a in of:
            left[of[a]] += 1
        if b in of:
            right[of[b]] += 1
        if a in of and b in of:
            pairs[of[a], of[b]] += 1
    total = len(ids) - 1
    return sum(
        pairs[c, d] / total * np.log(pairs[c, d] * total / (left[c] * right[d]))
        for c, d in zip(*pairs.nonzero(), strict=True)
    )


def slow_brown(ids, vocab_size, wanted):
    """The definition: add a word, try every merger, keep the best."""
    frequency = np.bincount(ids, minlength=vocab_size)
    clusters = []
    for word in sorted(range(vocab_size), key=lambda w: (-frequency[w], w)):
        clusters.append([word])
        if len(clusters) > wanted:
            tries = [merged(clusters, i, j) for i, j in itertools.combinations(range(wanted + 1), 2)]
            clusters = max(tries, key=lambda tried: mutual_information(ids, tried))
    return {frozenset(cluster) for cluster in clusters}


def merged(clusters, i, j):
    return [c for k, c in enumerate(clusters) if k not in (i, j)] + [clusters[i] + clusters[j]]


def chain(seed, vocab_size, length):
    """A text from a random Markov chain in which every word comes, and no two mergers cost the same."""
    generator = np.random.default_rng(seed)
    step = 0.8 * generator.dirichlet(np.full(vocab_size, 0.5), vocab_size) + 0.2 / vocab_size
    ids = [0]
    for _ in range(length):
        ids.append(int(generator.choice(vocab_size, p=step[ids[-1]])))
    return np.array(ids)


def groups(tree):
    return {frozenset(np.flatnonzero(tree.cluster_V == c).tolist()) for c in range(len(tree.paths))}


@settings(max_examples=25)
@given(st.integers(0, 10_000), st.integers(4, 10), st.integers(2, 4))
def test_it_is_the_definition(seed, vocab_size, clusters):
    ids = chain(seed, vocab_size, 1500)
    assert groups(brown(ids, vocab_size, clusters, quiet=True)) == slow_brown(ids, vocab_size, clusters)


@settings(max_examples=25)
@given(st.integers(0, 10_000))
def test_the_table_of_losses_stays_true_through_mergers(seed):
    ids, generator = chain(seed, 7, 400), np.random.default_rng(seed)
    pairs = np.zeros((7, 7))
    np.add.at(pairs, (ids[:-1], ids[1:]), 1.0)
    window = Window(7, len(ids) - 1.0)
    for word in range(7):
        there = np.arange(7) <= word
        window.add(word, pairs[word] * there, pairs[:, word] * there, pairs[word].sum(), pairs[:, word].sum())
    clusters = [[word] for word in range(7)]
    for _ in range(4):
        alive = [c for c, words in enumerate(clusters) if words]
        a, b = sorted(generator.choice(alive, 2, replace=False).tolist())
        before = mutual_information(ids, clusters)
        clusters[a], clusters[b] = clusters[a] + clusters[b], []
        assert window.losses()[a, b] == pytest.approx(before - mutual_information(ids, clusters), abs=1e-12)
        window.merge(a, b)


def test_words_that_keep_the_same_company_end_together():
    """Nouns and verbs take turns, articles come before nouns."""
    words = ["the", "a", "dog", "cat", "bird", "sees", "hears"]
    generator, text = np.random.default_rng(1), []
    for _ in range(800):
        text += [*("the", "a")[generator.integers(2) :][:1], ("dog", "cat", "bird")[generator.integers(3)]]
        text += [("sees", "hears")[generator.integers(2)]]
    tree = brown(np.array([words.index(word) for word in text]), 7, 3, quiet=True)
    assert groups(tree) == {frozenset({0, 1}), frozenset({2, 3, 4}), frozenset({5, 6})}


def test_paths_are_a_prefix_code_whose_order_is_the_clusters():
    tree = brown(chain(3, 12, 3000), 12, 6, quiet=True)
    assert list(tree.paths) == sorted(tree.paths)
    assert sum(2.0 ** -len(path) for path in tree.paths) == 1.0
    assert sorted(set(tree.cluster_V.tolist())) == list(range(6))


def test_types_that_never_come_get_a_cluster_too():
    tree = brown(np.array([0, 1, 2, 0, 1, 2, 0]), 5, 3, quiet=True)
    assert tree.cluster_V.min() == 0
    assert len(tree.cluster_V) == 5


@pytest.mark.parametrize(
    ("ids", "clusters", "message"),
    [([0, 1], 3, "2 types cannot make 3"), ([0, 1], 1, "ask for 2 to 2"), ([0], 2, "at least two")],
)
def test_what_cannot_be_clustered(ids, clusters, message):
    with pytest.raises(TrellisError, match=message):
        brown(np.array(ids), 2, clusters)
