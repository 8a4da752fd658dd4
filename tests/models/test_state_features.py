"""Vectors of states in lists: those of the states one by one, however the lists overlap."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models.state_features import Distinct, NeuralStates, in_lists

LISTS = {
    "disjoint": torch.tensor([[3, 0, 5], [1, 6, 2]]),
    "overlapping": torch.tensor([[0, 3, 5], [3, 5, 6], [5, 1, 3], [2, 0, 5]]),
    "the same": torch.tensor([[2, 4], [2, 4], [2, 4]]),
    "twice in one": torch.tensor([[2, 4, 2]]),
    "none": torch.empty(0, 3, dtype=torch.int64),
}
lists = pytest.mark.parametrize("lists_NK", LISTS.values(), ids=LISTS.keys())


@lists
def test_vectors_in_lists_and_their_gradients_are_those_of_the_states_one_by_one(lists_NK):
    torch.manual_seed(0)
    states = NeuralStates(8, 2, 6, factored=True, scale=1.0).double()
    weight_NKR = torch.randn(*lists_NK.shape, 6, dtype=torch.float64)
    slow_NKR = states.leaving(lists_NK.flatten()).view_as(weight_NKR)
    fast_NKR = in_lists(states.leaving, lists_NK)
    assert_close(fast_NKR, slow_NKR)
    inputs = [states.state, states.block, states.out.first.weight]
    slow, fast = (torch.autograd.grad((found * weight_NKR).sum(), inputs) for found in (slow_NKR, fast_NKR))
    assert_close(fast, slow)


@lists
def test_each_state_is_asked_for_once(lists_NK):
    asked = []

    def vectors(states_N):
        asked.extend(states_N.tolist())
        return states_N.double().unsqueeze(1)

    found_NK1 = in_lists(vectors, lists_NK)
    assert sorted(asked) == sorted(set(lists_NK.flatten().tolist()))
    assert torch.equal(found_NK1.squeeze(-1), lists_NK.double())


@lists
def test_numbers_of_states_are_put_in_their_places(lists_NK):
    distinct = Distinct.of(lists_NK)
    assert torch.equal(distinct.spread(distinct.states_U), lists_NK)


def test_of_lists_that_do_not_overlap_nothing_is_copied():
    distinct = Distinct.of(LISTS["disjoint"])
    rows_UR = torch.randn(6, 4)
    assert distinct.spread(rows_UR).data_ptr() == rows_UR.data_ptr()
