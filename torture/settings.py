"""Bad settings, on the command line and in YAML files: one by one, together, and absurd on purpose."""

from __future__ import annotations

import dataclasses
import json
from functools import cache
from pathlib import Path
from random import Random
from typing import Any

from torture.outcomes import REFUSED, UNHARMED, HarmError
from torture.trial import Trial
from torture.workshop import MODELS, TRAINING

NUMBERS = ("0", "-1", "1", "2", "3", "7", "1.5", "-0.0", "1e-300", "1e300", "1e400", "nan", "inf", "-inf",
           "2147483648", "9223372036854775807", "9223372036854775808", "1" + "0" * 400, "0x10", "1_0", "٣")  # fmt: skip
WORDS = ("", " ", "none", "null", "~", "true", "false", "x", "é" * 3, "[]", "{}", "[1, 2]", "[[[]]]", "{a: 1}", "'",
         '"', "&a [*a]", "!!python/object/apply:os.system [ls]", "!!float x", "2020-01-01", "/", ".", "..", "/dev/null",
         "a\tb", "%s", "${HOME}", "-", "--help", "=", "a" * 3000, "\u202e", "dense", "brown", "low_rank", "yes",
         "1:2:3", "hierarchical", "train.txt", "nowhere/at/all", "2^22", "2^99", "0o7", "@x", "`", ": ")  # fmt: skip
# Documents that are no settings, or strange ones.
DOCUMENTS = (
    b"", b"\0", b"\xff\xfe", b"\xef\xbb\xbfmodel: {states: 4}\n", b"- 1\n- 2\n", b"just text\n", b"model: [", b"1: 2\n",
    b"model:\n\tstates: 3\n", b"a: &a [*a]\n", b"model: &m {states: *m}\n", b"? {a: b}\n: c\n", b"---\n---\n",
    b"model: {states: 4}\nmodel: {states: 5}\n", b"!!python/object/apply:os.system ['touch owned']\n",
    b"model: !!binary xx\n", b"<<: {model: {states: 3}}\n", b"model: {1: 2}\n", b"model: {states: 2020-13-45}\n",
    b"null: null\n", b"[" * 2000, b"{a: " * 2000, b"&a " * 1000, b"%YAML 9.9\n---\n",
    b"a: &a [x,x,x,x,x,x,x,x,x]\nb: &b [*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b]\nd: [*c,*c,*c,*c,*c,*c]\n",
)  # fmt: skip
STOP_AFTER = 6.0  # seconds of a run that was taken up: then it is asked to stop


@cache
def names() -> tuple[str, ...]:
    """Every setting of a run, of every kind of model."""
    from trellis.config import RunConfig
    from trellis.models.registry import KINDS, config_class

    found = {"out"}
    for group in ("data", "training", "distill"):
        kind = type(getattr(RunConfig(), group))
        found |= {f"{group}.{field.name}" for field in dataclasses.fields(kind)}
    for kind in KINDS:
        found |= {f"model.{field.name}" for field in dataclasses.fields(config_class(kind))}
    return tuple(sorted(found | {"model.kind"}))


def fault(trial: Trial) -> str:
    """Train with settings of which some are bad."""
    trial.guard()
    trial.workshop.copy(trial.folder, "prepared")
    model = MODELS[trial.random.choice([name for name in MODELS if name != "transformer"])]
    good = ["data.valid=valid.txt", *model, *TRAINING, "training.epochs=0.5", "out=run"]
    bad = [_setting(trial.random) for _ in range(trial.random.choices((1, 2, 4), (6, 3, 1))[0])]
    trial.what = ", ".join(setting[:100] for setting in bad)
    arguments = _in_a_file(trial, good, bad) if trial.random.random() < 0.4 else ("train.txt", *good, *bad)
    ran = trial.run("train", *arguments, "--json", stop_after=STOP_AFTER)
    if not trial.judged(ran, stopped=True):
        return REFUSED
    _refuse_no_numbers(trial.folder)
    if (trial.folder / "owned").exists():
        raise HarmError("outside", "a file of settings ran a command")
    return UNHARMED


def _setting(random: Random) -> str:
    name = random.choice(names())
    if random.random() < 0.06:
        name = random.choice((name + "x", name.split(".")[-1], f"{name}.x", "", ".", "model", "x.y.z", name.upper()))
    value = random.choice(NUMBERS if random.random() < 0.5 else WORDS)
    if name == "out" and value.startswith(("/", ".")):
        value = "precious"  # a run may go wherever it is told, but not into what is no run's
    return f"{name}={value}"


def _in_a_file(trial: Trial, good: list[str], bad: list[str]) -> tuple[str, ...]:
    """The same as a YAML file, or one that is none."""
    path = trial.folder / trial.random.choice(("settings.yaml", "settings.yml"))
    if trial.random.random() < 0.25:
        content = trial.random.choice(DOCUMENTS)
        trial.what = repr(content[:100])
        path.write_bytes(content)
        return (path.name, *good)
    groups: dict[str, Any] = {}
    for setting in ("data.corpus=train.txt", *good, *bad):
        name, _, value = setting.partition("=")
        group, _, inner = name.partition(".")
        if inner:
            groups.setdefault(group, {})
            if isinstance(groups[group], dict):
                groups[group][inner] = value
        else:
            groups[group] = value
    path.write_text(_yaml(groups, trial.random), encoding="utf-8")
    return (path.name,)


def _yaml(groups: dict[str, Any], random: Random) -> str:
    """Values as they stand, which may be no YAML at all, or quoted."""
    quoted = random.random() < 0.2
    lines = []
    for name, value in groups.items():
        if isinstance(value, dict):
            lines.append(f"{json.dumps(name)}:")
            lines += [f"  {json.dumps(inner)}: {json.dumps(one) if quoted else one}" for inner, one in value.items()]
        else:
            lines.append(f"{json.dumps(name)}: {json.dumps(value) if quoted else value}")
    return "\n".join(lines) + "\n"


def _refuse_no_numbers(folder: Path) -> None:
    """Raise if a run ended well with weights that are no numbers."""
    import numpy as np
    from safetensors.numpy import load_file

    for path in folder.rglob("model.safetensors"):
        for name, tensor in load_file(path).items():
            if np.isnan(tensor).any():
                raise HarmError("nan", f"{name} of {path.relative_to(folder)}")
