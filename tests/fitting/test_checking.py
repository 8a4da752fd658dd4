import numpy as np
import pytest

from trellis.errors import InputError, TrellisError
from trellis.fitting.checking import as_array, checked_lengths, integers, is_missing, one_kind, sequences_of


@pytest.mark.parametrize(
    ("array", "lengths", "wanted"),
    [
        (np.array([3, 1, 2]), None, [[3, 1, 2]]),
        (np.array([3, 1, 2], dtype=np.uint8), [1, 2], [[3], [1, 2]]),
        (np.array([[3], [1], [2]]), np.array([2, 1]), [[3, 1], [2]]),
        (np.array([[3, 1], [2, 0]]), None, [[3, 1], [2, 0]]),
        (np.array([[3, 1, 2]]), None, [[3, 1, 2]]),
    ],
)
def test_arrays_are_cut_into_sequences(array, lengths, wanted):
    found = sequences_of("data", array, lengths)
    assert [one.tolist() for one in found] == wanted
    assert {one.dtype for one in found} == {np.dtype(np.int64)}


@pytest.mark.parametrize(
    ("array", "lengths", "said"),
    [
        (np.array([0.5, 1.0]), None, "data holds floats where whole numbers belong"),
        (np.array([1.0, 2.0]), None, r"cast them by astype\(int\) if they are whole"),
        (np.array([1.0, np.nan]), None, "data holds NaN or infinity"),
        (np.array([1.0, np.inf]), None, "data holds NaN or infinity"),
        (np.array([True, False]), None, "data holds truth values"),
        (np.array([1j]), None, "data holds complex numbers"),
        (np.array([1, -1]), None, "data holds -1, but symbols cannot be negative"),
        (np.array([1, 2**63], dtype=np.uint64), None, "too large for a symbol"),
        (np.zeros((2, 2, 2), dtype=int), None, r"data has shape \(2, 2, 2\)"),
        (np.array(3), None, r"data has shape \(\)"),
        (np.array([], dtype=int), None, r"data is empty, of shape \(0,\)"),
        (np.zeros((0, 3), dtype=int), None, r"data is empty, of shape \(0, 3\)"),
        (np.array([[1, 2], [3, 4]]), [2, 2], "lengths does not fit, since data has a sequence a row"),
        (np.array([1, 2, 3]), [1, 1], "lengths add up to 2, but data has 3 symbols"),
        (np.array([1, 2, 3]), [3, 0], "lengths holds 0 for sequence 1: leave empty sequences out"),
        (np.array([1, 2, 3]), [4, -1], "lengths holds -1 for sequence 1"),
        (np.array([1, 2, 3]), [1.5, 1.5], "lengths must be a list of whole numbers"),
        (np.array([1, 2, 3]), 3, "lengths must be a list of whole numbers"),
        (np.array([1, 2, 3]), [[1], [1, 1]], "lengths must be a list of whole numbers"),
        (np.array([1, 2, 3]), [None, 3], "lengths must be a list of whole numbers"),
    ],
)
def test_what_does_not_fit_is_a_value_error_that_names_the_argument(array, lengths, said):
    with pytest.raises(InputError, match=said) as caught:
        sequences_of("data", array, lengths)
    assert isinstance(caught.value, ValueError)
    assert isinstance(caught.value, TrellisError)


def test_lengths_of_nothing_are_one_sequence():
    assert checked_lengths(None, 7, "data").tolist() == [7]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["a", np.str_("b")], "strings"),
        ([1, np.int32(2)], "integers"),
        ([[1], (2,), np.array([3])], "sequences"),
    ],
)
def test_a_list_holds_one_kind(values, kind):
    assert one_kind("data", values) == kind


@pytest.mark.parametrize(
    ("values", "said"),
    [
        (["a", 1], "data mixes strings and whole numbers"),
        (["a", ["b"]], "data mixes lists and strings"),
        ([1, [2]], "data mixes lists and whole numbers"),
        (["a", None], r"data\[1\] is missing \(None\)"),
        (["a", float("nan")], r"data\[1\] is missing \(nan\)"),
        ([1, float("nan")], r"data\[1\] is missing \(nan\)"),
        ([0.5, 1.0], "data holds floats where whole numbers belong"),
        ([1, 0.5], "data mixes floats and whole numbers"),
        ([True, False], "data holds truth values"),
        ([b"a"], "data holds bytes"),
        ([{"text": "a"}], "data holds dictionaries"),
        ([object()], "data holds objects"),
        ([], "data holds nothing"),
    ],
)
def test_a_list_of_anything_else_is_refused(values, said):
    with pytest.raises(InputError, match=said):
        one_kind("data", values)


def test_what_stands_for_nothing():
    assert all(map(is_missing, [None, float("nan"), np.float32("nan")]))
    assert not any(map(is_missing, [0, 0.0, "", "nan"]))


def test_only_arrays_tensors_and_columns_are_arrays():
    assert as_array([1, 2]) is None
    assert as_array("ab") is None
    assert integers("data", np.array([2], dtype=np.int8)).dtype == np.int64
