"""Parts of speech from hidden states: without labels, and with those of a few sentences, on UD English EWT.

Settings are chosen on the development text; test text is read once, for the chosen ones.
"""

from __future__ import annotations

import json
import platform
import shlex
import time
from itertools import chain
from pathlib import Path
from statistics import mean
from typing import Any, NamedTuple

import torch
import yaml

from experiments.recipes import HERE
from experiments.record import commit_of
from trellis import HMM, load_model, load_tokenizer, train
from trellis.config import completed, load_told
from trellis.folders import write_atomically
from trellis.tagging import accuracy, decode_sentences, tagging_scores
from trellis.text.files import hash_files
from trellis.text.sources import prepare_texts
from trellis.text.tagged import (
    LABELS_FILE,
    TAGS_FILE,
    WORDS_FILE,
    Columns,
    labels_of,
    read_tag_names,
    read_tagged,
    some_sentences,
    tag_names,
    write_untagged,
)

RESULTS = HERE / "results" / "tagging"
SEEDS = (0, 1, 2)
STATES = 64
COLUMNS = {"universal": 2, "penn": 3}
WORDS_OF = "baum-welch-10-0-s0"  # the first run, whose words are those of the whole text
HEAD = """# States as parts of speech

UD English EWT: 204,577 words to learn from and 25,094 to test on, with 17 universal and about 50 Penn tags. Words seen
once are `<unk>`. Every sentence is read from its start to its end, and states are those of the most probable path. Of
each kind, two or three settings were tried on the development text, with seed 0, and those that did best there are
shown: means over three seeds on the test text, with the least and the greatest. `python -m experiments tagging`
measures, `python -m experiments report` writes this page; every run is a file in `experiments/results/tagging`.

Two reservations. Settings were chosen by development text alone, but some were scored on the test text before the last
ones were tried: settings 0 of all kinds without labels, and those that are shown with labels. And Baum–Welch without
labels had not converged: its V-measure rose from 12 to 24 passes, and more may bring it nearer to the others.

"""


class Run(NamedTuple):
    """A run of the study: its group, which of the group's settings, its labels and its seed."""

    group: str
    number: int
    told: tuple[str, ...]
    labelled: str | None  # as `trellis untag` takes it; None: no labels
    seed: int

    @property
    def name(self) -> str:
        """By which its result is found."""
        return f"{self.group}-{self.number}-s{self.seed}"

    @property
    def only(self) -> bool:
        """Whether sentences without labels are left out."""
        return "only" in self.told


class Place(NamedTuple):
    """Where texts are and runs go."""

    data: Path
    runs: Path
    threads: int
    commit: str


def tagging(data_dir: str, runs: Path, threads: int) -> None:
    """Make and record what is missing: all settings of every group with one seed, the best one with the others."""
    place = Place(Path(data_dir) / "ud-ewt", runs, threads, commit_of(HERE.parent))
    torch.set_num_threads(threads)
    best = []
    for group, (labelled, settings) in groups().items():
        tried = [Run(group, number, told, labelled, SEEDS[0]) for number, told in enumerate(settings)]
        for run in tried:
            _record(run, place, tested=False)
        best.append(max(tried, key=_by_development))
    for seed in SEEDS:
        for run in best:
            _record(run._replace(seed=seed), place, tested=True)


def groups() -> dict[str, tuple[str | None, list[tuple[str, ...]]]]:
    """How many sentences each group has labels of, if any, and the settings to try."""
    told = yaml.safe_load((HERE / "tagging.yaml").read_text(encoding="utf-8"))
    found: dict[str, tuple[str | None, list[tuple[str, ...]]]] = {}
    for name, lines in told["supervised"].items():
        for labelled in told["labelled"]:
            number = "all" if labelled == "100%" else labelled
            found[f"{name}-{number}"] = (labelled, [tuple(line.split()) for line in lines])
    for name, lines in told["unsupervised"].items():
        found[name] = (None, [tuple(line.split()) for line in lines])
    return found


def _by_development(run: Run) -> float:
    return _measure(json.loads((RESULTS / f"{run.name}.json").read_text(encoding="utf-8")))


