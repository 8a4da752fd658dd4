"""The papers' studies: run them, see how far they are, and write down what came out."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Annotated

import torch
import typer
from rich.console import Console
from rich.table import Table

from experiments import first, keywords, rates, smoke, steering, tagging
from experiments.again import beside, comparison
from experiments.recipes import HERE, Recipe, budget_of, settings_of, studies, study, unlike
from experiments.record import commit_of, record
from experiments.results import all_names, value
from experiments.running import Place, check_code, default_place, state_of, train
from experiments.seeds import base, chosen, named, spread
from trellis import TrellisError
from trellis.config import load
from trellis.evaluation import perplexity_of
from trellis.help_pages import Command, Group
from trellis.progress import short_time
from trellis.training import checkpoints

app = typer.Typer(cls=Group, no_args_is_help=True, add_completion=False, help=__doc__, pretty_exceptions_enable=False)
Budgets = Annotated[str, typer.Option(help="smoke, laptop or paper.")]
Runs = Annotated[Path | None, typer.Option(metavar="FOLDER", help="Where runs go. (default: runs/BUDGET)")]
DataDir = Annotated[
    str | None,
    typer.Option(metavar="FOLDER", help="Where named corpora lie. (default: TRELLIS_DATA)"),
]
Only = Annotated[str | None, typer.Option(metavar="NAME", help="One run of the study. (default: all)")]
ROOT = HERE.parent
TESTED = (  # the rest are sweeps
    "chiu.table1", "lee.table1", "lee.table2", "lee.table3", "lee.table4", "lee.full", "memory.words", "memory.full",
    "memory.best",
)  # fmt: skip


def say(message: str) -> None:
    """A message for people, on standard error."""
    print(message, file=sys.stderr, flush=True)


@app.command("run", cls=Command)
def _run(
    name: Annotated[str, typer.Argument(metavar="STUDY", help="Such as chiu.table1.")],
    budget: Budgets = "laptop",
    only: Only = None,
    data_dir: DataDir = None,
    runs: Runs = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of each run.")] = 2,
    seeds: Annotated[
        str | None,
        typer.Option(metavar="SEEDS", help="How many, as 3, or which, as 42,52,62. (default: those of the study)"),
    ] = None,
    precision: Annotated[
        str | None,
        typer.Option(metavar="PRECISION", help="bf16 or float32, what is quicker here. (default: as the recipe says)"),
    ] = None,
    again: Annotated[
        bool, typer.Option("--again", help="Make recorded runs once more, and compare; records stay as they are.")
    ] = False,
) -> None:
    """Train what is missing of a study, and record each run as it finishes.

    Finished runs are skipped, interrupted ones go on. Ctrl-C stops after the current update. With --again, runs and
    their results go to a folder `again` among the runs; delete it, or choose another --runs, to make them yet again.
    """
    torch.set_num_threads(threads)  # for measuring; runs are told
    place = _place(budget, runs, data_dir, threads, precision)
    recipes = spread(chosen(study(name)(place.budget), only), seeds)
    if place.budget != "smoke" and not again:
        commit_of(ROOT)  # refuse now what could not be recorded later
    if place.budget == "smoke" and data_dir is None:
        smoke.write_texts(place.runs / "data")
        if name.startswith("lee."):
            smoke.write_teacher(place.runs / "data")
    records = place if again else None
    ends = [_finish(recipe, name, beside(place) if again else place, records) for recipe in recipes]
    if not all(ends):
        raise typer.Exit(1)


def _finish(recipe: Recipe, name: str, place: Place, records: Place | None = None) -> bool:
    """Bring one run, and first those that it needs, to its record; whether it got there.

    One that is made again is set beside its `records`, whose learning rates it has.
    """
    if state_of(recipe, place) != "recorded" and not all(_needed(one, name, place, records) for one in recipe.needs):
        return False
    known = records if records and not rates.unsearched(recipe, records) else place
    if rates.unsearched(recipe, known):
        assert recipe.grid is not None
        say(f"{recipe.name}: searching a learning rate")
        if not _went_well(f"search for {recipe.name}", rates.search(recipe.grid, place)):
            return False
    recipe = rates.settled(recipe, known)
    state = state_of(recipe, place)
    say(f"{recipe.name}: {_announced(state, recipe, place, records)}")
    if state != "recorded" and not _make(recipe, name, place, again=records is not None):
        return False
    if records:
        say(comparison(recipe, place, records))
    return True


def _needed(recipe: Recipe, name: str, place: Place, records: Place | None) -> bool:
    """Bring a run that another reads to its record, and make its model again if that is recorded but not here."""
    if not _finish(recipe, name, place, records):
        return False
    if place.finished(recipe.name).exists():
        return True
    say(f"{recipe.name}: its model is needed and not here, training it again; the record stays as it is")
    return _went_well(recipe.name, train(recipe.name, rates.settled(recipe, place).config, place))


def _announced(state: str, recipe: Recipe, place: Place, records: Place | None) -> str:
    """How far a run is, and if nothing is left to do, what would make it run."""
    if state != "recorded":
        return state
    if records is None:
        return "recorded, skipped; --again makes it once more"
    return f"made again already, skipped; delete {place.runs / recipe.name} and {place.result(recipe.name)} for another"


def _make(recipe: Recipe, name: str, place: Place, again: bool) -> bool:
    """Train a run to its end and write its result; whether that went well."""
    command = f"python -m experiments run {name} --budget {place.budget} --only {recipe.name}"
    try:
        if place.budget != "smoke" and not again:
            check_code(recipe.name, commit_of(ROOT), place)
        if not _went_well(recipe.name, train(recipe.name, recipe.config, place)):
            return False
        _record_run(place.runs / recipe.name, recipe.name, place, command, again=again)
    except TrellisError as error:
        say(f"{recipe.name}: not recorded, {error}")
        return False
    return True


def _went_well(name: str, end: str) -> bool:
    """Say what went wrong, if anything did, and leave at once if that was asked for."""
    if end == "stopped":
        say(f"{name}: stopped; the same command goes on from there")
        raise typer.Exit(3)
    if end != "finished":
        say(f"{name}: {'another process trains it' if end == 'busy' else 'failed'}, skipped")
    return end == "finished"


def _record_run(run: Path, name: str, place: Place, command: str, code: Path = ROOT, *, again: bool = False) -> None:
    commit = "none: a smoke test" if place.budget == "smoke" else _commit(code, run, again)
    precision = f" --precision {place.precision}" if place.precision else ""
    command += f"{' --again' if again else ''} --data-dir DATA --threads {place.threads}{precision}"
    tested = any(base(recipe.name) == base(name) for one in TESTED for recipe in study(one)(place.budget))
    path = place.result(name)
    say(f"{record(run, path, command=command, threads=place.threads, commit=commit, tested=tested)}")


def _commit(code: Path, run: Path, again: bool) -> str:
    """The commit that made a run; one that is only compared with a record needs none."""
    try:
        return commit_of(code, run)
    except TrellisError:
        if not again:
            raise
        return "none"


@app.command("record", cls=Command)
def _record(
    run: Path,
    name: Annotated[str, typer.Option(help="The recipe's name. (default: the folder's)")] = "",
    budget: Annotated[str | None, typer.Option(help="Whose recipe the run is. (default: none of them)")] = None,
    code: Annotated[Path, typer.Option(help="The checkout that trained the run. (default: this one)")] = ROOT,
    threads: Annotated[int, typer.Option(min=1, help="Threads it was trained with.")] = 2,
    trained_by: Annotated[
        str, typer.Option(help="The command of a run of no budget, if it was more than its file.")
    ] = "",
) -> None:
    """Record a run that was trained by hand, with `trellis train`: as a recipe's, or in its own name."""
    name = name or run.name
    if budget is None:
        commit = commit_of(code, run)
        command = f"{trained_by or f'trellis train {name}'} --data-dir DATA --threads {threads}"
        say(f"{record(run, HERE / 'results' / f'{name}.json', command=command, threads=threads, commit=commit)}")
        return
    place = _place(budget, run.parent, None, threads)
    where, recipe = _find(name, place)
    for difference in unlike(settings_of(load(run / "config.yaml")), settings_of(recipe.config)):
        raise TrellisError(f"{run} is not the recipe {name}: it has {difference}.")
    _record_run(run, name, place, f"python -m experiments run {where} --budget {budget} --only {name}", code)


