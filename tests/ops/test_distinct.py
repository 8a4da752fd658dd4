import pytest
import torch

from trellis.ops.distinct import Distinct

LISTS = {
    "disjoint": torch.tensor([[3, 0, 5], [1, 6, 2]]),
    "overlapping": torch.tensor([[0, 3, 5], [3, 5, 6], [5, 1, 3], [2, 0, 5]]),
    "the same": torch.tensor([[2, 4], [2, 4], [2, 4]]),
    "twice in one": torch.tensor([[2, 4, 2]]),
    "none": torch.empty(0, 3, dtype=torch.int64),
}
lists = pytest.mark.parametrize("lists_NK", LISTS.values(), ids=LISTS.keys())


@lists
def test_each_state_is_there_once(lists_NK: torch.Tensor) -> None:
    assert sorted(Distinct.of(lists_NK).states_U.tolist()) == sorted(set(lists_NK.flatten().tolist()))


@lists
def test_numbers_of_states_are_put_in_their_places(lists_NK: torch.Tensor) -> None:
    distinct = Distinct.of(lists_NK)
    assert torch.equal(distinct.spread(distinct.states_U), lists_NK)
    assert torch.equal(distinct.states_U[distinct.places()], lists_NK)
    rows_UR = torch.randn(len(distinct.states_U), 4)
    assert torch.equal(distinct.spread(rows_UR), rows_UR[distinct.places()])


@lists
def test_collecting_is_the_transpose_of_spreading(lists_NK: torch.Tensor) -> None:
    distinct = Distinct.of(lists_NK)
    number_NK = torch.randn(lists_NK.shape, dtype=torch.float64)
    number_U = torch.randn(len(distinct.states_U), dtype=torch.float64)
    torch.testing.assert_close(
        (distinct.spread(number_U) * number_NK).sum(), (number_U * distinct.collect(number_NK)).sum()
    )


def test_of_lists_that_do_not_overlap_nothing_is_copied() -> None:
    distinct = Distinct.of(LISTS["disjoint"])
    rows_UR = torch.randn(6, 4)
    assert distinct.spread(rows_UR).data_ptr() == rows_UR.data_ptr()
