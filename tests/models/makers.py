"""Small models of every parameterisation."""

import itertools

import torch
from torch import Tensor

from trellis.models import HMM, HMMConfig

KINDS = ("scalar", "low_rank")
# Every combination of start, transition and emission; shared tables only where there are low-rank ones to share.
CONFIGS = [
    HMMConfig(vocab_size=7, states=4, start=start, transition=transition, emission=emission, rank=3, shared=shared)
    for start, transition, emission in itertools.product(KINDS, KINDS, KINDS)
    for shared in ((False, True) if "low_rank" in (start, transition, emission) else (False,))
]


def named(config: HMMConfig) -> str:
    kinds = "-".join((config.start, config.transition, config.emission))
    return f"{kinds}-shared" if config.shared else kinds


def random_ids(batch: int, time: int, vocab_size: int, seed: int = 0) -> Tensor:
    return torch.randint(vocab_size, (batch, time), generator=torch.Generator().manual_seed(seed))


def make(config: HMMConfig, seed: int = 0) -> HMM:
    """A float64 model, sharp enough that states differ."""
    model = HMM(config, seed=seed).double()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.mul_(1.5)
    return model
