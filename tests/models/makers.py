"""Small models of every support, encoder and parameterisation."""

import itertools

import pytest
import torch
from torch import Tensor

from trellis.models import HMM, HMMConfig
from trellis.models.supports import Support, partition, uniform_subsets

PARTS = ("scalar", "low_rank")
# Dense, every combination of start, transition and emission; shared tables only where there are low-rank ones to share.
CONFIGS = [
    HMMConfig(7, 4, start=start, transition=transition, emission=emission, width=3, shared=shared)
    for start, transition, emission in itertools.product(PARTS, PARTS, PARTS)
    for shared in ((False, True) if "low_rank" in (start, transition, emission) else (False,))
]


def named(config: HMMConfig) -> str:
    kinds = "-".join((config.start, config.transition, config.emission))
    return f"{kinds}-shared" if config.shared else kinds


every_config = pytest.mark.parametrize("config", CONFIGS, ids=named)


def random_ids(batch: int, time: int, vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randint(vocab_size, (batch, time), generator=torch.Generator().manual_seed(seed))


def make(config: HMMConfig, seed: int = 0) -> HMM:
    """A float64 model, sharp enough that states differ."""
    model = HMM(config, seed=seed).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model


# Models with blocks, and dense ones of the same size: what they are made of beside their support.
VOCABULARY, STATES, BLOCKS = 11, 24, 3
BLOCK_V = torch.tensor([0, 0, 1, 2, 1, 2, 0, 1, 2, 2, 1])
LOW_RANK = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "bias": True}
SCALAR = {"start": "scalar", "transition": "scalar", "emission": "scalar", "encoder": "table"}
FLAT = {
    "residual": LOW_RANK | {"encoder": "residual"},
    "table": LOW_RANK | {"encoder": "table"},
    "scalar": SCALAR,
    "factored": LOW_RANK | {"encoder": "factored"},
}
HIERARCHICAL = {
    f"hierarchical {name}": made | {"transition": "hierarchical_scalar" if name == "scalar" else "hierarchical"}
    for name, made in FLAT.items()
}
RESIDUAL = HIERARCHICAL["hierarchical residual"] | {"support": "brown"}  # as published, with the hierarchy
WITH_BLOCKS = {
    f"{support} {name}": made | {"support": support}
    for (name, made), support in itertools.product((HIERARCHICAL | FLAT).items(), ("brown", "words", "uniform"))
    if support != "uniform" or name in ("residual", "table", "scalar")
}
DENSE = {f"dense {name}": made | {"support": "dense"} for name, made in FLAT.items()}
DENSE["dense shared table"] = DENSE["dense table"] | {"shared": True}
KINDS = WITH_BLOCKS | DENSE
every_kind = pytest.mark.parametrize("kind", KINDS.values(), ids=KINDS.keys())
every_kind_with_blocks = pytest.mark.parametrize("kind", WITH_BLOCKS.values(), ids=WITH_BLOCKS.keys())


def support_of(kind: str, states: int = STATES, blocks: int = BLOCKS) -> Support | None:
    if kind == "uniform":
        return uniform_subsets(VOCABULARY, states, states // blocks, seed=3)
    return None if kind in ("words", "dense") else partition(BLOCK_V % blocks, states, blocks)


def make_kind(dtype: torch.dtype = torch.float64, **settings) -> HMM:
    """A model of a kind, with these changes; further from uniform than fresh ones, where mistakes would hide."""
    told = {"states": STATES, "blocks": BLOCKS, "width": 6} | RESIDUAL | settings
    if told["support"] == "words":
        told["states"] = 2 * VOCABULARY
    model = HMM(HMMConfig(VOCABULARY, **told), 1, support_of(told["support"], told["states"], told["blocks"]))
    return sharpened(model).to(dtype)


@torch.no_grad()
def sharpened(model: HMM) -> HMM:
    """Larger parameters, and biases that are not nothing."""
    generator = torch.Generator().manual_seed(8)
    for parameter in model.parameters():
        if parameter.any():
            parameter.mul_(2.0)
        else:
            parameter.copy_(torch.randn(parameter.shape, generator=generator) / 3)
    return model


def gradients(model: HMM, loss: Tensor) -> dict[str, Tensor]:
    """Of every parameter by its name; zeros where there is none."""
    model.zero_grad()
    loss.backward()
    return {name: torch.zeros_like(p) if p.grad is None else p.grad.clone() for name, p in model.named_parameters()}


def assert_same_gradients(found, wanted, **near):
    assert found.keys() == wanted.keys()
    for name, grad in found.items():
        torch.testing.assert_close(grad, wanted[name], **near, msg=lambda said, name=name: f"{name}: {said}")
