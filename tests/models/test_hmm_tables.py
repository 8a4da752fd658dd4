"""Probabilities given to an HMM and taken from it."""

import pytest
import torch
from torch.testing import assert_close

from trellis import TrellisError
from trellis.models import HMM, HMMConfig

from .makers import CONFIGS, make_kind, named, random_ids

S, V = 4, 7


def test_tables_round_trip_and_zeros_stay():
    generator = torch.Generator().manual_seed(0)
    tables = [torch.rand(*shape, generator=generator) for shape in ((S,), (S, S), (S, V))]
    tables[1][0, 2] = tables[2][3, 6] = 0.0
    tables = [table / table.sum(-1, keepdim=True) for table in tables]
    model = HMM(HMMConfig(V, S), seed=0)
    model.set_tables(*tables)
    assert_close(tuple(model.tables()), tuple(tables))
    assert model.tables().transition_SS[0, 2] == model.tables().emission_SV[3, 6] == 0
    log_prob, _ = model.score(random_ids(2, 4, V))
    log_prob.sum().backward()
    for parameter in model.parameters():
        assert not parameter.grad[parameter == -torch.inf].any()
        assert bool(torch.isfinite(parameter.grad).all())


NO_TABLES = {
    "not one in sum": (
        "transition_SS",
        lambda table: table * 0.9,
        r"row \d of transition_SS sums to 0\.9",
    ),
    "one row of them": (
        "emission_SV",
        lambda table: table * torch.tensor([1, 1, 1.001, 1])[:, None],
        "row 2 of emission_SV",
    ),
    "a start of no sum": (
        "start_S",
        lambda table: table * 0,
        "start_S sums to 0, not to one within 0.0001",
    ),
    "negative": (
        "start_S",
        lambda table: table - table.max(),
        r"start_S holds -.*",
    ),
    "not a number": (
        "emission_SV",
        lambda table: table / 0 * 0,
        "emission_SV holds nan, which is no probability",
    ),
    "infinite": ("emission_SV", lambda table: table / 0, "row 0 of emission_SV sums to inf, not to one"),
    "turned": (
        "emission_SV",
        lambda table: table.T,
        r"emission_SV has the shape \(7, 4\), but .* needs \(4, 7\)",
    ),
    "of fewer states": (
        "start_S",
        lambda table: table[:3],
        r"start_S has the shape \(3,\), but .* needs \(4,\)",
    ),
    "text": ("start_S", lambda table: "uniform", "start_S are numbers, not text"),
}


@pytest.mark.parametrize("what", NO_TABLES)
def test_tables_that_are_no_distributions_are_refused_and_change_nothing(what):
    model, before = HMM(HMMConfig(V, S), seed=0), HMM(HMMConfig(V, S), seed=0)
    name, change, said = NO_TABLES[what]
    tables = HMM(HMMConfig(V, S), seed=1).tables()._asdict()
    tables[name] = change(tables[name])
    with pytest.raises(ValueError, match=said) as refused:
        model.set_tables(**tables)
    assert isinstance(refused.value, TrellisError)
    assert all(torch.equal(a, b) for a, b in zip(before.parameters(), model.parameters(), strict=True))


def test_tables_of_numpy_and_those_a_rounding_off_are_taken_and_sum_to_one():
    model, given = HMM(HMMConfig(V, S), seed=0), HMM(HMMConfig(V, S), seed=1).tables()
    model.set_tables(*(table.numpy().astype("float64") * 1.00005 for table in given))
    assert_close(tuple(model.tables()), tuple(given))
    for table in model.tables():
        assert_close(table.sum(-1), torch.ones_like(table.sum(-1)))


def test_half_precision_has_a_dense_twin_all_the_same():
    """Of which no row sums to one."""
    model = make_kind(torch.bfloat16).eval()
    assert_close(model.dense().tables().start_S, model.tables().start_S, rtol=0.05, atol=0.01)


@pytest.mark.parametrize("config", [config for config in CONFIGS if "low_rank" in named(config)], ids=named)
def test_low_rank_tables_cannot_be_set_and_are_not_harmed_by_trying(config):
    model = HMM(config, seed=0)
    before = [parameter.clone() for parameter in model.parameters()]
    with pytest.raises(TrellisError, match="only such parameters can be set to given probabilities: a dense model of"):
        model.set_tables(*HMM(HMMConfig(V, S), seed=1).tables())
    assert all(torch.equal(a, b) for a, b in zip(before, model.parameters(), strict=True))
