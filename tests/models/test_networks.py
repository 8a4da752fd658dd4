"""Networks over states beside twins that take one state, one layer and one head at a time."""

import itertools
import math

import pytest
import torch
from torch.nn import functional
from torch.testing import assert_close

from trellis.models import HMMConfig
from trellis.models.networks import MLP, ResidualNetwork, Transformer

WIDTH, STATES = 6, 5
EACH = {"layers": (1, 2, 3), "skip": ("none", "input", "linear"), "relu": (True, False), "norm": (True, False)}
GRID = [dict(zip(EACH, values, strict=True)) for values in itertools.product(*EACH.values())]


def drawn(*shape, seed=0):
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def made(kind, spread=0.5, **parts):
    torch.manual_seed(3)
    network = kind(HMMConfig(10, 8, **({"width": WIDTH, "emission": "low_rank"} | parts)), spread).double()
    with torch.no_grad():  # norms that do something
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter.add_(torch.randn_like(parameter) / 3)
    return network


def slow_norm(norm, x):
    """Of one state's numbers."""
    mean = sum(x) / len(x)
    variance = sum((one - mean) ** 2 for one in x) / len(x)
    bias = torch.zeros_like(norm.weight) if norm.bias is None else norm.bias
    return torch.stack([(one - mean) / (variance + norm.eps).sqrt() * w + b for one, w, b in zip(x, norm.weight, bias)])  # noqa: B905  # of one length


def slow_mlp(network, embedding, layers, skip, relu, norm):
    """As the formulas say, of one state."""
    x = embedding
    for depth, layer in enumerate(network.layers):
        y = layer.linear.weight @ x
        a = y.clamp_min(0) if relu else y
        if skip == "input" and layers > 1 and depth == 0:
            x = a
            continue
        out = {"none": a, "input": a + x, "linear": a + y}[skip]
        x = slow_norm(layer.norm, out) if norm else out
    return x


@pytest.mark.parametrize("parts", GRID, ids=str)
def test_an_mlp_is_its_formula_for_each_state(parts):
    network, embeddings = made(MLP, **parts), drawn(STATES, WIDTH)
    want = torch.stack([slow_mlp(network, one, **parts) for one in embeddings])
    found = network(embeddings)
    assert_close(found, want)
    weight, parameters = drawn(STATES, WIDTH, seed=1), list(network.parameters())
    assert_close(*(torch.autograd.grad((out * weight).sum(), parameters) for out in (found, want)))


def test_two_layers_with_everything_are_chiu_and_rush_s():
    network, published = made(MLP), ResidualNetwork(WIDTH).double()
    with torch.no_grad():
        published.first.weight.copy_(network.layers[0].linear.weight)
        published.second.weight.copy_(network.layers[1].linear.weight)
        for name, parameter in published.norm.named_parameters():
            parameter.copy_(getattr(network.layers[1].norm, name))
    embeddings = drawn(STATES, WIDTH)
    assert_close(network(embeddings), published(embeddings))
    assert sum(p.numel() for p in network.parameters()) == sum(p.numel() for p in published.parameters())


@pytest.mark.parametrize("parts", GRID, ids=str)
def test_a_fresh_mlp_keeps_the_size_of_what_it_is_given_or_norms_it(parts):
    torch.manual_seed(0)
    network = MLP(HMMConfig(10, 8, width=64, emission="low_rank", encoder="mlp", **parts), 0.5)
    size = float(network(torch.randn(500, 64)).detach().square().mean().sqrt())
    assert size == pytest.approx(0.5, rel=0.01) if parts["norm"] else 0.6 < size < 2.9


def slow_transformer(network, x, heads):
    """One state's queries at a time, one head at a time."""
    for layer in network.layers:
        normed = torch.stack([slow_norm(layer.attention_norm, one) for one in x])
        q, k, v = (normed @ weight.T for weight in layer.asked.weight.chunk(3))
        size, found = x.shape[1] // heads, torch.zeros_like(x)
        for i, h in itertools.product(range(len(x)), range(heads)):
            part = slice(h * size, (h + 1) * size)
            weights = torch.softmax(torch.stack([q[i, part] @ one[part] for one in k]) / math.sqrt(size), 0)
            found = found.index_put((torch.tensor([i]), torch.arange(size) + h * size), weights @ v[:, part])
        x = x + found @ layer.given.weight.T
        normed = torch.stack([slow_norm(layer.norm, one) for one in x])
        x = x + functional.gelu(normed @ layer.up.weight.T) @ layer.down.weight.T
    return torch.stack([slow_norm(network.norm, one) for one in x])


@pytest.mark.parametrize(("layers", "heads"), [(1, 1), (2, 3), (3, 2)])
def test_a_transformer_is_its_formula(layers, heads):
    network, x = made(Transformer, layers=layers, heads=heads, encoder="transformer"), drawn(STATES, WIDTH)
    want, found = slow_transformer(network, x, heads), network(x)
    assert_close(found, want)
    weight, parameters = drawn(STATES, WIDTH, seed=1), list(network.parameters())
    assert_close(*(torch.autograd.grad((out * weight).sum(), parameters) for out in (found, want)))


def test_a_transformer_sees_sets_apart_and_no_order():
    network, x = made(Transformer, encoder="transformer"), drawn(3, STATES, WIDTH)
    found, order = network(x), torch.tensor([3, 0, 4, 1, 2])
    for one, out in zip(x, found, strict=True):
        assert_close(network(one), out)
        assert_close(network(one[order]), out[order])
    assert not torch.allclose(network(x[0, :2]), found[0, :2])  # who else is there matters


@pytest.mark.parametrize("kind", [MLP, Transformer])
def test_a_network_ignores_autocast(kind):
    network, x = made(kind, encoder="transformer").float(), drawn(STATES, WIDTH).float()
    with torch.autocast("cpu", torch.bfloat16):
        found = network(x)
    assert torch.equal(found, network(x))