def _find(name: str, place: Place) -> tuple[str, Recipe]:
    """A recipe by the run's name, and the first study it is in."""
    for where, one in studies().items():
        if (recipe := named(one(place.budget), name)) is not None:
            return where, rates.settled(recipe, place)
    raise TrellisError(f"no study has a run '{name}' at this budget: see python -m experiments status.")


@app.command("status", cls=Command)
def _status(
    name: Annotated[str | None, typer.Argument(metavar="STUDY", help="Such as chiu.table1. (default: all)")] = None,
    budget: Budgets = "laptop",
    runs: Runs = None,
) -> None:
    """Say of every run whether it is recorded, finished, running, interrupted or missing, and what it took."""
    place = _place(budget, runs, None, 1)
    table = Table("study", "run", "state", "valid", "time", box=None, pad_edge=False)
    for where, one in studies().items():
        if name in (None, where):
            for recipe in _with_further_seeds(one(place.budget), place):
                recipe = rates.settled(recipe, place)
                table.add_row(where, recipe.name, *_progress(recipe, place))
    study(name or "chiu.table1")  # an unknown one is refused
    Console(highlight=False).print(table)


def _with_further_seeds(recipes: list[Recipe], place: Place) -> list[Recipe]:
    """A study's recipes, and those begun from seeds that no study asks for."""
    begun = {path.stem for path in [*place.runs.glob("*-s*"), *place.results.glob("*-s*.json")]}
    further = (named(recipes, name) for name in sorted(begun - all_names(place.budget)))
    return [*recipes, *(recipe for recipe in further if recipe is not None)]


