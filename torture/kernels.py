"""Hostile calls of the operations behind which native kernels stand: an answer or an exception, never a crash.

Good arguments are those that models give while they learn and answer, noted as they pass; hostile ones differ in a
thing or two.
"""

from __future__ import annotations

import importlib
import inspect
import sys
from collections.abc import Callable
from functools import partial
from random import Random
from typing import Any

from torture.batches import Call, batch
from torture.hostile import described, hostile
from torture.trial import Trial

CALLS = 250
EACH = 6  # good calls of each operation that are remembered
# Modules of trellis.ops and their operations that lead to native code.
OPERATIONS = {
    "steps": ("push", "pull", "outer"),
    "pairs": ("bilinear_pairs",),
    "cells": ("scalar_pairs",),
    "columns": ("scalar_columns", "low_rank_columns"),
    "block_columns": ("block_columns",),
    "overlapping_columns": ("normalise_by_state", "overlapping_logits", "overlapping_log_totals"),
    "log_totals": ("log_totals", "totals_forward", "totals_backward"),
    "walks": ("walk", "walk_back"),
    "products": ("counts", "product", "product_with_transpose", "inner"),
    "adamw": ("adamw_",),
    "sequences": ("expect", "best_paths"),
}
Noted = dict[str, list[tuple[Callable[..., Any], tuple[Any, ...], dict[str, Any]]]]


def fault(trial: Trial) -> dict[str, int]:
    """A batch of calls at one processor level."""
    trial.what = "native kernels"
    return batch(trial, partial(draws, trial.random.random()), lambda error: True, CALLS)


def draws(which_level: float) -> Call:
    """In the child: note good calls, then draw hostile ones."""
    from trellis import ops

    noted = note()
    names = sorted(noted)
    levels = [*ops.levels(), None]
    ops.using(levels[int(which_level * len(levels))]).__enter__()

    def draw(random: Random) -> tuple[str, Callable[[], Any]]:
        name = random.choice(names)
        function, given, named = random.choice(noted[name])
        changed, options = [_copied(value) for value in given], {key: _copied(value) for key, value in named.items()}
        for _ in range(random.choice((1, 1, 1, 2))):
            place = random.randrange(len(changed) + len(options))
            if place < len(changed):
                changed[place] = hostile(changed[place], random)
            else:
                key = sorted(options)[place - len(changed)]
                options[key] = hostile(options[key], random)
        said = f"{name}({', '.join(map(described, changed))}, {described([*options.items()])})"
        return said, lambda: _called(function, changed, options)

    return draw


def _called(function: Callable[..., Any], given: list[Any], named: dict[str, Any]) -> None:
    """Forward, and back where there is a way."""
    import torch

    for value in given:
        if (
            isinstance(value, torch.Tensor)
            and value.is_floating_point()
            and value.is_leaf
            and function.__name__ != "adamw_"
        ):
            value.requires_grad_()
    answer = function(*given, **named)
    if isinstance(answer, torch.Tensor) and answer.requires_grad:
        answer.sum().backward()


def _copied(value: Any) -> Any:
    """The same in memory of its own: operations may write into what they are given."""
    import torch

    if isinstance(value, torch.Tensor):
        return value.detach().clone()
    if isinstance(value, tuple | list):
        inner = [_copied(one) for one in value]
        return type(value)(*inner) if hasattr(value, "_fields") else type(value)(inner)
    return value


def note() -> Noted:
    """Good calls of each operation, as models make them."""
    noted: Noted = {}
    found = {}
    for module, names in OPERATIONS.items():
        for name in names:
            original = getattr(importlib.import_module(f"trellis.ops.{module}"), name)
            found[original] = _noting(name, original, noted)
    places = [(module, name, value) for module in [*sys.modules.values()] if module.__name__.startswith("trellis")
              for name, value in vars(module).items() if inspect.isfunction(value) and value in found]  # fmt: skip
    for module, name, value in places:
        setattr(module, name, found[value])
    try:
        exercise()
    finally:
        for module, name, value in places:
            setattr(module, name, value)
    return noted


def _noting(name: str, original: Callable[..., Any], noted: Noted) -> Callable[..., Any]:
    def call(*given: Any, **named: Any) -> Any:
        calls = noted.setdefault(name, [])
        if len(calls) < EACH:
            calls.append((original, tuple(map(_copied, given)), {key: _copied(value) for key, value in named.items()}))
        return original(*given, **named)

    return call


def exercise() -> None:
    """Let small models of every support learn and answer, in both precisions."""
    import torch

    import trellis
    from trellis.models.supports import partition, uniform_subsets
    from trellis.training.adamw import AdamW

    ids_BT = torch.randint(11, (3, 6), generator=torch.Generator().manual_seed(0))
    vectors = {"start": "low_rank", "transition": "low_rank", "emission": "low_rank", "width": 4}
    blocked = {"states": 12, "support": "brown", "blocks": 3}
    blocks_V = torch.arange(11) % 3
    shapes: list[tuple[dict[str, Any], Any]] = [
        ({"states": 5}, None),
        ({"states": 5, **vectors}, None),
        ({"states": 5, **vectors, "memory": 1}, None),
        ({**blocked, **vectors, "bias": True, "encoder": "residual"}, partition(blocks_V, 12, 3)),
        ({**blocked, **vectors, "transition": "hierarchical"}, partition(blocks_V, 12, 3)),
        (blocked, partition(blocks_V, 12, 3)),
        ({"states": 12, "support": "uniform", "blocks": 3, **vectors}, uniform_subsets(11, 12, 4, 0)),
    ]  # fmt: skip
    for settings, support in shapes:
        model = trellis.HMM(trellis.HMMConfig(11, **settings), 0, support)
        model.score(ids_BT)[0].sum().backward()
        parameters = [*model.parameters()]
        AdamW(parameters, (0.9, 0.95), 0.1).step([one.grad for one in parameters], [0.1] * len(parameters))
        model.eval()
        model.smooth(ids_BT)
        if support is None:
            model.double().score(ids_BT)[0].sum().backward()
    for dtype in ("float32", "float64"):
        estimator = trellis.CategoricalHMM(n_components=3, n_iter=2, random_state=0, dtype=dtype)
        estimator.fit(ids_BT.flatten().numpy(), [6, 6, 6]).predict(ids_BT.flatten().numpy(), [6, 6, 6])
