"""What `trellis train TEXT` comes to with nothing set: six texts, beside models that count and settings set by hand.

The texts are none of those by which the defaults were chosen. Settings by hand are given about the same time.
"""

from __future__ import annotations

import json
import platform
import shlex
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import torch
import yaml

from experiments.recipes import HERE
from experiments.record import commit_of
from trellis import TrellisError, load_tokenizer
from trellis.config import load
from trellis.evaluation import evaluate
from trellis.folders import write_atomically
from trellis.models.kneser_ney import KneserNey, KneserNeyConfig
from trellis.models.ngram import Bigram, Unigram
from trellis.progress import short_time
from trellis.text import open_corpus, prepare
from trellis.text.sources import open_split
from trellis.training.defaults import CHOSEN

RESULTS = HERE / "results" / "first"
SMALL = 50_000  # bytes of the small text
HEAD = """# With nothing set

What `trellis train TEXT` reaches with every default, on texts by which no default was chosen. Perplexities are of
validation text, as 16 streams, or every sequence from its start; times are of two threads beside other work, with
validation. *By hand* are settings of our other studies and trials, given about the same time. In texts of words longer
than 500,000 tokens states remember the last word (`model.memory=1`), by default and in the best settings by hand.
`python -m experiments first` measures, `python -m experiments report` writes this page.

"""
TOLD = """Every run, with its command and commit. At 686ef03 no text had a memory by default: commands there that do not
name it are of plain HMMs."""


def first(data_dir: str, runs: Path, only: str | None, threads: int, defaults: bool = False) -> None:
    """Make and record what is missing; with `defaults`, those again, beside what was recorded of settings by hand."""
    commit = commit_of(HERE.parent)
    texts = _texts(data_dir, runs)
    if only is not None and only not in texts:
        raise TrellisError(f"there is no text {only}: choose from {', '.join(texts)}.")
    for name, (arguments, others) in texts.items():
        path = RESULTS / f"{name}.json"
        if only not in (None, name) or (path.exists() and not defaults):
            continue
        by_hand = _recorded_by_hand(path)
        told = _measured(name, arguments, others if by_hand is None else [], Path(data_dir), runs, threads)
        told["by_hand"] = by_hand or told["by_hand"]
        about = {"name": name, "commit": commit, "machine": f"{platform.machine()}, torch {torch.__version__}"}
        RESULTS.mkdir(parents=True, exist_ok=True)
        write_atomically(path, json.dumps(about | told, indent=1) + "\n")


def _recorded_by_hand(path: Path) -> list[dict[str, Any]] | None:
    """Runs by hand that were recorded before, each with the commit that it was made with; None if there are none."""
    if not path.exists():
        return None
    recorded = json.loads(path.read_text(encoding="utf-8"))
    return [{"commit": recorded["commit"], **run} for run in recorded["by_hand"]]


def _texts(data_dir: str, runs: Path) -> dict[str, tuple[list[str], list[list[str]]]]:
    """Arguments of the defaults' run, and of those by hand; two texts are cut from others first."""
    runs.mkdir(parents=True, exist_ok=True)
    small, tags = runs / "small.txt", runs / "tags.npy"
    if not small.exists():
        lines = "\n".join(open_corpus("wikitext-2", "test", data_dir))
        small.write_text(lines.encode()[:SMALL].decode(errors="ignore"), encoding="utf-8")
    if not tags.exists():
        _write_tags(Path(data_dir) / "ud-ewt" / "train.tsv", tags)
    by_hand = yaml.safe_load((HERE / "first.yaml").read_text(encoding="utf-8"))
    named = {
        "small": [str(small)],
        "tags": [str(tags)],
        "pydocs": ["pydocs"],
        "ptb": ["ptb"],
        "openmix": ["openmix", "data.max_tokens=1000000", "data.valid_tokens=100000"],
        "wikitext-2": ["wikitext-2"],
    }
    return {name: (text, [line.split() for line in by_hand.get(name, [])]) for name, text in named.items()}