def _progress(recipe: Recipe, place: Place) -> tuple[str, str, str]:
    """A run's state, validation perplexity and time, as far as it got."""
    state = state_of(recipe, place)
    if state == "recorded":
        result = json.loads(place.result(recipe.name).read_text())
        return state, f"{value(result, 'valid'):.1f}", short_time(result["seconds"])
    found = checkpoints.found(place.runs / recipe.name)
    if not found or state in ("missing", "outdated"):
        return state, "", ""
    at = json.loads((found[-1] / "place.json").read_text())
    return state, "" if at["best"] is None else f"{perplexity_of(at['best']):.1f}", short_time(at["seconds"])


@app.command("first", cls=Command)
def _first(
    data_dir: Annotated[str, typer.Option(metavar="FOLDER", envvar="TRELLIS_DATA", help="Where named corpora lie.")],
    only: Annotated[str | None, typer.Option(metavar="TEXT", help="One of the texts. (default: all)")] = None,
    runs: Runs = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of each run.")] = 2,
    defaults: Annotated[
        bool, typer.Option("--defaults", help="Measure the defaults again; settings by hand stay as recorded.")
    ] = False,
) -> None:
    """Train on six texts with nothing set, and with settings by hand, and record what is missing."""
    first.first(data_dir, (runs or Path("runs") / "first").absolute(), only, threads, defaults)


@app.command("steering", cls=Command)
def _steering(
    data_dir: Annotated[str, typer.Option(metavar="FOLDER", envvar="TRELLIS_DATA", help="Where teachers lie.")],
    hmm: Annotated[str, typer.Option(metavar="RUN", help="An HMM of stories15M, as trellis distill --from-llm makes.")],
    threads: Annotated[int, typer.Option(min=1, help="Processor threads.")] = 2,
) -> None:
    """Write stories under constraints, guided and not, and record what is missing."""
    torch.set_num_threads(threads)
    steering.steering(data_dir, hmm)


@app.command("tagging", cls=Command)
def _tagging(
    data_dir: Annotated[str, typer.Option(metavar="FOLDER", envvar="TRELLIS_DATA", help="Where ud-ewt lies.")],
    runs: Runs = None,
    threads: Annotated[int, typer.Option(min=1, help="Processor threads of each run.")] = 1,
) -> None:
    """Learn parts of speech with and without labels, and record what is missing."""
    tagging.tagging(data_dir, (runs or Path("runs") / "tagging").absolute(), threads)


@app.command("keywords", cls=Command)
def _keywords(
    run: Annotated[str, typer.Option(metavar="RUN", help="A model of words, such as that of trellis train ptb.")],
    threads: Annotated[int, typer.Option(min=1, help="Processor threads.")] = 2,
) -> None:
    """Write a thousand sentences that must have three given words each, and count those that do."""
    torch.set_num_threads(threads)
    keywords.keywords(run)


@app.command("report", cls=Command)
def _report() -> None:
    """Write docs/results.md, its sister pages and their plots from every committed result."""
    try:
        from experiments.report import report
    except ModuleNotFoundError as missing:
        raise TrellisError(f"a report needs {missing.name}: run pip install -e '.[bench]'.") from None
    say(f"{report(HERE, ROOT / 'docs' / 'results.md')}")


def _place(budget: str, runs: Path | None, data_dir: str | None, threads: int, precision: str | None = None) -> Place:
    wanted = budget_of(budget)
    runs = (runs or Path("runs") / wanted).absolute()
    if wanted == "smoke" and data_dir is None:
        data_dir = str(runs / "data")
    if precision not in (None, "bf16", "float32"):
        raise TrellisError(f"--precision {precision} is not known: write bf16 or float32.")
    return default_place(wanted, runs, data_dir, threads, precision)


def main() -> None:
    """Run one command; what the user can mend comes as one sentence."""
    try:
        app()
    except TrellisError as error:
        raise SystemExit(f"error: {error}") from None


if __name__ == "__main__":
    main()
