import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.automata import expression, subsets
from trellis.automata.subsets import joined, packed, unpacked
from trellis.errors import InputError


@given(st.integers(1, 200), st.integers(0, 2**32))
def test_sets_are_packed_and_unpacked(size, seed):
    flags = np.random.default_rng(seed).random((3, size)) < 0.5
    words = packed(flags)
    assert words.shape == (3, -(-size // 64))
    np.testing.assert_array_equal(unpacked(words)[:, :size], flags)
    assert not unpacked(words)[:, size:].any()
    assert [int(word) & 1 for word in words[:, 0]] == flags[:, 0].tolist()


@given(st.integers(1, 130), st.integers(0, 2**32))
def test_joined_is_the_union_of_the_members(size, seed):
    random = np.random.default_rng(seed)
    table = random.integers(0, 2**64, (size, 1), np.uint64)
    flags = random.random((3, size)) < np.array([[0.0], [0.1], [0.9]])
    expected = [[np.bitwise_or.reduce(table[members, 0], initial=np.uint64(0))] for members in flags]
    np.testing.assert_array_equal(joined(table, packed(flags)), np.array(expected, np.uint64))


def test_small_pieces_make_the_same_automaton(monkeypatch):
    pattern = "(a|b)*a(a|b){3}|[é日]+"
    whole = expression(pattern)
    monkeypatch.setattr(subsets, "_PIECE", 1)
    pieces = expression(pattern)
    np.testing.assert_array_equal(whole.next_QC, pieces.next_QC)


def test_too_many_states_are_refused(monkeypatch):
    monkeypatch.setattr(subsets, "MOST_STATES", 30)
    with pytest.raises(InputError, match="smaller counts or fewer parts"):
        expression("(a|b)*a(a|b){6}")
