"""A finished run as one JSON file: what it was, what it cost, and what it reached."""

from __future__ import annotations

import json
import platform
import subprocess
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from trellis import HMM, Evaluation, TrellisError, evaluate, load_tokenizer, open_corpus, prepare
from trellis.config import as_dict, load
from trellis.training import checkpoints

PROTOCOLS = ("stream", "streams")


def record(run: Path, path: Path, threads: int) -> Path:
    """Evaluate the run's best model and write everything a reader needs to do it again; `threads` trained it."""
    config, commit = load(run / "config.yaml"), _commit(run)
    finished = checkpoints.found(run)
    if not finished:
        raise TrellisError(f"{run} has no checkpoint: train it first.")
    place = json.loads((finished[-1] / "place.json").read_text())
    model, tokenizer = HMM.from_pretrained(run / "best"), load_tokenizer(run / "best")
    evaluations, hashes = {}, {}
    for split in ("train", "valid", "test"):
        ids = prepare(open_corpus(config.data.corpus, split, config.data.data_dir), tokenizer)
        hashes[split] = ids.meta.content_hash
        if split != "train":
            evaluations[split] = {protocol: _shown(evaluate(model, ids, protocol)) for protocol in PROTOCOLS}
    settings = as_dict(config)
    del settings["data"]["data_dir"], settings["out"]  # places on this machine
    result = {
        "name": path.stem,
        "command": f"trellis train configs/{path.stem}.yaml --data-dir DATA --threads {threads}",
        "config": settings,
        "seed": config.training.seed,
        "corpus_hash": hashes,
        "commit": commit,
        "machine": f"{platform.machine()}, {threads} threads, torch {torch.__version__}",
        "parameters": sum(p.numel() for p in model.parameters()),
        "tokens": place["tokens"],
        "seconds": round(place["seconds"], 1),
        "evaluation": evaluations,
        "curve": list(_curve(run / "metrics.jsonl")),
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(result, indent=1) + "\n")
    return path


def _shown(found: Evaluation) -> dict[str, Any]:
    return {name: round(value, 6) if isinstance(value, float) else value for name, value in found.as_dict().items()}


def _commit(run: Path) -> str:
    """The commit of the code that trained the run; code that has changed since, or is not committed, is refused."""
    code = ["--", "src", "configs"]
    if _git("status", "--porcelain", *code):
        raise TrellisError("src or configs differ from the last commit: commit them, then train and record.")
    commit, when = _git("log", "-1", "--format=%h %ct", *code).split()
    if (run / "config.yaml").stat().st_mtime < int(when):
        raise TrellisError(f"{run} began before commit {commit} changed the code: train it again, then record.")
    return commit


def _git(*arguments: str) -> str:
    return subprocess.run(["git", *arguments], capture_output=True, text=True, check=True).stdout.strip()


def _curve(path: Path) -> Iterator[list[float]]:
    """Validation perplexity by update."""
    for line in path.read_text().splitlines():
        entry = json.loads(line)
        if "valid_perplexity" in entry:
            yield [entry["update"], round(entry["valid_perplexity"], 3)]
