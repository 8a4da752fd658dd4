"""Vectors of states in lists: those of the states one by one, however the lists overlap."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models.state_features import Distinct, Listed, LowRankStates, NeuralStates

LISTS = {
    "disjoint": torch.tensor([[3, 0, 5], [1, 6, 2]]),
    "overlapping": torch.tensor([[0, 3, 5], [3, 5, 6], [5, 1, 3], [2, 0, 5]]),
    "the same": torch.tensor([[2, 4], [2, 4], [2, 4]]),
    "twice in one": torch.tensor([[2, 4, 2]]),
    "none": torch.empty(0, 3, dtype=torch.int64),
}
lists = pytest.mark.parametrize("lists_NK", LISTS.values(), ids=LISTS.keys())


ROLES = ("leaving", "entering", "emitting")


@pytest.mark.parametrize("kind", ["independent", "factored", "low_rank"])
@lists
def test_vectors_in_lists_and_their_gradients_are_those_of_the_states_one_by_one(lists_NK, kind):
    torch.manual_seed(0)
    states = LowRankStates(8, 6) if kind == "low_rank" else NeuralStates(8, 2, 6, kind == "factored", scale=1.0)
    states.double()
    weight_NKR = torch.randn(*lists_NK.shape, 6, dtype=torch.float64)
    slow, fast, listed = 0.0, 0.0, Listed(states, lists_NK)
    for role in ROLES:
        slow_NKR = getattr(states, role)(states.look_up(lists_NK.flatten())).view_as(weight_NKR)
        fast_NKR = listed.distinct.spread(getattr(listed, role))
        assert_close(fast_NKR, slow_NKR)
        slow, fast = slow + (slow_NKR * weight_NKR).sum(), fast + (fast_NKR * weight_NKR).sum()
    inputs = [p for name, p in states.named_parameters() if not name.startswith(("start", "first", "compose.start"))]
    assert_close(torch.autograd.grad(fast, inputs), torch.autograd.grad(slow, inputs))


@lists
def test_each_state_is_looked_up_once_for_all_roles(lists_NK, monkeypatch):
    states, asked = NeuralStates(8, 2, 6, factored=False, scale=1.0), []
    look_up = states.look_up
    monkeypatch.setattr(states, "look_up", lambda states_N: asked.extend(states_N.tolist()) or look_up(states_N))
    listed = Listed(states, lists_NK)
    for role in (*ROLES, *ROLES):
        getattr(listed, role)
    assert sorted(asked) == sorted(set(lists_NK.flatten().tolist()))


@lists
def test_numbers_of_states_are_put_in_their_places(lists_NK):
    distinct = Distinct.of(lists_NK)
    assert torch.equal(distinct.spread(distinct.states_U), lists_NK)
    assert torch.equal(distinct.states_U[distinct.places()], lists_NK)


def test_of_lists_that_do_not_overlap_nothing_is_copied():
    distinct = Distinct.of(LISTS["disjoint"])
    rows_UR = torch.randn(6, 4)
    assert distinct.spread(rows_UR).data_ptr() == rows_UR.data_ptr()
