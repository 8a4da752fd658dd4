"""The sample that clusters are learnt from: evenly spread, by blocks, on disk."""

import numpy as np
import pytest
import torch

from trellis.distillation.reading import Reader
from trellis.distillation.teachers import find_teacher
from trellis.distillation.vectors import collect, spread


@pytest.fixture(scope="module")
def reader(llama, text, bpe):
    return Reader(find_teacher(str(llama), 0).open(0), text.ids, bpe)


@pytest.fixture(scope="module")
def vectors_V(llama):
    return find_teacher(str(llama), 0).open(0).states(torch.arange(300)[None])[0].numpy()


@pytest.mark.parametrize(("windows", "wanted"), [(10, 10), (10, 3), (7, 5), (1000, 999), (3, 8)])
def test_windows_are_distinct_and_at_equal_distances(windows, wanted):
    found = spread(windows, wanted, seed=4)
    assert len(set(found.tolist())) == len(found) == min(windows, wanted)
    assert found.min() >= 0
    assert found.max() < windows
    if len(found) > 1:
        assert np.diff(found).max() - np.diff(found).min() <= 1


def test_the_seed_moves_the_windows():
    assert spread(1000, 5, 1).tolist() == spread(1000, 5, 1).tolist() != spread(1000, 5, 2).tolist()


def test_a_dense_sample_is_the_states_of_whole_windows(reader, vectors_V, text, tmp_path):
    found = collect(reader, np.zeros(300, np.int64), 1, 200, 3, tmp_path / "file", quiet=True)
    assert found.values_NR.shape == (200, 16)
    assert isinstance(found.values_NR, np.memmap)
    windows = spread(reader.windows, 4, 3)
    read = np.concatenate([text.ids[64 * one : 64 * one + 64] for one in windows])
    rows = {vectors_V[word].tobytes() for word in read}
    assert {row.tobytes() for row in found.of(0)} <= rows


def test_of_each_block_at_most_its_share_of_its_words_alone(reader, vectors_V, text, tmp_path):
    block_V = np.arange(300) % 3
    found = collect(reader, block_V, 3, 240, 3, tmp_path / "file", quiet=True)
    read = np.concatenate([text.ids[64 * one : 64 * one + 64] for one in spread(reader.windows, 4, 3)])
    for block in range(3):
        words = {vectors_V[word].tobytes() for word in range(300) if block_V[word] == block}
        assert {row.tobytes() for row in found.of(block)} <= words
        assert len(found.of(block)) == min(80, int((block_V[read] == block).sum()))