def _measure(one: dict[str, Any]) -> float:
    """What settings are chosen by: V-measure on the development text, or accuracy where there are labels."""
    return float(one["dev"]["universal"]["v_measure" if one["labelled"] is None else "accuracy"])


def _record(run: Run, place: Place, *, tested: bool) -> None:
    """Train the run, unless that was done, and write down its scores."""
    path = RESULTS / f"{run.name}.json"
    known = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    if "dev" in known and ("test" in known or not tested):
        return
    commands, seconds = _train(run, place)
    known = known or {
        "name": run.name,
        "commands": commands,
        "seed": run.seed,
        "labelled": run.labelled,
        "corpus_hash": {split: hash_files([place.data / f"{split}.tsv"]) for split in ("train", "dev", "test")},
        "commit": place.commit,
        "machine": f"{platform.machine()}, {place.threads} threads, torch {torch.__version__}",
        "seconds": seconds,
    }
    known["dev"] = _scores(run, place, "dev")
    if tested:
        known["test"] = _scores(run, place, "test")
    RESULTS.mkdir(parents=True, exist_ok=True)
    write_atomically(path, json.dumps(known, indent=1) + "\n")


def _train(run: Run, place: Place) -> tuple[list[str], float]:
    """Bring the run to its end: the commands that do so, and how long training took."""
    text, out = _text(run, place), place.runs / run.name
    states = STATES if run.labelled is None else len(read_tag_names(text / TAGS_FILE))
    labels = [] if run.labelled is None else [f"data.labels={text / LABELS_FILE}", "training.objective=joint"]
    # Words are those of the whole text, whichever sentences are learnt from.
    words = [f"data.tokenizer={place.runs / WORDS_OF}"] if run.only else []
    told = [
        f"data.corpus={text / WORDS_FILE}", *labels, *words, "data.valid=none", f"model.states={states}",
        *(one for one in run.told if one != "only"), "training.batching=sequences", f"training.seed={run.seed}",
    ]  # fmt: skip
    asked, model = load_told(None, [*told, f"out={out}"])
    texts = prepare_texts(asked.data)
    config = completed(asked, model, texts.train)
    shape = config.with_vocabulary(texts.tokenizer.vocab_size)
    began = time.monotonic()
    train(
        lambda seed: HMM.for_text(shape, texts.train, texts.tokenizer, seed),
        texts.tokenizer, texts.train, None, config.training, out, resume=True, labels=texts.labels,
    )  # fmt: skip
    seconds = round(time.monotonic() - began, 1)
    only = ["--only"] if run.only else []
    labelled = ["--labelled", run.labelled or "0", "--seed", str(run.seed), *only]
    untag = ["untag", "train.tsv", text.name, *labelled]
    tag = ["tag", run.name, "test.tsv", *([] if run.labelled is None else ["--names", f"{text.name}/{TAGS_FILE}"])]
    return [_shown(one, place) for one in (untag, ["train", *told, f"out={run.name}"], tag)], seconds


def _text(run: Run, place: Place) -> Path:
    """The folder of text, labels and names of tags that `trellis untag` would write for a run."""
    folder = place.runs / f"text-{run.labelled or '0'}-{'only-' * run.only}{run.seed}"
    if not folder.exists():
        sentences = read_tagged(place.data / "train.tsv")
        chosen, names = some_sentences(run.labelled or "0", len(sentences), run.seed), tag_names(sentences)
        if run.only:
            sentences = [one for one, known in zip(sentences, chosen, strict=True) if known]
            chosen = chosen[chosen]
        write_untagged(folder, sentences, names, labels_of(sentences, names, chosen))
    return folder


def _scores(run: Run, place: Place, split: str) -> dict[str, Any]:
    """Of the states that the best paths have, against each kind of tags."""
    folder = place.runs / run.name
    model, tokenizer = load_model(folder), load_tokenizer(folder)
    assert isinstance(model, HMM)
    found: dict[str, Any] = {}
    states: list[int] = []
    for tags, column in COLUMNS.items():
        sentences = read_tagged(place.data / f"{split}.tsv", Columns(column))
        states = states or list(chain(*decode_sentences(model, tokenizer, sentences)))
        tag_N = list(chain(*(sentence.tags for sentence in sentences)))
        found[tags] = dict(vars(tagging_scores(states, tag_N)))
        if run.labelled is not None:
            found[tags]["accuracy"] = accuracy(states, tag_N, read_tag_names(_text(run, place) / TAGS_FILE))
            break  # states stand for tags of one kind
    return {tags: {name: round(value, 6) for name, value in scores.items()} for tags, scores in found.items()}


