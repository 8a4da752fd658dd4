"""docs/results.md from the committed results: ours beside the published figures."""

from __future__ import annotations

import math
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import yaml

from experiments import plots
from experiments.budgets import LONG_EPOCHS, SWEEP_EPOCHS
from experiments.claims import CLAIMS
from experiments.first import page as first_page
from experiments.keywords import section as keywords_section
from experiments.lee.page import page as lee_page
from experiments.memory import page as memory_page
from experiments.recipes import Budget
from experiments.results import Result, Results, What, minutes, names, read, value
from experiments.steering import page as steering_page
from experiments.tables import table, three, with_spread
from experiments.tagging import page as tagging_page
from trellis import TrellisError

HEAD = """# Results

Every figure of ours comes from a file in `experiments/results`, which holds the whole configuration, the seed, the hash
of the text, the commit and the validation curve. Settings were chosen on validation text; test text was used for these
figures alone. This page is written by `python -m experiments report`.

Perplexity is exp(nats / tokens) with `<eos>` and `<unk>` counted. *One stream* carries the belief from the first token
to the last and is the figure to quote; *16 streams* is how Chiu & Rush's code cuts the text.

## Doing it again

A study is a table or figure of the paper: `chiu.table1` to `chiu.table4`, `chiu.figure3`, `chiu.figure4`. At the top of
the repository:

<!-- not run: the tests run these themselves, at the top of the repository -->
```sh
python -m experiments run chiu.table2 --budget smoke
python -m experiments status chiu.table2 --budget smoke
```

That takes seconds and shows that everything works. `--budget laptop --data-dir DATA` makes the runs of this page, on
two cores, and `--budget paper` those of the paper with its settings. Finished runs are skipped and interrupted ones go
on; `--only NAME` makes one run. Each is recorded as it finishes, if the code is committed and was not changed
meanwhile: give long studies a checkout of their own.

What is recorded here is skipped. `--again` makes such runs once more, into a folder `again` beside the other runs, and
prints the recorded figure beside the new one; records stay as they are. `--seeds 3`, or `--seeds 42,52,62`, makes every
run of a study from several seeds. Where a row below has several, it says how many, and has their mean, with the
lowest and the highest in brackets.
"""
LAPTOP = f"""Budget *laptop*: hierarchical transitions unless it says flat; embeddings start at 1/√width; 32 streams of
64 tokens a batch; AdamW at 0.01, or a rate of `experiments/rates.yaml`, with cosine decay. Everything but Table 1 is a
sweep, with {SWEEP_EPOCHS:g} epochs a point where the paper has 50, and {LONG_EPOCHS:g} for state dropout at 2^14.
Tables 2 and 4 are at 2^13 states where the paper has 2^14, and uniform subsets at 2^13 alone. Baselines are as in
`src/trellis/configs`, the recurrent ones on sentences in their order, LSTM and AWD-LSTM by SGD; AWD-LSTM and HMM+RNN
are what less than an hour of one core gives, see their minutes, and so are networks on WikiText-2, with two to four
epochs. These learnt on a Zen 5, and so did models of 2^14 states with factored embeddings, flat transitions or
{LONG_EPOCHS:g} epochs; all others on a Zen 4, on which an LSTM takes more than twice as long. A batch of the paper is
16 × 32 tokens, on an RTX 2080.
Training perplexity in Tables 2 and 4 is that of the text's first 100,000 tokens. Times were taken on one thread, some
of them beside other jobs: those of Table 2's first and third row are too long, the first by more, and so are those of
2^16 states and of the long run with state dropout, which took half the processor time of the one without.
"""
PAPER = "Budget *paper*: the published settings."
TITLES = {
    "chiu.table1": "Table 1: models",
    "chiu.figure3": "Figure 3: perplexity by states",
    "chiu.table2": "Table 2: ablations",
    "chiu.dropout": "State dropout in long runs",
    "chiu.table3": "Table 3: which words share states",
    "chiu.table4": "Table 4: factored embeddings",
    "chiu.figure4": "Figure 4: embeddings by number of blocks",
}
COLUMNS: dict[str, tuple[What, ...]] = {
    "chiu.table1": ("parameters", "valid", "test"),
    "chiu.table2": ("parameters", "train", "valid", "milliseconds"),
    "chiu.dropout": ("parameters", "train", "valid", "milliseconds"),
    "chiu.table4": ("parameters", "train", "valid", "milliseconds"),
}
ALONG = {"chiu.figure3": ("states", "states"), "chiu.figure4": ("blocks", "blocks of 2^14 states")}
Rows = dict[str, dict[str, Any]]


