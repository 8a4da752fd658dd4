import dataclasses

import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.settings import build

from .makers import CONFIGS, make, named

V, S, R = 11, 6, 2


def numbers(**settings):
    return sum(p.numel() for p in HMM(HMMConfig(V, S, rank=R, **settings)).parameters())


@pytest.mark.parametrize("config", CONFIGS, ids=named)
def test_every_combination_normalises(config):
    model = make(config)
    tables = model.tables()
    assert [table.shape for table in tables] == [(4,), (4, 4), (4, 7)]
    for table in tables:
        assert bool((table > 0).all())
        assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))


def test_parameter_counts():
    assert numbers() == S + S * S + S * V
    low = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank"}
    assert numbers(**low) == R + 3 * S * R + V * R  # s, H_in, H_out, H_emit, V: ablation B
    assert numbers(**low, shared=True) == R + S * R + V * R  # s, H, V: ablation A
    assert numbers(emission="low_rank") == S + S * S + S * R + V * R
    assert numbers(start="low_rank", transition="low_rank") == R + 2 * S * R + S * V  # both end in H_out
    assert numbers(start="low_rank") == R + S * R + S * S + S * V


def test_sharing_is_one_table_and_every_part_moves_it():
    low = HMMConfig(V, S, start="low_rank", transition="low_rank", emission="low_rank", rank=R, shared=True)
    model = HMM(low, seed=0)
    tables = [p for p in model.parameters() if p.shape == (S, R)]
    assert len(tables) == 1
    for part in (model.log_start(), model.log_transition(), model.log_emission(torch.tensor([[3]]))):
        (gradient,) = torch.autograd.grad(part[..., 0].sum(), tables)
        assert bool(gradient.any())


def test_start_and_transition_share_where_they_go_and_nothing_else():
    config = HMMConfig(V, S, start="low_rank", transition="low_rank", emission="low_rank", rank=R)
    model = HMM(config, seed=0)
    assert model.start.right is model.transition.right
    roles = {id(p) for p in (model.transition.left, model.transition.right, model.emission.right)}
    assert len(roles) == 3


@pytest.mark.parametrize("kind", ["scalar", "low_rank"])
def test_logits_begin_with_unit_variance(kind):
    parts = HMM(HMMConfig(400, 300, start=kind, transition=kind, emission=kind, rank=64), seed=0)
    for part in (parts.transition, parts.emission):
        assert float(part.logits().detach().std()) == pytest.approx(1.0, abs=0.05)


def test_a_seed_decides_the_parameters_and_leaves_the_generator_alone():
    config = dataclasses.replace(CONFIGS[-1])
    torch.manual_seed(5)
    undisturbed = torch.rand(3)
    torch.manual_seed(5)
    first, second, other = HMM(config, seed=1), HMM(config, seed=1), HMM(config, seed=2)
    assert torch.equal(torch.rand(3), undisturbed)
    for a, b, c in zip(first.parameters(), second.parameters(), other.parameters(), strict=True):
        assert torch.equal(a, b)
        assert not torch.equal(a, c)


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ({"vocab_size": 10, "states": 0}, "at least one state, not 0: set model.states"),
        ({"vocab_size": 1}, "a vocabulary of 1 word leaves nothing to predict"),
        ({"vocab_size": 10, "states": 4, "rank": 5, "transition": "low_rank"}, "model.rank is 5, but must lie between"),
        ({"vocab_size": 10, "states": 4, "rank": 0, "emission": "low_rank"}, "model.rank is 0"),
        ({"vocab_size": 10, "emission": "lowrank"}, "'emission' cannot be 'lowrank': did you mean 'low_rank'"),
        ({"vocab_size": 10, "state": 3}, "unknown setting 'state': did you mean 'states'"),
        ({"states": 10}, "lack 'vocab_size'"),
    ],
)
def test_bad_configurations_are_refused(settings, sentence):
    with pytest.raises(TrellisError, match=sentence):
        build(HMMConfig, settings)


def test_the_rank_of_a_scalar_model_does_not_matter():
    assert HMMConfig(10, states=4, rank=128).rank == 128