def _shown(arguments: list[str], place: Place) -> str:
    """A command as a reader would write it."""
    plain = [one.replace(f"{place.runs}/", "").replace(f"{place.data}/", "") for one in arguments]
    return shlex.join(["trellis", *plain])


def page(results: Path) -> str:
    """What is written in a folder of results, as a page."""
    found = [json.loads(path.read_text(encoding="utf-8")) for path in sorted(results.glob("*.json"))]
    chosen = _chosen(found)
    tested = [one for one in found if "test" in one and one["name"].rpartition("-")[0] in chosen]
    parts = {
        "Without labels": _unsupervised(tested),
        "With the labels of some sentences": _supervised(tested),
        "What was tried": _tried(found, chosen),
    }
    return HEAD + "\n".join("\n".join([f"## {title}", "", *rows, ""]) for title, rows in parts.items())


def _group(one: dict[str, Any]) -> str:
    return str(one["name"].rsplit("-", 2)[0])


def _of_group(tested: list[dict[str, Any]]) -> dict[str, list[dict[str, Any]]]:
    return {group: [one for one in tested if _group(one) == group] for group in groups()}


def _unsupervised(tested: list[dict[str, Any]]) -> list[str]:
    rows = [
        f"{STATES} states, test text. Mappings of states to tags are chosen on the test text itself, as is the custom.",
        "",
        "| | tags | one-to-one | many-to-one | V-measure |",
        "| --- | --- | --- | --- | --- |",
    ]
    for group, runs in _of_group(tested).items():
        for tags in COLUMNS if runs and runs[0]["labelled"] is None else ():
            scores = [run["test"][tags] for run in runs]
            cells = [_spread([one[name] for one in scores]) for name in ("one_to_one", "many_to_one", "v_measure")]
            rows.append(f"| {group} | {tags} | {' | '.join(cells)} |")
    return rows


def _supervised(tested: list[dict[str, Any]]) -> list[str]:
    kinds = [group.removesuffix("-all") for group in groups() if group.endswith("-all")]
    by_group = {group: runs for group, runs in _of_group(tested).items() if runs and runs[0]["labelled"] is not None}
    rows = [
        "A state for each universal tag, and one for the end of a sentence. Accuracy on the test text.",
        "",
        f"| labelled sentences | {' | '.join(kinds)} |",
        f"| --- |{' --- |' * len(kinds)}",
    ]
    for number in dict.fromkeys(group.rpartition("-")[2] for group in by_group):
        cells = [
            _spread([run["test"]["universal"]["accuracy"] for run in by_group.get(f"{kind}-{number}", [])])
            for kind in kinds
        ]
        rows.append(f"| {number} | {' | '.join(cells)} |")
    return rows


def _tried(found: list[dict[str, Any]], chosen: set[str]) -> list[str]:
    """Every setting with what it had on the development text."""
    rows = []
    for one in found:
        if one["seed"] == SEEDS[0]:
            name = "V-measure" if one["labelled"] is None else "accuracy"
            mark = ", chosen" if one["name"].rpartition("-")[0] in chosen else ""
            train = next(command for command in one["commands"] if command.startswith("trellis train"))
            rows.append(f"- {one['name']}: {name} {_measure(one):.3f}{mark}: `{train}`")
    return rows


def _chosen(found: list[dict[str, Any]]) -> set[str]:
    """The settings of each group that did best on the development text."""
    tried = [one for one in found if one["seed"] == SEEDS[0]]
    best = (max((one for one in tried if _group(one) == group), key=_measure) for group in {_group(o) for o in tried})
    return {one["name"].rpartition("-")[0] for one in best}


def _spread(values: list[float]) -> str:
    """The mean, and between which values."""
    if not values:
        return ""
    around = f" ({min(values):.3f}–{max(values):.3f})" if len(values) > 1 else ""
    return f"{mean(values):.3f}{around}"
