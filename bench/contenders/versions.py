"""The same models in this version of Trellis and in 0.1.0, which `python -m bench --against` may race it with."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import AbstractContextManager
from importlib import import_module
from importlib.util import find_spec
from typing import Any

import torch

from bench.blocked_problem import BlockedProblem
from trellis.models import HMM, HMMConfig
from trellis.training.learners import products_in

OLD = find_spec("trellis.ops") is None
ops: Any = import_module("trellis.kernels" if OLD else "trellis.ops")


def low_rank(words: int, states: int, width: int) -> tuple[HMM, list[torch.Tensor]]:
    """A dense model, and its tables as a problem has them: of the start, states left, entered and emitting, words."""
    parts: dict[str, Any] = dict.fromkeys(("start", "transition", "emission"), "low_rank")
    parts["rank" if OLD else "width"] = width
    model: Any = HMM(HMMConfig(words, states, **parts))
    if OLD:
        start, transition, emission = model.start, model.transition, model.emission
        return model, [start.left, transition.left, transition.right, emission.right, emission.left]
    tables = model.encoder.tables
    return model, [
        model.start.first, tables["leaving"], tables["entering"], tables["emitting"], model.emission.words,
    ]  # fmt: skip


def blocked(problem: BlockedProblem, **settings: Any) -> Any:
    """A blocked model of neural parameters, with further settings, which 0.1.0 did not have."""
    shape: dict[str, Any] = {"blocks": problem.blocks, "width": problem.width, "dropout": problem.dropout}
    supports = import_module("trellis.models.groups" if OLD else "trellis.models.supports")
    support = supports.partition(torch.from_numpy(problem.block_of_words()), problem.states, problem.blocks)
    if OLD:
        old = import_module("trellis.models.blocked")
        config = old.BlockedConfig(problem.words, problem.states, transition=problem.transition, **shape)
        return old.BlockedHMM(config, problem.seed, support)
    shape |= {"support": "brown", "encoder": "residual", "bias": True, "start": "low_rank", "emission": "low_rank"}
    shape["transition"] = "low_rank" if problem.transition == "flat" else "hierarchical"
    return HMM(
        HMMConfig(problem.words, problem.states, **shape, **fitting(settings, problem.words)), problem.seed, support
    )


def fitting(settings: Mapping[str, Any], words: int) -> dict[str, Any]:
    """These settings, which remember no more words than there are: a toy problem has few."""
    fewer = {"memory_words": min(settings["memory_words"], words)} if "memory_words" in settings else {}
    return {**settings, **fewer}


def in_precision(precision: str) -> AbstractContextManager[object]:
    """A context in which matrix products have this precision."""
    where: Any = () if OLD else (torch.device("cpu"),)
    return products_in(precision, *where)
