"""Damaged files: models, runs, checkpoints, tokenizers, caches; read by every command that reads them."""

from __future__ import annotations

import os
from pathlib import Path

from torture.damage import damage
from torture.outcomes import REFUSED, UNHARMED, HarmError, refuse_partials, same
from torture.trial import Trial, refusal
from torture.workshop import DENSE, MODELS, READING, RESUMED, TRAINING, answers, digest, label_arguments
from trellis.manifests import MANIFEST

# How often each kind of model is damaged; a transformer takes two seconds to import.
WEIGHTS = {name: {"dense": 6, "blocked": 5, "lstm": 3, "transformer": 0.3}.get(name, 2) for name in MODELS}


def fault(trial: Trial) -> str:
    """Damage one to three files, and run a command that reads them."""
    trial.guard()
    kinds = {_model: 10, _run: 8, _cache: 6, _labels: 2, _input: 3}
    return trial.random.choices([*kinds], [*kinds.values()])[0](trial)


def _damage(trial: Trial, *folders: str) -> None:
    """Damage files below these folders, and say which.

    Who deletes a manifest says that changes are meant, so of several damages none is to delete one.
    """
    said, count = [], trial.random.choices((1, 2, 3), (8, 1, 1))[0]
    found = [path.resolve() for folder in folders for path in (trial.folder / folder).rglob(MANIFEST)]
    manifests = {path: path.read_bytes() for path in found}
    for _ in range(count):
        files = sorted(_files([trial.folder / folder for folder in folders]))
        if files:
            path = trial.random.choice(files)
            said.append(f"{path.parent.relative_to(trial.folder)}: {damage(path, trial.random)}")
    for path, content in manifests.items():
        there = os.path.lexists(path) or not path.parent.is_dir() or os.path.realpath(path.parent) != str(path.parent)
        if count > 1 and not there:  # nor behind a link
            path.write_bytes(content)
    trial.what = "; ".join(said)


def _files(folders: list[Path]) -> list[Path]:
    """Files whose content somebody reads: no locks, and what TensorBoard alone reads seldom matters."""
    # A folder that an earlier damage made a link leads to what must not be touched.
    own = [folder for folder in folders if not folder.is_symlink() and not folder.parent.is_symlink()]
    found = [path for folder in own for path in ([folder] if folder.is_file() else folder.rglob("*"))]
    return [path for path in found if path.is_file() and not path.is_symlink() and path.suffix != ".lock"]


def _model(trial: Trial) -> str:
    name = trial.random.choices([*WEIGHTS], [*WEIGHTS.values()])[0]
    model, reading = f"runs/{name}", trial.random.choice([*READING])
    command = tuple(word.replace("MODEL", model) for word in READING[reading])
    code, wanted = trial.workshop.wanted(command, model)
    trial.workshop.copy(trial.folder, model)
    _damage(trial, f"{model}/best")
    ran = trial.run(*command)
    if not trial.judged(ran):
        return refusal(ran)
    if code == 0 and not same(answers(ran.out, trial.folder), wanted):
        raise HarmError("silent", f"other answers than before:\n{ran.out[-2000:]}")
    return UNHARMED


def _run(trial: Trial) -> str:
    """A run that goes on from damaged files ends with the same bits, or does not go on."""
    name = trial.random.choice(RESUMED)
    trial.workshop.copy(trial.folder, f"half/{name}", f"runs/{name}")
    _damage(trial, f"half/{name}")
    ran = trial.run("train", f"half/{name}", "--resume", "--json")
    if not trial.judged(ran):
        return refusal(ran)
    refuse_partials(trial.folder)
    there, here = (digest(trial.folder / top / name, "best") for top in ("runs", "half"))
    if there != here:
        raise HarmError("silent", "the run ended with other weights")
    return UNHARMED


def _cache(trial: Trial) -> str:
    """Ids, tokenizers and clusters in the cache: found damaged, they are made again or refused."""
    name = trial.random.choice(("dense", "blocked", "pieces", "bytes"))
    trial.workshop.copy(trial.folder, f"runs/{name}")
    _damage(trial, "cache")
    settings = (*MODELS[name], *TRAINING, "out=again")
    ran = trial.run("train", "train.txt", "data.valid=valid.txt", "data.test=valid.txt", *settings, "--json")
    if not trial.judged(ran):
        return refusal(ran)
    refuse_partials(trial.folder)
    if digest(trial.folder / "again", "best") != digest(trial.folder / "runs" / name, "best"):
        raise HarmError("silent", "the run ended with other weights")
    return UNHARMED


def _labels(trial: Trial) -> str:
    """A teacher, its clusters and the labels that they gave."""
    command = label_arguments()
    _, wanted = trial.workshop.wanted(command, "labels", "teacher")
    trial.workshop.copy(trial.folder, "labels", "teacher")
    caches = [f"cache/{path.name}" for path in sorted((trial.folder / "cache").glob("[cl]*-*"))]
    _damage(trial, *trial.random.choice((caches, ["teacher"])))
    ran = trial.run(*command)
    if not trial.judged(ran):
        return refusal(ran)
    refuse_partials(trial.folder)
    found, before = answers(ran.out, trial.folder)[0][0], wanted[0][0]
    about = ("used_states", "entropy_bits", "tokens")
    if any(not same(found[name], before[name]) for name in about):
        raise HarmError("silent", f"other labels than before:\n{ran.out[-2000:]}")
    return UNHARMED


def _input(trial: Trial) -> str:
    """Files that people write: whatever they say now, it is taken or refused."""
    trial.workshop.copy(trial.folder, "clusters.paths", "runs/dense")
    name = trial.random.choice(("clusters.paths", "runs/dense/config.yaml"))
    _damage(trial, name)
    short = ("training.epochs=0.1", "training.device=cpu")
    if name == "clusters.paths":
        blocks = ("model.support=clusters.paths", "model.states=16", "model.blocks=4")
        arguments = ("train", "train.txt", *blocks, *TRAINING, *short, "out=new")
    else:
        arguments = trial.random.choice((
            ("train", "runs/dense/config.yaml", *DENSE, *short, "out=new"), ("train", "runs/dense", "--resume"),
            ("evaluate", "runs/dense"), ("train", "runs/dense/config.yaml", *short, "out=new"),
        ))  # fmt: skip
    ran = trial.run(*arguments, stop_after=10.0)
    return UNHARMED if trial.judged(ran, stopped=True) else REFUSED
