import pytest
import torch
from torch.testing import assert_close

from trellis.models import HMM, HMMConfig

from .makers import CONFIGS, every_config, every_kind, make, make_kind, named

SOME = torch.tensor([3, 0, 2])


@every_config
def test_logits_of_some_states_are_those_of_all(config):
    model = make(config)
    if config.start == "scalar":
        want = model.start.table
    else:
        name = "states" if config.shared else "entering"
        want = model.encoder.tables[name] @ model.start.first
    assert_close(model.start.logits(model.encoder, torch.arange(4)), want)
    assert_close(model.start.logits(model.encoder, SOME), want[SOME])


@every_config
def test_the_start_is_normalised_over_the_states_that_take_part(config):
    model = make(config)
    want = model.start.logits(model.encoder, SOME).log_softmax(0)
    placed = model.log_start(model.encoder, SOME)
    assert_close(placed[SOME], want)
    assert placed[1] == -torch.inf


@every_kind
def test_every_start_is_a_distribution(kind):
    start_S = make_kind(**kind).log_start().exp()
    assert bool((start_S > 0).all())
    assert_close(start_S.sum(), torch.ones((), dtype=torch.float64))


@pytest.mark.parametrize("config", CONFIGS[:1] + CONFIGS[-1:], ids=named)
def test_products_in_bf16_give_logits_of_the_model_s_precision(config):
    model = HMM(HMMConfig(7, 4, start=config.start, emission="low_rank", width=3), seed=0)
    with torch.autocast("cpu", torch.bfloat16):
        assert model.start.logits(model.encoder, SOME).dtype == torch.float32
