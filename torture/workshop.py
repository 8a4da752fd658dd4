"""What faults are done to: small texts, runs, models and caches, made once; and the answers of the undamaged ones."""

from __future__ import annotations

import hashlib
import json
import shutil
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from torture.outcomes import ended_well
from torture.server import Command, Ran, run

SUBJECTS, VERBS = ("the cat", "a dog", "one bird", "my old horse"), ("saw", "likes", "heard", "left")
OBJECTS = ("the milk", "a bone", "seeds", "its warm stable")
TEXTS = ("train.txt", "valid.txt", "lines.txt", "gaps.txt")
TRAINING = ("training.batch_size=8", "training.length=8", "training.epochs=2", "training.lr=0.1",
            "training.checkpoint_every=5", "training.validations=2")  # fmt: skip
DENSE = ("model.states=8",)
BLOCKED = ("model.support=brown", "model.states=24", "model.blocks=4", "model.encoder=residual", "model.width=8",
           "model.start=low_rank", "model.transition=hierarchical", "model.emission=low_rank", "model.bias=true",
           "model.dropout=0.5")  # fmt: skip
# One small model of each kind, by the settings that make it.
MODELS: dict[str, tuple[str, ...]] = {
    "dense": DENSE,
    "blocked": BLOCKED,
    "lstm": ("model.kind=lstm", "model.width=8", "model.layers=1"),
    "low_rank": ("model.states=8", "model.width=4", "model.start=low_rank", "model.transition=low_rank",
                 "model.emission=low_rank", "model.memory=1"),
    "uniform": ("model.states=16", "model.support=uniform", "model.blocks=4"),
    "bytes": ("model.states=6", "data.tokenizer=bytes"),
    "pieces": ("model.states=6", "data.tokenizer=bpe", "data.vocab_size=280"),
    "kneser_ney": ("model.kind=kneser_ney", "model.order=3"),
    "feed_forward": ("model.kind=feed_forward", "model.width=8", "model.order=3"),
    "awd_lstm": ("model.kind=awd_lstm", "model.width=8", "model.hidden=10", "model.layers=2"),
    "transformer": ("model.kind=transformer", "model.width=16", "model.layers=1", "model.heads=2", "model.context=8"),
    "hmm_rnn": ("model.kind=hmm_rnn", "model.states=5", "model.width=4"),
}  # fmt: skip
RESUMED = ("dense", "blocked", "lstm")  # models of which there is a run that was stopped half-way
LASTING = (".safetensors", ".npy", ".bin", ".paths", ".txt")  # files that are the same to the bit, made when they may
# Commands that read a model, here called MODEL.
READING: dict[str, tuple[str, ...]] = {
    "evaluate": ("evaluate", "MODEL", "valid.txt", "--json"),
    "score": ("score", "MODEL", "lines.txt", "--json"),
    "sample": ("sample", "MODEL", "--count", "3", "--seed", "1"),
    "inspect": ("inspect", "MODEL"),
    "decode": ("decode", "MODEL", "lines.txt", "--json"),
    "fill": ("fill", "MODEL", "gaps.txt", "--json"),
    "export": ("export", "MODEL", "plain"),
}


def sentences(random: Random, count: int) -> list[str]:
    """Sentences with something to learn in them."""
    return [" ".join(map(random.choice, (SUBJECTS, VERBS, OBJECTS))) for _ in range(count)]


def train_arguments(model: str, out: str) -> tuple[str, ...]:
    """The command that trains a model of the workshop."""
    texts = ("train.txt", "data.valid=valid.txt", "data.test=valid.txt")
    return ("train", *texts, *MODELS[model], *TRAINING, f"out={out}")


