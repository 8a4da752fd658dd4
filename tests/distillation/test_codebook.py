"""Codebooks: centres by blocks, what is kept on disk, and labels as the nearest centre of the word's block."""

import numpy as np
import pytest
import torch

from trellis.distillation.codebook import Blocks, Codebook, Labeller, make
from trellis.distillation.reading import Reader
from trellis.distillation.settings import DistillSettings
from trellis.distillation.teachers import find_teacher
from trellis.errors import TrellisError
from trellis.models.supports import Support, partition, uniform_subsets

VOCABULARY, STATES = 300, 12


def reader_at(layer, llama, text, bpe):
    return Reader(find_teacher(str(llama), 0).open(layer), text.ids, bpe)


@pytest.fixture
def reader(llama, text, bpe):
    return reader_at(-1, llama, text, bpe)


def settings(**changes):
    return DistillSettings(teacher="any", points=40, iterations=8, restarts=2, **changes)


def three_blocks():
    support = partition(torch.arange(VOCABULARY) % 3, STATES, 3)
    shuffled = torch.randperm(STATES, generator=torch.Generator().manual_seed(1))
    return Blocks.of(Support(support.block_V, shuffled[support.states_MK]), VOCABULARY, STATES)


def slow_labels(book, blocks, states_NR, words):
    """The nearest centre one token at a time, in float64."""
    values = states_NR.double().numpy()
    if book.projection is not None:
        values = (values - book.projection.mean_R) @ book.projection.axes_RP.astype(np.float64)
    found = []
    for value, word in zip(values, words.tolist(), strict=True):
        allowed = [state for state in blocks.states_MK[blocks.block_V[word]] if book.used_S[state]]
        distances = [((value - book.centroids_SR[state]) ** 2).sum() for state in allowed]
        found.append(allowed[int(np.argmin(distances))] if allowed else -1)
    return found


@pytest.mark.parametrize("blocked", [False, True])
@pytest.mark.parametrize("pca", [None, 5])
def test_labels_are_the_nearest_centre_of_the_words_block(reader, tmp_path, blocked, pca):
    blocks = three_blocks() if blocked else Blocks.of(None, VOCABULARY, STATES)
    book = make(reader, blocks, settings(pca=pca), tmp_path, quiet=True)
    assert book.centroids_SR.shape == (STATES, pca or 16)
    assert book.used_S.all()
    position, states_NR = next(iter(reader.states(range(8))))
    words = torch.from_numpy(reader.ids[position].astype(np.int64))
    labels = Labeller(book, blocks)(states_NR, words)
    assert labels.tolist() == slow_labels(book, blocks, states_NR, words)
    assert len(set(labels.tolist())) > STATES // 2


def test_what_is_said_of_it(reader, tmp_path):
    book = make(reader, Blocks.of(None, VOCABULARY, STATES), settings(pca=5), tmp_path, quiet=True)
    assert not list(tmp_path.iterdir())  # the vectors are gone
    told = {name: value for name, value in book.about.items() if not name.endswith("seconds")}
    assert told == {
        "layer": -1, "teacher_width": 16, "dimensions": 5, "library": "faiss", "vectors": 480, "states": 12,
        "points_per_centroid": 40.0, "states_without_cluster": 0,
    }  # fmt: skip


def test_the_head_is_turned_but_not_moved(reader, tmp_path):
    dense = Blocks.of(None, VOCABULARY, STATES)
    plain = make(reader, dense, settings(), tmp_path, quiet=True)
    np.testing.assert_array_equal(plain.head_VR, reader.teacher.head_VR.numpy())
    turned = make(reader, dense, settings(pca=16), tmp_path, quiet=True)
    # Logits of centred states: the same in both spaces, as the axes are orthonormal.
    values = next(iter(reader.states(range(1))))[1].numpy()
    expected = (values - turned.projection.mean_R) @ plain.head_VR.T
    np.testing.assert_allclose(turned.projection(values) @ turned.head_VR.T, expected, atol=1e-4)


def test_words_spelt_out_have_no_head(llama, word_text, words, tmp_path):
    book = make(
        reader_at(-1, llama, word_text, words), Blocks.of(None, words.vocab_size, 6), settings(), tmp_path, True
    )
    assert book.head_VR is None


@pytest.mark.parametrize("pca", [None, 3])
def test_it_is_read_as_it_was_saved(reader, tmp_path, pca):
    book = make(reader, three_blocks(), settings(pca=pca), tmp_path, quiet=True)
    book.save(tmp_path)
    again = Codebook.load(tmp_path)
    for one, two in zip(book, again, strict=True):
        np.testing.assert_equal(one, two)
    (tmp_path / "centroids_SR.npy").write_bytes(b"cut")
    assert Codebook.load(tmp_path) is None
    assert Codebook.load(tmp_path / "nowhere") is None


def test_a_block_of_few_words_leaves_states_without_labels(llama, text, bpe, tmp_path):
    """Embeddings are as many as there are words, and block 1 has two words that occur and one that does not."""
    count_V = np.bincount(text.ids, minlength=VOCABULARY)
    seen, unseen = np.argsort(-count_V)[:2], int(np.argmin(count_V))
    block_V = torch.zeros(VOCABULARY, dtype=torch.int64)
    block_V[torch.tensor([*seen, unseen])] = 1
    block_V[unseen - 1 if count_V[unseen - 1] == 0 else int(np.flatnonzero(count_V == 0)[1])] = 2
    blocks = Blocks.of(partition(block_V, 12, 3), VOCABULARY, 12)
    book = make(reader_at(0, llama, text, bpe), blocks, settings(), tmp_path, quiet=True)
    assert book.used_S.tolist() == [True] * 4 + [True, True, False, False] + [False] * 4
    assert book.about["states_without_cluster"] == 6
    means = [book.centroids_SR[states].mean(axis=0) for states in (slice(4), slice(4, 6))]
    for nowhere in book.centroids_SR[8:]:  # the mean of all, which lies between the other blocks
        assert nowhere.any()
        assert np.linalg.norm(nowhere - means[0]) < np.linalg.norm(means[1] - means[0])
        assert np.linalg.norm(nowhere - means[1]) < np.linalg.norm(means[1] - means[0])
    words = torch.tensor([int(seen[0]), int(seen[1]), int(torch.nonzero(block_V == 2)[0])])
    states_NR = find_teacher(str(llama), 0).open(0).states(words[None])[0]
    labels = Labeller(book, blocks)(states_NR, words).tolist()
    assert sorted(labels[:2]) == [4, 5]
    assert labels[2] == -1


def test_fewer_vectors_than_clusters(llama, text, bpe, tmp_path):
    reader = reader_at(0, llama, text, bpe)
    kinds = len(np.unique(text.ids))
    with pytest.raises(TrellisError, match=rf"different vectors are too few for {kinds + 5} clusters: give more text"):
        make(reader, Blocks.of(None, VOCABULARY, kinds + 5), settings(), tmp_path, quiet=True)


def test_more_dimensions_than_the_teacher_has(reader, tmp_path):
    with pytest.raises(TrellisError, match=r"distill.pca=17 is more than the 16 dimensions of the teacher"):
        make(reader, Blocks.of(None, VOCABULARY, STATES), settings(pca=17), tmp_path, quiet=True)


def test_overlapping_subsets_are_refused():
    with pytest.raises(TrellisError, match="overlapping subsets"):
        Blocks.of(uniform_subsets(VOCABULARY, STATES, 4, seed=0), VOCABULARY, STATES)
