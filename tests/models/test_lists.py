"""Vectors of states in lists: those of the states by themselves, however the lists overlap."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models import HMMConfig
from trellis.models.encoders import ENCODERS, ROLES, Picked
from trellis.models.lists import Crossing, Listed
from trellis.ops.pairs import Pairs

from .makers import LOW_RANK

LISTS = {
    "disjoint": torch.tensor([[3, 0, 5], [1, 6, 2]]),
    "overlapping": torch.tensor([[0, 3, 5], [3, 5, 6], [5, 1, 3], [2, 0, 5]]),
    "the same": torch.tensor([[2, 4], [2, 4], [2, 4]]),
    "twice in one": torch.tensor([[2, 4, 2]]),
    "none": torch.empty(0, 3, dtype=torch.int64),
}
lists = pytest.mark.parametrize("lists_NK", LISTS.values(), ids=LISTS.keys())


def encoder(name):
    torch.manual_seed(0)
    config = HMMConfig(20, 8, "brown", 2, encoder=name, width=6, init_scale=1.0, **LOW_RANK)
    return ENCODERS[name](config, 2, set(ROLES)).double()


@pytest.mark.parametrize("name", [name for name in ENCODERS if name != "pretrained"])  # which needs a network's folder
@lists
def test_vectors_in_lists_and_their_gradients_are_those_among_all_states(lists_NK, name):
    states, everything = encoder(name), torch.arange(8)
    # States that see one another are encoded all together before any are listed.
    source = states if states.independent else Picked(states, everything, 8, lasting=False)
    weight_NKR = torch.randn(*lists_NK.shape, 6, dtype=torch.float64)
    slow, fast, listed = 0.0, 0.0, Listed(source, lists_NK)
    for role in ROLES:
        slow_NKR = states.vectors(role, states.encode(everything))[lists_NK]
        fast_NKR = listed.distinct.spread(listed.vectors(role))
        assert_close(fast_NKR, slow_NKR)
        slow, fast = slow + (slow_NKR * weight_NKR).sum(), fast + (fast_NKR * weight_NKR).sum()
    inputs = list(states.parameters())
    assert_close(torch.autograd.grad(fast, inputs), torch.autograd.grad(slow, inputs))


@lists
def test_each_state_is_encoded_once_for_all_roles(lists_NK, monkeypatch):
    states, asked, made = encoder("residual"), [], []
    encode, vectors = states.encode, states.vectors
    monkeypatch.setattr(states, "encode", lambda states_N: asked.extend(states_N.tolist()) or encode(states_N))
    monkeypatch.setattr(states, "vectors", lambda role, encoded: made.append(role) or vectors(role, encoded))
    listed = Listed(states, lists_NK)
    for role in (*ROLES, *ROLES):
        listed.vectors(role)
    assert sorted(asked) == sorted(set(lists_NK.flatten().tolist()))
    assert made == list(ROLES)


@pytest.mark.parametrize("pairs", [[(0, 1)], [(0, 0), (0, 1), (1, 1), (1, 3), (1, 2)]], ids=["few", "many"])
def test_the_vectors_of_a_pair_s_states_are_found_also_where_pairs_are_few(pairs):
    states, to = encoder("residual"), LISTS["overlapping"]
    pairs = Pairs(*torch.tensor(pairs).T)
    crossing = Crossing(Listed(states, to[:2]), Listed(states, to), torch.zeros(4), None, pairs, torch.arange(8))
    entering_GJR, own = crossing.entering()
    assert torch.equal(own.from_P, pairs.from_P)
    assert_close(
        entering_GJR[own.to_P], states.vectors("entering", states.encode(to.flatten())).view(4, 3, 6)[pairs.to_P]
    )
    assert len(entering_GJR) == min(4, len(pairs.to_P))


def test_no_state_that_was_dropped_is_entered():
    states, to = encoder("table"), LISTS["disjoint"]
    alive_GJ = torch.tensor([[True, False, True], [True, True, False]])
    pairs = Pairs(torch.tensor([0, 0, 1]), torch.tensor([0, 1, 1]))
    crossing = Crossing(Listed(states, to), Listed(states, to), torch.arange(2), alive_GJ, pairs, torch.arange(8))
    into_PJK = torch.rand(3, 3, 3)
    want_PJK = into_PJK * torch.tensor([[1, 0, 1], [1, 1, 0], [1, 1, 0]])[:, :, None]
    assert torch.equal(crossing.alive(into_PJK), want_PJK)
    assert torch.equal(crossing.log_alive(into_PJK.log(), torch.arange(3)), want_PJK.log())
    assert torch.equal(crossing.log_alive(into_PJK[2:].log(), torch.tensor([2])), want_PJK[2:].log())
    whole = crossing._replace(alive_GJ=None)
    assert torch.equal(whole.alive(into_PJK), into_PJK)
    assert torch.equal(whole.log_alive(into_PJK, torch.arange(3)), into_PJK)


def test_a_pair_takes_the_probability_of_the_block_it_enters():
    states, to = encoder("table"), torch.tensor([[4, 5], [0, 1], [6, 7]])
    from_ = Listed(states, torch.tensor([[0, 1], [1, 4]]))
    pairs = Pairs(torch.tensor([0, 1, 1]), torch.tensor([0, 1, 2]))
    crossing = Crossing(from_, Listed(states, to), torch.tensor([1, 0, 1]), None, pairs, torch.arange(8))
    log_block_SM = torch.rand(8, 2).log()
    found_PK = crossing.to_blocks(log_block_SM[from_.distinct.states_U])
    assert_close(
        found_PK, torch.stack([log_block_SM[[0, 1], 1], log_block_SM[[1, 4], 0], log_block_SM[[1, 4], 1]]).exp()
    )
    assert torch.equal(crossing.unscaled(found_PK), torch.ones(3, 2))
