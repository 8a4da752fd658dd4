"""A finished run as one JSON file: what it was, what it cost, and what it reached."""

from __future__ import annotations

import json
import platform
import statistics
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from bench.machine import cpu_name
from experiments.recipes import settings_of
from trellis import TrellisError, evaluate, load_model, load_tokenizer, prepare
from trellis.config import RunConfig, load
from trellis.evaluation import Evaluation
from trellis.folders import write_atomically
from trellis.models.model import Model
from trellis.text import IdFile
from trellis.text.sources import open_split
from trellis.training import checkpoints

# The training text is long: its beginning is enough to show how much a model overfits.
TRAIN_TOKENS = 100_000
PROTOCOLS = {"train": ("streams",), "valid": ("stream", "streams"), "test": ("stream", "streams")}
WINDOWS = {"train": ("windows",), "valid": ("windows",), "test": ("windows",)}  # of those that learn from windows
UNTESTED = {"train": ("streams",), "valid": ("stream",)}


def record(run: Path, path: Path, *, command: str, threads: int, commit: str, tested: bool = True) -> Path:
    """Evaluate the run's best model and write everything a reader needs to do it again; `threads` trained it.

    Points of a sweep are not `tested`: comparing them is a matter of validation text.
    """
    config, finished = load(run / "config.yaml"), checkpoints.found(run)
    protocols = PROTOCOLS if tested else UNTESTED
    if config.training.batching == "windows":
        protocols = {split: WINDOWS[split] for split in protocols}
    if not finished:
        raise TrellisError(f"{run} has no checkpoint: train it first.")
    place = json.loads((finished[-1] / "place.json").read_text())
    model = load_model(run)
    limits = {"train": min(TRAIN_TOKENS, config.data.max_tokens or TRAIN_TOKENS)}
    texts = {split: _text(run, config, split, limits.get(split)) for split in protocols}
    result = {
        "name": path.stem,
        "command": command,
        "config": settings_of(config),
        "seed": config.training.seed,
        "corpus_hash": {split: ids.meta.content_hash for split, ids in texts.items()},
        "commit": commit,
        "machine": f"{platform.machine()}, {cpu_name()}, {threads} threads, torch {torch.__version__}",
        "threads": threads,
        "parameters": count(model),
        "tokens": place["tokens"],
        "seconds": round(place["seconds"], 1),
        "processor_seconds": round(place.get("processor", 0.0), 1),
        "updates": place["update"],
        "milliseconds": _milliseconds(run / "metrics.jsonl"),
        "evaluation": {
            split: {protocol: _shown(evaluate(model, ids, protocol)) for protocol in protocols[split]}
            for split, ids in texts.items()
        },
        "curve": list(_curve(run / "metrics.jsonl")),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(result, indent=1) + "\n")
    return path


def count(model: Model) -> int:
    """Numbers that were learnt; of a model that only counts, the n-grams it keeps."""
    learnt = sum(parameter.numel() for parameter in model.parameters())
    # The last entry of a table of n-grams stands for those never seen.
    grams = sum(table.numel() - 1 for name, table in model.named_buffers() if name.startswith("kept"))
    return learnt or model.config.vocab_size + grams


def commit_of(code: Path, run: Path | None = None) -> str:
    """The commit in the checkout `code`, which is to train a run or trained it.

    Code that is not committed is refused, and so is code that changed after the run began.
    """
    parts = ["--", "src"]
    if _git(code, "status", "--porcelain", *parts):
        raise TrellisError("src differs from the last commit: commit it, then train and record.")
    if run is not None and not (run / "config.yaml").exists():
        raise TrellisError(f"{run} is no run: give the folder that trellis train made.")
    commit, when = _git(code, "log", "-1", "--format=%h %ct", *parts).split()
    if run is not None and (run / "config.yaml").stat().st_mtime < int(when):
        raise TrellisError(f"{run} began before commit {commit} changed the code: train it again, then record.")
    return commit


def _git(code: Path, *arguments: str) -> str:
    told = subprocess.run(["git", "-C", str(code), *arguments], capture_output=True, text=True, check=False)
    if told.returncode:
        raise TrellisError(f"{code} is no checkout of this project with git: {told.stderr.strip()}")
    return told.stdout.strip()


def _text(run: Path, config: RunConfig, split: str, max_tokens: int | None = None) -> IdFile:
    corpus = open_split(config.data, split)
    if corpus is None:
        raise TrellisError(f"{run} was given no {split} text: set data.{split}.")
    return prepare(corpus, load_tokenizer(run / "best"), max_tokens=max_tokens)


def _shown(found: Evaluation) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.as_dict().items()}


def _lines(path: Path) -> Iterator[dict[str, float]]:
    for line in path.read_text().splitlines():
        yield json.loads(line)


def _curve(path: Path) -> Iterator[list[float]]:
    """Validation perplexity by update."""
    for entry in _lines(path):
        if "valid_perplexity" in entry:
            yield [entry["update"], round(entry["valid_perplexity"], 3)]


def _milliseconds(path: Path) -> float | None:
    """What an update took: the median, which another job on the machine for a while does not move."""
    seen, took = 0.0, []
    for entry in _lines(path):
        if "tokens_per_second" in entry:
            took.append(1000 * (entry["tokens"] - seen) / entry["tokens_per_second"])
            seen = entry["tokens"]
    return round(statistics.median(took), 1) if took else None
