"""Runs that were recorded before all HMMs had one layout: their settings in the words of today."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from experiments.budgets import parts

Settings = Mapping[str, Any]


def in_this_layout(config: Settings) -> dict[str, Any]:
    """A recorded configuration as it would be recorded now, without what says nothing any more."""
    found = dict(config)
    for name, translate in (("data", _data), ("model", _model), ("training", _training)):
        if name in found:
            found[name] = translate(found[name])
    return found


def as_typed_today(command: str) -> str:
    """The command of a recorded run with configurations by their names, where it has files outside of the package."""
    return re.sub(r"\bconfigs/([\w-]+)\.yaml", r"\1", command)


def _data(old: Settings) -> dict[str, Any]:
    # All words were kept by default; now they are of a text that has <unk> already, as all of the studies' have.
    return _without(old, "min_count") if "valid_tokens" not in old and old.get("min_count") == 1 else dict(old)


def _model(old: Settings) -> dict[str, Any]:
    if old.get("kind") == "blocked":
        return _blocked(old)
    if "monolithic" not in old and not old.get("shared"):  # before networks had it too, it was false by default
        old = _without(old, "shared")
    if "rank" not in old:
        return dict(old)
    return {**_without(old, "rank"), "kind": "hmm", "support": "dense", "width": old["rank"]}


def _blocked(old: Settings) -> dict[str, Any]:
    # One block is no blocks: the next one is certain, and a state within it is a state of all.
    dense = old["blocks"] == 1 and old["clusters"] == "brown"
    encoder = {"scalar": None, "low_rank": "table"}.get(
        old["parameters"], "factored" if old["embeddings"] == "factored" else "residual"
    )
    found = {
        **_without(old, "clusters", "parameters", "embeddings", "start_scale"),
        "kind": "hmm",
        "support": "dense" if dense else old["clusters"],
        "init_scale": old["start_scale"],
        **parts(flat=dense or old["transition"] == "flat", encoder=encoder),
    }
    return _without(found, "width", "init_scale") if encoder is None else found


def _training(old: Settings) -> dict[str, Any]:
    if "init" in old or "restarts" not in old:
        return dict(old)
    if old["restarts"] > 1:
        return {**old, "init": "restarts"}
    return {**_without(old, "restarts", "restart_steps"), "init": "random"}


def _without(settings: Settings, *names: str) -> dict[str, Any]:
    return {name: value for name, value in settings.items() if name not in names}