def report(experiments: Path, page: Path) -> Path:
    """Write the page, and its plots into a folder of the page's name beside it."""
    loose, budgets = read(experiments / "results")
    published = yaml.safe_load((experiments / "published.yaml").read_text(encoding="utf-8"))
    if not loose and not any(results.runs for results in budgets.values()):
        raise TrellisError("there are no results to report: record a run first.")
    lines = [HEAD, *_claims(budgets)]
    for study in TITLES:
        lines += [f"## {TITLES[study]}\n", f"Published: {published[study]['cite']}.\n"]
        for results in budgets.values():
            lines += _study(study, results, published[study]["rows"], page.with_suffix(""))
    ptb, openmix = ([r for r in loose if r["config"]["data"]["corpus"] == corpus] for corpus in ("ptb", "openmix"))
    lines += [*_dense(ptb, published["dense"]), *_precision(openmix)]
    page.write_text("\n".join(lines), encoding="utf-8")
    lee_page(budgets, published, page.with_name(f"{page.stem}-lee.md"))
    memory_page(budgets, page.with_name(f"{page.stem}-memory.md"))
    page.with_name(f"{page.stem}-first.md").write_text(first_page(experiments / "results" / "first"), encoding="utf-8")
    tagged = tagging_page(experiments / "results" / "tagging")
    page.with_name(f"{page.stem}-tagging.md").write_text(tagged, encoding="utf-8")
    steered = steering_page(experiments / "results" / "steering") + keywords_section(
        experiments / "results" / "steering"
    )
    page.with_name(f"{page.stem}-steering.md").write_text(steered, encoding="utf-8")
    return page


def _claims(budgets: dict[Budget, Results]) -> Iterator[str]:
    yield "## What the paper says, and whether ours agrees\n"
    for results in budgets.values():
        yield LAPTOP if results.budget == "laptop" else f"\n{PAPER}\n"
        rows = ([claim.text, claim.where, *claim.verdict(results)] for claim in CLAIMS)
        yield from table(["claim", "in", "ours", "figures of ours, on validation text"], rows)
    yield ""


def _study(study: str, results: Results, rows: list[dict[str, Any]], folder: Path) -> Iterator[str]:
    """A study's table, and its plot if it has one."""
    if results.budget == "paper":
        yield f"{PAPER}\n"
    theirs = {row["label"]: row for row in rows}
    columns = COLUMNS.get(study, ("valid",))
    shown = ["ms a batch" if column == "milliseconds" else column for column in columns]
    head = ["model", *shown, *(["test, 16 streams"] if study == "chiu.table1" else []), "epochs", "minutes"]
    ours = (_row(study, label, results, theirs, columns) for label in names(study, results.budget))
    yield from table([*head, *(f"published {column}" for column in shown)], ours)
    yield ""
    yield from _plot(study, results, rows, folder)


def _row(study: str, label: str, results: Results, theirs: Rows, columns: tuple[What, ...]) -> list[str]:
    runs, row = [run for run in results.rows(study, label) if run is not None], theirs.get(label, {})
    ours = [_ours(column, [value(run, column) for run in runs]) for column in columns]
    if study == "chiu.table1":
        streams = (run["evaluation"]["test"]["streams"]["perplexity"] for run in runs)
        ours.append(with_spread(streams, lambda number: _number("test", number)))
    spent = three(minutes(run) for run in runs)
    cost = ["", ""] if spent is None else [f"{_epochs(runs[0]):g}", f"{spent[0]:.0f}"]
    said = f"{label}, {len(runs)} seeds" if len(runs) > 1 else label
    return [said, *ours, *cost, *(_printed(column, row.get(column)) for column in columns)]


def _ours(what: What, numbers: list[float | None]) -> str:
    """A column of a row's seeds; those that seeds do not move have no spread."""
    if what in ("parameters", "milliseconds"):
        found = three(numbers)
        return _number(what, found and found[0])
    return with_spread(numbers, lambda number: _number(what, number))


