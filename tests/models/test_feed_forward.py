import pytest
import torch

from trellis.errors import TrellisError
from trellis.models.feed_forward import FeedForward, FeedForwardConfig

from .makers import random_ids
from .scoring import (
    assert_it_survives_the_disk,
    assert_padding_does_not_matter,
    assert_pieces_make_the_whole,
    total_probability,
)


def make(order=4, dropout=0.3):
    """A small float64 model, sharp enough that its past matters."""
    model = FeedForward(FeedForwardConfig(9, order=order, width=5, dropout=dropout), seed=0).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(4.0)
        model.words.bias.normal_()
    return model


def slow(model, ids, before=()):
    """Word by word, as the formula has it."""
    words, scores = [*before, *ids], []
    for place in range(len(before), len(words)):
        past = words[max(0, place - model.config.order + 1) : place]
        vectors = [torch.zeros(5, dtype=torch.float64)] * (model.config.order - 1 - len(past))
        vectors += [model.words.vectors[word] for word in past]
        hidden = torch.relu(model.hidden.weight @ torch.cat(vectors) + model.hidden.bias)
        scores.append((model.words.vectors @ hidden + model.words.bias).log_softmax(0)[words[place]])
    return torch.stack(scores)


@pytest.mark.parametrize("order", [2, 3, 5])
def test_it_is_the_formula_with_its_gradients(order):
    model, ids, lengths = make(order).eval(), random_ids(3, 7, 9), torch.tensor([7, 1, 4])
    found = []
    weights = torch.arange(12, dtype=torch.float64)
    scores = model.score(ids, lengths_B=lengths)[0]
    ours = torch.cat([row[:length] for row, length in zip(scores, lengths.tolist(), strict=True)])
    twin = torch.cat([slow(model, row[:length].tolist()) for row, length in zip(ids, lengths.tolist(), strict=True)])
    for flat in (ours, twin):
        found.append([flat, *torch.autograd.grad(flat @ weights, list(model.parameters()))])
    assert all(torch.allclose(a, b, atol=1e-12) for a, b in zip(*found, strict=True))


def test_the_state_is_all_there_is_to_know(tmp_path):
    model = make().eval()
    assert_pieces_make_the_whole(model, 9, tolerance=1e-12)
    assert_padding_does_not_matter(model, 9, tolerance=1e-12)
    assert_it_survives_the_disk(model, 9, tmp_path)


def test_probabilities_sum_to_one():
    model = make().eval()
    states = [None, *(model.score(random_ids(1, length, 9))[1] for length in (1, 3, 8))]
    assert [total_probability(model, state, 9) for state in states] == pytest.approx([1.0] * 4, abs=1e-12)


def test_learning_drops():
    model, ids = make(), random_ids(2, 6, 9)
    assert not torch.equal(model.score(ids)[0], model.score(ids)[0])


def test_by_default_it_is_as_large_as_published():
    size = sum(parameter.numel() for parameter in FeedForward(FeedForwardConfig(10_000)).parameters())
    assert size == pytest.approx(2.9e6, rel=0.03)  # theirs, to the digits they print


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"order": 1}, "model.order must be"),
        ({"width": 0}, "model.width must be"),
        ({"dropout": 1}, "below 1"),
    ],
)
def test_shapes_that_cannot_be(changes, said):
    with pytest.raises(TrellisError, match=said):
        FeedForwardConfig(9, **changes)
