import pytest
import torch

from trellis.errors import TrellisError
from trellis.inference.draws import draw, draw_softmax

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


@pytest.mark.parametrize("words", [1, 5, 128, 129, 1000])
def test_draws_by_logits_are_those_of_their_softmax(words):
    """Groups of indices and then one of a group: the same index as in one sum of all, for the same random numbers."""
    logits = 3 * torch.randn(500, words, generator=seeded(), dtype=torch.float64)
    logits[:, ::7] = -torch.inf
    logits[:, -1] = 0.5
    assert torch.equal(draw_softmax(logits, seeded(2)), draw(logits.softmax(1), seeded(2)))


@pytest.mark.parametrize("uniform", [0.0, 0.5, 1 - 2**-53])
def test_draws_by_logits_at_the_edges_stay_on_the_support(uniform, monkeypatch):
    monkeypatch.setattr(torch, "rand", lambda *shape, **_: torch.full(shape, uniform, dtype=torch.float64))
    logits = torch.full((1, 400), -torch.inf)
    logits[0, [3, 127, 128, 390]] = T([1.0, 0.0, -2.0, 40.0])
    assert draw_softmax(logits).tolist() == [390 if uniform else 3]


def test_logits_that_are_no_numbers_are_refused():
    with pytest.raises(TrellisError, match="the model is damaged"):
        draw_softmax(T([[0.0, torch.nan]]))
