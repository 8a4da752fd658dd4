"""Every setting is explained, with the default and the kind that it has."""

import dataclasses
import subprocess
import sys
from pathlib import Path

import pytest

from trellis.cli.settings import page
from trellis.cli.train import SETTINGS
from trellis.config import RunConfig
from trellis.meanings import every_setting
from trellis.models.registry import KINDS, config_class
from trellis.training import TrainingSettings

DOCS = Path(__file__).parent.parent / "docs"


def settings():
    return {one.name: one for one in every_setting()}


def test_every_setting_has_a_meaning():
    assert [one.name for one in every_setting() if not one.meaning or not one.kind] == []


def test_every_field_of_a_run_is_there_once():
    names = [one.name for one in every_setting()]
    assert len(set(names)) == len(names)
    for group in ("data", "training", "distill"):
        (field,) = [field for field in dataclasses.fields(RunConfig) if field.name == group]
        wanted = {f"{group}.{own.name}" for own in dataclasses.fields(field.default_factory)}
        assert {name for name in names if name.startswith(f"{group}.")} == wanted
    for kind in KINDS:
        group = "model" if kind == "hmm" else f"model({kind})"
        own = {field.name for field in dataclasses.fields(config_class(kind))} - {"vocab_size", "architecture"}
        assert {f"{group}.{name}" for name in own} <= set(names)


@pytest.mark.parametrize(
    ("name", "kind", "default", "meaning"),
    [
        ("data.vocab_size", "whole number", "null", "types to learn"),
        ("training.method", "adamw | sgd | baum_welch", "adamw", "by the gradient"),
        ("training.betas", "list of number", "[0.9, 0.95]", "decay of the gradient's first and second moment"),
        ("model.shared", "true | false", "null", "by default three of table, one of networks"),  # on two lines
        ("out", "text", "null", "the run's folder"),
    ],
)
def test_a_setting_is_told_as_people_write_it(name, kind, default, meaning):
    found = settings()[name]
    assert (found.kind, found.default) == (kind, default)
    assert meaning in found.meaning


def test_defaults_are_those_of_the_class():
    assert settings()["training.clip"].default == str(TrainingSettings().clip)


def test_the_committed_page_is_what_the_settings_say():
    assert (DOCS / "settings.md").read_text(encoding="utf-8") == "\n".join(page()) + "\n"


def command(*words):
    return subprocess.run([sys.executable, "-m", "trellis", *words], capture_output=True, text=True, check=False)


def test_a_word_finds_its_settings_and_a_misspelt_one_the_nearest():
    told = command("settings", "clip")
    assert told.returncode == 0
    assert "training.clip" in told.stdout
    assert "model.states" not in told.stdout
    told = command("settings", "dropuot")
    assert told.returncode == 2
    assert told.stderr == "error: no setting has 'dropuot' in it: did you mean 'dropout'?\n"


def test_the_version_is_told():
    assert command("--version").stdout == "trellis 0.1.0\n"


def test_help_of_train_names_settings_that_there_are():
    told = " ".join(command("train", "--help").stdout.replace("│", " ").split())
    for name in ("model.states", "training.epochs", "training.lr", "out"):
        assert name in told
        assert name in settings()
    assert "trellis settings" in told
    for group, names in SETTINGS.items():
        assert names.split() == [name.partition(".")[2] for name in settings() if name.startswith(f"{group}.")]
        assert f"{group}. {names}" in told
