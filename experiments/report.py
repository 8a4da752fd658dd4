"""docs/results.md from the committed results: ours beside the published figures."""

from __future__ import annotations

import json
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import yaml

from trellis import TrellisError

HEAD = """# Results

Every figure of ours comes from a file in `experiments/results`, which holds the whole configuration, the seed, the hash
of the text, the commit and the validation curve. Settings were chosen on validation text; test text was used for these
figures alone. This page is written by `python -m experiments report`.

Perplexity is exp(nats / tokens) with `<eos>` and `<unk>` counted. *One stream* carries the belief from the first token
to the last and is the figure to quote; *16 streams* is how Chiu & Rush's code cuts the text.
"""


def report(experiments: Path, page: Path) -> Path:
    """Write the page."""
    results = [json.loads(path.read_text()) for path in sorted((experiments / "results").glob("*.json"))]
    published = yaml.safe_load((experiments / "published.yaml").read_text())
    if not results:
        raise TrellisError("there are no results to report: record a run first.")
    page.write_text(
        "\n".join([HEAD, *_ptb([r for r in results if r["config"]["data"]["corpus"] == "ptb"], published["ptb"])])
    )
    return page


def _ptb(results: list[dict[str, Any]], published: list[dict[str, Any]]) -> list[str]:
    rows = sorted(results, key=lambda r: -r["evaluation"]["test"]["stream"]["perplexity"])
    unknown = {split: f"{rows[0]['evaluation'][split]['stream']['unknown_rate']:.1%}" for split in ("valid", "test")}
    tokens = {split: f"{rows[0]['evaluation'][split]['stream']['tokens']:,}" for split in ("valid", "test")}
    return [
        "## Penn Treebank, dense HMMs\n",
        f"10,000 types; {tokens['valid']} validation and {tokens['test']} test tokens, "
        f"{unknown['valid']} and {unknown['test']} of them `<unk>`.\n",
        *_table(
            ["model", "parameters", "valid", "test", "test nats", "test, 16 streams", "epochs", "minutes", "command"],
            (_row(r) for r in rows),
        ),
        "\nPublished, for orientation:\n",
        *_table(
            ["model", "valid", "test", "from"],
            ([p["model"], p["valid"] or "", p["test"] or "", p["source"]] for p in published),
        ),
        "",
    ]


def _row(result: dict[str, Any]) -> list[Any]:
    model, training = result["config"]["model"], result["config"]["training"]
    kind = "low-rank" if model["emission"] == "low_rank" else "scalar"
    valid, test = result["evaluation"]["valid"], result["evaluation"]["test"]
    return [
        f"{kind} HMM, {model['states']} states" + (", Baum–Welch" if training["method"] == "baum_welch" else ""),
        f"{result['parameters'] / 1e6:.1f}M",
        f"{valid['stream']['perplexity']:.1f}",
        f"{test['stream']['perplexity']:.1f}",
        f"{test['stream']['nats']:,.0f}",
        f"{test['streams']['perplexity']:.1f}",
        f"{training['epochs']:g}",
        f"{result['seconds'] / 60:.0f}",
        f"`{result['command']}`",
    ]


def _table(head: list[str], rows: Iterable[list[Any]]) -> list[str]:
    return [
        f"| {' | '.join(head)} |",
        f"| {' | '.join('---' for _ in head)} |",
        *(f"| {' | '.join(map(str, row))} |" for row in rows),
    ]
