"""A study's rows as a table: perplexities over the seeds, what they cost, and what is published."""

from __future__ import annotations

from typing import Any

from experiments.results import Results, minutes
from experiments.tables import table, three

COLUMNS = ["row", "seeds", "valid: mean", "min", "max", "test: mean", "min", "max", "parameters", "minutes"]
THEIRS = ["published mean", "min", "max"]


def with_seeds(study: str, results: Results, published: list[dict[str, Any]]) -> list[str]:
    """Every row of a study with the mean, the lowest and the highest of its seeds, as Markdown."""
    theirs = {row["label"]: row for row in published}
    head = COLUMNS + (THEIRS if theirs else [])
    return table(head, (_row(study, label, results, theirs) for label in results.labels(study)))


def _row(study: str, label: str, results: Results, theirs: dict[str, dict[str, Any]]) -> list[str]:
    runs = [run for run in results.rows(study, label) if run is not None]
    measured = [_three(results, study, label, what) for what in ("valid", "test")]
    whole = "" if len(runs) == len(results.rows(study, label)) else f" of {len(results.rows(study, label))}"
    cost = ["", ""] if not runs else [f"{runs[0]['parameters'] / 1e6:.1f}M", f"{min(map(minutes, runs)):.0f}"]
    row = theirs.get(label, {})
    printed = [str(row.get(name, "")) for name in ("mean", "min", "max")] if theirs else []
    return [label, f"{len(runs)}{whole}", *measured[0], *measured[1], *cost, *printed]


def _three(results: Results, study: str, label: str, what: Any) -> list[str]:
    """Mean, lowest and highest of a row's seeds."""
    found = three(results.values(study, label, what))
    return ["", "", ""] if found is None else [f"{number:.1f}" for number in found]
