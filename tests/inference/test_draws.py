import pytest
import torch

from trellis.inference.draws import draw

from .frequencies import assert_frequencies, seeded

T = torch.tensor


def test_draw_follows_the_weights_and_never_takes_a_zero():
    weight_S = T([0.0, 3.0, 0.0, 1.0, 0.5, 0.0])
    assert_frequencies(draw(weight_S.expand(20_000, -1), seeded()), weight_S / weight_S.sum())


@pytest.mark.parametrize(("uniform", "index"), [(0.0, 1), (1 - 2**-53, 4)])
def test_draw_at_the_edges_of_the_uniform_stays_on_the_support(uniform, index, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda shape, **_: torch.full(shape, uniform, dtype=torch.float64))
    assert draw(T([[0.0, 3.0, 0.0, 1.0, 0.5, 0.0]])).tolist() == [index]


def test_draws_have_the_shape_of_the_weights_and_a_seed_repeats_them():
    weight = torch.rand(2, 3, 4, generator=seeded())
    assert draw(weight, seeded(1)).shape == (2, 3)
    assert torch.equal(draw(weight, seeded(1)), draw(weight, seeded(1)))
    assert draw(torch.empty(0, 4)).shape == (0,)
