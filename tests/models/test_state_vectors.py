"""Vectors of states that were encoded together, and from which some are picked."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models.state_vectors import ROLES, Picked

from .test_encoders import SELF_CONTAINED, STATES, WIDTH, encoder


@pytest.mark.parametrize("name", SELF_CONTAINED)
def test_vectors_that_are_picked_are_those_that_were_encoded_together(name):
    made, together = encoder(name), torch.tensor([6, 1, 3, 0])
    picked, states = Picked(made, together, STATES, lasting=False), torch.tensor([0, 3, 3])
    weight = torch.randn(3, WIDTH, dtype=torch.float64)
    found = [picked.vectors(role, picked.encode(states)) for role in ROLES]
    want = [made.vectors(role, made.encode(together))[[3, 2, 2]] for role in ROLES]
    assert_close(found, want)
    parameters = list(made.parameters())
    losses = (sum((vectors * weight).sum() for vectors in several) for several in (found, want))
    assert_close(*(torch.autograd.grad(loss, parameters) for loss in losses))


@pytest.mark.parametrize("lasting", [False, True])
def test_numbers_a_state_are_made_once_where_vectors_last(lasting):
    picked, asked = Picked(encoder("table"), torch.arange(STATES), STATES, lasting=lasting), []

    def square(states_N):
        asked.extend(states_N.tolist())
        return states_N.double() ** 2

    for states in ([3, 1], [1, 3, 5, 1], [5]):
        assert picked.once("square", torch.tensor(states), square).tolist() == [state**2 for state in states]
    assert asked == ([1, 3, 5] if lasting else [3, 1, 1, 3, 5, 1, 5])
    assert picked.once("more", torch.tensor([3]), lambda states_N: states_N + 1.0).tolist() == [4.0]