class Workshop:
    """A folder with everything that faults begin from; each fault works in a copy of what it needs."""

    def __init__(self, folder: Path, seed: int) -> None:
        self.folder, self.seed = folder, seed
        self._made: set[str] = set()
        folder.mkdir(parents=True, exist_ok=True)
        random = Random(f"texts of {seed}")
        self._write("train.txt", sentences(random, 120))
        self._write("valid.txt", sentences(random, 12))
        self._write("lines.txt", sentences(random, 3))
        self._write("gaps.txt", [line.replace("the", "<mask>").replace("a ", "<mask> ") for line in SUBJECTS])

    def _write(self, name: str, lines: list[str]) -> None:
        (self.folder / name).write_text("".join(f"{line}\n" for line in lines), encoding="utf-8")

    def must(self, *arguments: str, folder: Path | None = None, **given: Any) -> Ran:
        """Run a command that has no reason to fail; what is broken before any fault ends the bench."""
        ran = run(Command(arguments, folder or self.folder, **given))
        if not ended_well(ran, stopped=given.get("stop_after") is not None):
            raise RuntimeError(f"trellis {' '.join(arguments)}, undisturbed: {ran.err}")
        return ran

    def make(self, name: str) -> Path:
        """The folder or file of this name, made when first asked for."""
        if name not in self._made:
            kind, _, model = name.partition("/")
            {"runs": self._train, "half": self._half, "clusters.paths": self._cluster, "labels": self._label,
             "teacher": self._teach, "prepared": self._prepare}[kind](model or kind)  # fmt: skip
            self._made.add(name)
        return self.folder / name

    def _train(self, model: str) -> None:
        self.must(*train_arguments(model, f"runs/{model}"))

    def _teach(self, _: str) -> None:
        self.must("train", "train.txt", "data.valid=valid.txt", *MODELS["lstm"], *TRAINING, "out=teacher")

    def _label(self, _: str) -> None:
        self.make("teacher")
        self.must(*label_arguments())

    def _cluster(self, name: str) -> None:
        self.must("cluster", "train.txt", "--clusters", "4", "--out", name)

    def _prepare(self, _: str) -> None:
        self.must("prepare", "train.txt")

    def _half(self, model: str) -> None:
        """A run that was stopped when it had come half-way."""
        self.must(*train_arguments(model, f"half/{model}"), before=_stop_half_way, stop_after=60.0)

    def copy(self, to: Path, *names: str) -> None:
        """Texts, cache and these folders, to be damaged at will."""
        for name in names:
            self.make(name)
        to.mkdir(parents=True, exist_ok=True)
        for name in (*TEXTS, "cache", *names):
            source = self.folder / name
            if source.is_dir():
                shutil.copytree(source, to / name, symlinks=True, dirs_exist_ok=True)
            elif source.exists():
                (to / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(source, to / name)

    @cache  # noqa: B019  # there is one workshop, and it lives as long as the process
    def wanted(self, command: tuple[str, ...], *names: str) -> tuple[int, Any]:
        """Exit code and answers of a command in an undamaged copy."""
        place = self.folder / "undamaged"
        shutil.rmtree(place, ignore_errors=True)
        self.copy(place, *names)
        ran = run(Command(command, place))
        well = ended_well(ran)
        found = answers(ran.out, place)
        shutil.rmtree(place)
        return (0 if well else 2), found


def label_arguments() -> tuple[str, ...]:
    """The command that labels the text by a teacher."""
    return ("distill", "train.txt", "data.valid=valid.txt", "data.tokenizer=teacher", "distill.teacher=teacher",
            "distill.tokens=400", "model.states=6", "--json")  # fmt: skip


def _stop_half_way() -> None:
    """In the child: have the run stop as by Ctrl-C when its second checkpoint is there."""
    import os
    import signal

    from trellis.training import checkpoints

    save, seen = checkpoints.save, []

    def counted(*arguments: Any, **named: Any) -> Path:
        seen.append(1)
        if len(seen) == 2:
            os.kill(os.getpid(), signal.SIGTERM)
        return save(*arguments, **named)

    checkpoints.save = counted


def answers(out: str, folder: Path) -> Any:
    """What a command said, and the weights that it wrote: without times and without the name of the folder."""
    said = []
    for line in out.replace(str(folder), "HERE").splitlines():
        try:
            said.append(_timeless(json.loads(line)))
        except ValueError:
            said.append(line)
    return [said, weights(folder / "plain")]


def _timeless(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: _timeless(inner) for name, inner in value.items() if "second" not in name}
    return [_timeless(inner) for inner in value] if isinstance(value, list) else value


def weights(folder: Path) -> str | None:
    """The hash of a model's weights; None if there are none."""
    path = folder / "model.safetensors"
    return hashlib.sha256(path.read_bytes()).hexdigest() if path.is_file() else None


def digest(folder: Path, *names: str) -> dict[str, str]:
    """Hashes of what lies below these names: files with times in them are left out; of links, where they lead."""
    found = {}
    for name in names or (".",):
        top = folder / name
        for path in sorted([top, *top.rglob("*")] if top.is_dir() else [top]):
            if path.is_symlink():
                found[str(path.relative_to(folder))] = f"link to {path.readlink()}"
            elif path.is_file() and (path.suffix in LASTING or path.name == "tokenizer.json"):
                found[str(path.relative_to(folder))] = hashlib.sha256(path.read_bytes()).hexdigest()
    return found
