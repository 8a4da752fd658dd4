"""A budget of parameters, such as 2^22: the largest width of an HMM's vectors within which the whole model stays."""

from __future__ import annotations

from dataclasses import replace

import torch

from trellis.errors import TrellisError
from trellis.models.counted_ngrams import CountedNGrams
from trellis.models.emissions import EMISSIONS
from trellis.models.encoders import ENCODERS
from trellis.models.hmm_config import HMMConfig, budget_of
from trellis.models.memory import Memory
from trellis.models.starts import STARTS
from trellis.models.transitions import TRANSITIONS


def within_budget(config: HMMConfig, blocks: int, block_size: int) -> HMMConfig:
    """The configuration with the width found, and no budget any longer; as it is if it has none."""
    budget = budget_of(config.parameters)
    if budget is None:
        return config
    shape, step = _with_known_network(config), _step(config)

    def count(steps: int) -> int:
        return parameters_of(replace(shape, width=steps * step, parameters=None), blocks, block_size)

    smallest = 2 if step == 1 and config.encoder != "table" else 1
    if count(smallest) > budget:
        raise TrellisError(
            f"{budget:,} parameters are fewer than the smallest model of this shape has, {count(smallest):,}: raise "
            "model.parameters."
        )
    largest = config.states if config.encoder == "table" else budget  # a width costs a parameter or more
    while smallest < largest:
        # Upwards from the smallest, as the largest may be far away and slow to make.
        tried = min(2 * smallest, (smallest + largest + 1) // 2)
        smallest, largest = (tried, largest) if count(tried) <= budget else (smallest, tried - 1)
    return replace(config, width=smallest * step, parameters=None)


def check_budget(config: HMMConfig) -> None:
    """Refuse, before the words' blocks are known, a budget that no model of this shape stays within."""
    blocks = {"dense": 1, "words": config.vocab_size}.get(config.support, config.blocks)
    within_budget(config, blocks, config.states // blocks)


def parameters_of(config: HMMConfig, blocks: int, block_size: int) -> int:
    """How many parameters an HMM has, counted without making any."""
    roles = config.roles()
    with torch.device("meta"):
        parts = [
            ENCODERS[config.encoder if roles else "table"](config, blocks, roles),
            STARTS[config.start](config),
            TRANSITIONS[config.transition](config, blocks),
            EMISSIONS[config.emission](config, block_size),
            *([Memory(config)] if config.memory else []),
            *([CountedNGrams(config, blocks)] if config.ngrams else []),
        ]
    return sum(parameter.numel() for part in parts for parameter in part.parameters())


def _step(config: HMMConfig) -> int:
    """What widths are multiples of: for a transformer's heads, of 32 each if nothing is said."""
    if config.encoder != "transformer":
        return 1
    return 32 if config.heads is None else max(2, config.heads)


def _with_known_network(config: HMMConfig) -> HMMConfig:
    """The same with the shape of a pretrained network read, so that its weights need not be."""
    if config.encoder != "pretrained" or config.architecture is not None:
        return config
    from trellis.models.hugging_face import shape_of

    return replace(config, architecture=shape_of(str(config.network)))