def _write_tags(tsv: Path, path: Path) -> None:
    """Parts of speech as numbers, as a matrix of the sentences' first twelve; shorter sentences are left out."""
    sentences = [block.split("\n") for block in tsv.read_text(encoding="utf-8").strip().split("\n\n")]
    tags = [[line.split("\t")[1] for line in sentence if line.count("\t")] for sentence in sentences]
    known = {tag: number for number, tag in enumerate(sorted({tag for sentence in tags for tag in sentence}))}
    np.save(path, np.array([[known[tag] for tag in sentence[:12]] for sentence in tags if len(sentence) >= 12]))


def _measured(
    name: str, arguments: list[str], others: list[list[str]], data: Path, runs: Path, threads: int
) -> dict[str, Any]:
    found = _train(name, arguments, data, runs, threads)
    config = load(runs / name / "config.yaml")
    tokenizer = load_tokenizer(runs / name / "best")
    train, valid = (
        prepare(corpus, tokenizer, max_tokens=limit)
        for corpus, limit in (
            (open_split(config.data, "train", str(data)), config.data.max_tokens),
            (open_split(config.data, "valid", str(data)), config.data.valid_tokens),
        )
        if corpus is not None
    )
    size, protocol = tokenizer.vocab_size, found["protocol"]
    counting = {
        "unigram": Unigram.fit(train, size),
        "bigram": Bigram.fit(train, size),
        "kneser_ney": KneserNey.for_text(KneserNeyConfig(size), train, tokenizer, 0),
    }
    measured = {kind: evaluate(model, valid, protocol, quiet=True).perplexity for kind, model in counting.items()}
    by_hand = [
        _train(f"{name}-{number}", [*arguments, *told], data, runs, threads) for number, told in enumerate(others)
    ]
    return {
        "command": "python -m experiments first --data-dir DATA",
        "seed": config.training.seed,
        "threads": threads,
        "corpus_hash": {"train": train.meta.content_hash, "valid": valid.meta.content_hash},
        "tokens": len(train),
        "types": size,
        "protocol": protocol,
        "perplexity": measured,
        "default": found,
        "by_hand": by_hand,
    }


def _train(name: str, arguments: list[str], data: Path, runs: Path, threads: int) -> dict[str, Any]:
    """Run the command, and take down what it says."""
    told = ["trellis", "train", *arguments, "--threads", str(threads)]
    hidden = [f"out={runs / name}", "--json", "--data-dir", str(data), "--resume"]
    done = subprocess.run([sys.executable, "-m", *told, *hidden], stdout=subprocess.PIPE, text=True, check=True)
    said = json.loads(done.stdout)
    shown = [argument if "/" not in argument else Path(argument).name for argument in told]
    model, training = (load(runs / name / "config.yaml").model, load(runs / name / "config.yaml").training)
    return {
        "command": shlex.join(shown),
        "perplexity": said["valid_perplexity"],
        "unigram": said["unigram_perplexity"],
        "protocol": said["protocol"],
        "seconds": round(said["seconds"] + said["validation_seconds"], 1),
        "states": getattr(model, "states", None),
        "chosen": {one: getattr(training, one) for one in CHOSEN},
    }


def page(results: Path) -> str:
    """What is written in a folder of results, as a page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    rows = ["| text | tokens | types | unigram | bigram | Kneser–Ney | **defaults** | time | best by hand | time |",
            "| --- | --- | --- | --- | --- | --- | --- | --- | --- | --- |"]  # fmt: skip
    for one in sorted(found, key=lambda one: one["tokens"]):
        default, counted = one["default"], one["perplexity"]
        best = min(one["by_hand"], key=lambda run: run["perplexity"], default=None)
        hand = ["", ""] if best is None else [f"{best['perplexity']:.1f}", short_time(best["seconds"])]
        rows.append(
            f"| {one['name']} | {one['tokens']:,} | {one['types']:,} | "
            + " | ".join(f"{counted[kind]:.1f}" for kind in ("unigram", "bigram", "kneser_ney"))
            + f" | **{default['perplexity']:.1f}** | {short_time(default['seconds'])} | {hand[0]} | {hand[1]} |"
        )
    told = [f"- {one['name']}: `{run['command']}`: {run['perplexity']:.1f} in {short_time(run['seconds'])}"
            + f" ({run.get('commit', one['commit'])})"
            for one in found for run in (one["default"], *one["by_hand"])]  # fmt: skip
    return HEAD + "\n".join(rows) + f"\n\n{TOLD}\n\n" + "\n".join(told) + "\n"
