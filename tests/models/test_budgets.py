import dataclasses

import pytest
import torch

from trellis.errors import TrellisError
from trellis.models import HMM, HMMConfig
from trellis.models.budgets import parameters_of, within_budget

from .makers import KINDS, LOW_RANK, VOCABULARY, make_kind, random_ids, support_of

NETWORKS = {
    "mlp": {"encoder": "mlp"},
    "one mlp": {"encoder": "mlp", "monolithic": True},
    "split mlp": {"encoder": "mlp", "shared": False, "norm": False},
    "transformer": {"encoder": "transformer"},
    "one transformer, 3 heads": {"encoder": "transformer", "monolithic": True, "heads": 3},
    "residual": {"encoder": "residual"},
    "factored": {"encoder": "factored"},
}
SUPPORTS = ["dense", "brown", "words", "uniform"]


def numbers(model):
    return sum(parameter.numel() for parameter in model.parameters())


@pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
def test_parameters_are_counted_without_being_made(kind):
    model = make_kind(**kind)
    blocks = 1 if model.support is None else len(model.states_MK)
    assert parameters_of(model.config, blocks, model.block_size) == numbers(model)


@pytest.mark.parametrize("budget", [40_000, "2^17"])
@pytest.mark.parametrize("support", SUPPORTS)
@pytest.mark.parametrize("name", NETWORKS)
def test_the_width_found_is_the_largest_within_the_budget(name, support, budget):
    if support == "uniform" and name == "factored":
        pytest.skip("there is no such model")
    parts = LOW_RANK | NETWORKS[name] | {"support": support, "states": 22 if support == "words" else 24, "blocks": 3}
    made = support_of(support)
    try:
        model = HMM(HMMConfig(VOCABULARY, **parts, parameters=budget), 0, made)
    except TrellisError as error:  # three transformers of 32
        assert "transformer" in name and budget == 40_000 and "fewer than the smallest" in str(error)  # noqa: PT017, PT018
        return
    limit, width = 2**17 if budget == "2^17" else budget, model.config.width
    step = {"transformer": 32, "one transformer, 3 heads": 3}.get(name, 1)
    assert numbers(model) <= limit
    assert width % step == 0
    assert numbers(HMM(HMMConfig(VOCABULARY, **parts, width=width + step), 0, made)) > limit
    assert model.config == HMMConfig(VOCABULARY, **parts, width=width)


@pytest.mark.parametrize("support", ["dense", "brown"])
@pytest.mark.parametrize("memory", [1, 2])
def test_the_words_that_states_remember_count(memory, support):
    parts = LOW_RANK | {"support": support, "states": 24, "blocks": 3, "memory": memory}
    made = support_of(support)
    model = HMM(HMMConfig(VOCABULARY, **parts, parameters=1_000), 0, made)
    assert numbers(model) <= 1_000 < numbers(HMM(HMMConfig(VOCABULARY, **parts, width=model.config.width + 1), 0, made))


def test_a_table_is_no_wider_than_there_are_states():
    config = HMMConfig(20, 12, **LOW_RANK, parameters=10**6)
    assert within_budget(config, 1, 12).width == 12
    assert within_budget(dataclasses.replace(config, parameters=12 * 4 * 3 + 20 * 4 + 4 + 20), 1, 12).width == 4


def test_a_model_with_a_budget_is_saved_with_its_width(tmp_path):
    model = HMM(HMMConfig(VOCABULARY, 24, **LOW_RANK, encoder="mlp", parameters="2^12"), seed=0).eval()
    model.save_pretrained(tmp_path / "model")
    again, ids = HMM.from_pretrained(tmp_path / "model"), random_ids(2, 5, VOCABULARY)
    assert again.config == model.config
    assert again.config.parameters is None
    assert torch.equal(again.score(ids)[0], model.score(ids)[0])


def test_a_budget_below_the_smallest_network_says_what_that_has():
    config = HMMConfig(VOCABULARY, 24, **LOW_RANK, encoder="transformer", parameters=1000)
    smallest = numbers(HMM(dataclasses.replace(config, width=32, parameters=None)))
    with pytest.raises(TrellisError, match=f"1,000 parameters are fewer than .* has, {smallest:,}: raise model.param"):
        HMM(config)
