"""Models whose files changed or whose numbers are none: one sentence and exit code 2 from every command."""

import re

import pytest
import torch

from trellis import HMM, HMMConfig
from trellis.manifests import MANIFEST
from trellis.models.tensor_files import read_tensors, write_tensors
from trellis.text import WordTokenizer

from .commands import call

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])
COMMANDS = {
    "evaluate": ["evaluate", "model", "text.txt"],
    "evaluate as JSON": ["evaluate", "model", "text.txt", "--json"],
    "score": ["score", "model", "text.txt"],
    "sample": ["sample", "model"],
    "decode": ["decode", "model", "text.txt"],
    "fill": ["fill", "model", "gaps.txt"],
    "inspect": ["inspect", "model"],
    "export": ["export", "model", "plain"],
}
every_command = pytest.mark.parametrize("command", COMMANDS.values(), ids=COMMANDS.keys())


@pytest.fixture(autouse=True)
def model(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    (tmp_path / "text.txt").write_text("a b c a b\nb c a\n")
    (tmp_path / "gaps.txt").write_text("a <mask> c\n")
    HMM(HMMConfig(WORDS.vocab_size, states=3), seed=0).save_pretrained("model", WORDS)
    return tmp_path / "model"


def rewrite(model, **changes):
    """Other weights, as of an older version: without a manifest."""
    write_tensors(model / "model.safetensors", read_tensors(model / "model.safetensors") | changes)
    (model / MANIFEST).unlink()


def refused(capsys, command):
    code, out, err = call(capsys, *command)
    assert code == 2
    assert len(out.splitlines()) <= 1  # at most the heading of a table
    lines = [line for line in err.splitlines() if line.startswith("error")]
    assert len(lines) == 1
    return lines[0]


@every_command
def test_a_whole_model_answers(command, capsys):
    code, _, err = call(capsys, *command)
    assert code == 0, err


@every_command
@pytest.mark.parametrize("number", [torch.nan, torch.inf])
def test_numbers_that_are_none_are_named(number, command, model, capsys):
    table = torch.randn(WORDS.vocab_size, 3)
    table[2, 1] = number
    rewrite(model, **{"emission.table": table})
    assert f"emission.table in model holds {number}, which is no number" in refused(capsys, command)


@every_command
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_changed_are_found(name, command, model, capsys):
    data = bytearray((model / name).read_bytes())
    data[-2] ^= 1
    (model / name).write_bytes(data)
    said = refused(capsys, command)
    if name.startswith("tokenizer"):  # which is no JSON any more
        assert re.search(rf"{name} is .*; fetch|{name} is .*: fetch|{name} has changed", said)
    else:
        assert f"{name} has changed since it was written: restore it, or delete manifest.json beside it" in said


@every_command
@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json", "tokenizer_config.json"])
def test_files_that_are_missing_are_named(name, command, model, capsys):
    (model / name).unlink()
    assert name in refused(capsys, command)


@every_command
@pytest.mark.parametrize("nested", ["[", '{"a":'])
def test_json_that_is_nested_too_deep_is_refused(nested, command, model, capsys):
    (model / "config.json").write_text(nested * 100_000)
    (model / MANIFEST).unlink()
    assert "config.json is cut short or damaged (it is nested more than 64 deep)" in refused(capsys, command)


@pytest.mark.parametrize("name", ["evaluate", "evaluate as JSON", "score", "sample"])
def test_answers_that_are_no_numbers_are_refused(name, model, capsys):
    """A state in which everything is impossible has no distribution at all."""
    rewrite(model, **{"emission.table": torch.full((WORDS.vocab_size, 3), -torch.inf)})
    assert "not a number" in refused(capsys, COMMANDS[name]).replace("not numbers", "not a number")