def _epochs(run: Result) -> float:
    return float(run["config"]["training"]["epochs"]) if run["updates"] else 1.0  # n-grams are counted once


def _number(what: What, number: float | None) -> str:
    if number is None:
        return ""
    if what == "parameters":
        return f"{number / 1e6:.1f}M"
    return f"{number:.0f}" if what == "milliseconds" else f"{number:.1f}"


def _printed(what: What, number: float | None) -> str:
    """A published figure with the digits it has."""
    return _number(what, number) if number is None or what == "parameters" else str(number)


def _plot(study: str, results: Results, rows: list[dict[str, Any]], folder: Path) -> Iterator[str]:
    name = f"{study.partition('.')[2]}-{results.budget}.png"
    if study == "chiu.table1" and plots.draw_curves(results, folder / name):
        yield f"![Validation perplexity as the models learn]({folder.name}/{name})\n"
    if study in ALONG:
        setting, axis = ALONG[study]
        if drawn := plots.lines(study, setting, results, rows):
            plots.draw(drawn, axis, folder / name)
            yield f"![{TITLES[study]}]({folder.name}/{name})\n"


def _dense(results: list[Result], published: dict[str, Any]) -> Iterator[str]:
    """Runs of no study: the dense HMMs of `trellis train ptb-scalar` and `ptb-low-rank`."""
    if not results:
        return
    rows = sorted(results, key=lambda result: -(value(result, "test") or 0))
    measured = rows[0]["evaluation"]
    tokens = {split: f"{measured[split]['stream']['tokens']:,}" for split in ("valid", "test")}
    unknown = {split: f"{measured[split]['stream']['unknown_rate']:.1%}" for split in ("valid", "test")}
    yield "## Penn Treebank, dense HMMs\n"
    yield f"10,000 types; {tokens['valid']} validation and {tokens['test']} test tokens, "
    yield f"{unknown['valid']} and {unknown['test']} of them `<unk>`.\n"
    head = ["model", "parameters", "valid", "test", "test nats", "test, 16 streams", "epochs", "minutes", "command"]
    yield from table(head, map(_dense_row, rows))
    yield f"\nPublished, for orientation ({published['cite']}):\n"
    orientation = ([row["label"], row["valid"] or "", row["test"] or ""] for row in published["rows"])
    yield from table(["model", "valid", "test"], orientation)
    yield ""


def _dense_row(result: Result) -> list[Any]:
    model, training = result["config"]["model"], result["config"]["training"]
    kind = "low-rank" if model["emission"] == "low_rank" else "scalar"
    test = result["evaluation"]["test"]
    return [
        f"{kind} HMM, {model['states']} states" + (", Baum–Welch" if training["method"] == "baum_welch" else ""),
        *(_number(column, value(result, column)) for column in COLUMNS["chiu.table1"]),
        f"{test['stream']['nats']:,.0f}",
        f"{test['streams']['perplexity']:.1f}",
        f"{training['epochs']:g}",
        f"{result['seconds'] / 60:.0f}",
        f"`{result['command']}`",
    ]


def _precision(results: list[Result]) -> Iterator[str]:
    """What half precision does to a dense HMM, and that native code does nothing: runs that differ in nothing else."""
    if not results:
        return
    model, data = results[0]["config"]["model"], results[0]["config"]["data"]
    yield "## Precision\n"
    yield f"Low-rank HMM, {model['states']} states, {results[0]['parameters'] / 1e6:.1f}M parameters,"
    yield f"after {results[0]['tokens'] / 1e6:.0f} million tokens of {data['corpus']}; the same seed and batches.\n"
    least = min(value(result, "valid") or math.inf for result in results)
    rows = (
        [
            result["config"]["training"]["precision"],
            *(f"{value(result, column) or math.nan:.2f}" for column in ("valid", "test")),
            f"{(value(result, 'valid') or math.nan) / least - 1:.2%}",
            _number("milliseconds", result["milliseconds"]),
            f"`{result['command']}`",
        ]
        for result in results
    )
    yield from table(["products in", "valid", "test", "valid above the best", "ms a batch", "command"], rows)
    yield ""
