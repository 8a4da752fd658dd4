import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trellis.estimator import sequences
from trellis.estimator.sequences import batches

LENGTHS = st.lists(st.integers(1, 40), min_size=1, max_size=12)


@given(LENGTHS, st.integers(1, 5))
def test_every_row_is_in_one_batch_at_its_place_in_its_sequence(lengths, states):
    values = np.arange(sum(lengths)) * 10
    cut = np.split(values, np.cumsum(lengths)[:-1])
    seen = []
    for batch in batches(np.array(lengths), states):
        rows = zip(batch.sequences_B, batch.of(values), batch.lengths_B, strict=True)
        for sequence, row, length in rows:
            assert row[:length].tolist() == cut[sequence].tolist()
            seen.append(sequence)
    assert sorted(seen) == list(range(len(lengths)))


@given(LENGTHS)
def test_no_sequence_is_padded_to_more_than_twice_its_length(lengths):
    for batch in batches(np.array(lengths), 3):
        assert batch.place_BT.shape[1] <= 2 * int(batch.lengths_B.min())


@given(LENGTHS)
def test_what_is_put_back_is_what_was_taken(lengths):
    values, found = np.random.RandomState(0).rand(sum(lengths)), np.full(sum(lengths), np.nan)
    for batch in batches(np.array(lengths), 3):
        batch.put(torch.where(torch.from_numpy(batch.inside_BT), batch.of(values), torch.nan), found)
    assert (found == values).all()


def test_a_batch_is_no_larger_than_memory_allows(monkeypatch):
    monkeypatch.setattr(sequences, "AT_ONCE", 60)
    made = batches(np.array([5] * 9 + [100]), 3)
    assert [batch.place_BT.shape for batch in made] == [(1, 100), (4, 5), (4, 5), (1, 5)]
    assert pytest.approx(109 + 36) == sum(int(batch.lengths_B.sum()) for batch in made)
