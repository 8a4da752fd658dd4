"""One rule for each thing that several commands share: how lines begin, splits, seeds, help and waiting."""

import inspect
import io
import os
import pty
import subprocess
import sys

import pytest
import torch

from trellis import HMMConfig, WordTokenizer, cli
from trellis.cli import main
from trellis.progress import waiting
from trellis.text.characters import CharacterTokenizer
from trellis.text.integers import IntegerTokenizer
from trellis.text.sources import DataSettings
from trellis.text.subwords import SubwordTokenizer

from .commands import TINY, call, done, nats_of, records, type_in

COMMANDS = {info.name: info.callback for info in cli.app.registered_commands}
DEFAULTS = {"split": "test", "seed": 0, "bos": None, "eos": True, "json": False, "device": "auto", "threads": None}

# A run's device is among its settings, all splits are prepared, and the seed is of a text that need not be sampled.
OTHERWISE = {("train", "device"), ("prepare", "split"), ("distill", "seed")}


@pytest.mark.parametrize("command", COMMANDS)
def test_the_same_option_has_the_same_default_everywhere(command):
    options = inspect.signature(COMMANDS[command]).parameters
    for name in DEFAULTS.keys() & options.keys():
        if (command, name) not in OTHERWISE:
            assert options[name].default == DEFAULTS[name], name


def test_the_size_of_a_vocabulary_has_one_name_everywhere():
    """In commands, settings and tokenizers alike."""
    makers = [WordTokenizer.train, WordTokenizer.count, CharacterTokenizer.train, SubwordTokenizer.train_bpe]
    for maker in [*makers, IntegerTokenizer, HMMConfig, DataSettings, COMMANDS["prepare"], COMMANDS["cluster"]]:
        names = inspect.signature(maker).parameters.keys()
        assert "vocab_size" in names, maker
        assert not names & {"size", "vocabulary", "vocabulary_size"}, maker


@pytest.mark.parametrize("command", [*COMMANDS, None])
def test_help_shows_flags_without_a_type(capsys, command):
    shown = done(capsys, *([] if command is None else [command]), "--help")
    assert "--help" in shown
    assert "<bool>" not in shown


def test_the_studies_help_shows_flags_without_a_type():
    found = subprocess.run([sys.executable, "-m", "experiments", "--help"], capture_output=True, text=True, check=True)
    assert "--help" in found.stdout
    assert "<bool>" not in found.stdout


def begins_after_end(capsys, monkeypatch, run, model, tokenizer, *options):
    """Whether score begins a line after `<eos>`, rather than at the start distribution."""
    type_in(monkeypatch, "the cat saw\n")
    (line,) = records(done(capsys, "score", run, "--json", *options))
    _, after = model.score(torch.tensor([[tokenizer.eos_id]]))
    nats = {state is not None: sum(nats_of(model, tokenizer, "the cat saw", state)[0]) for state in (None, after)}
    (found,) = (begins for begins, one in nats.items() if line["log_prob"] == pytest.approx(one, rel=1e-5))
    return found


def test_a_line_begins_as_sentences_did_in_training(capsys, monkeypatch, run, place, texts, model, tokenizer):
    assert begins_after_end(capsys, monkeypatch, run, model, tokenizer)
    assert begins_after_end(capsys, monkeypatch, run, model, tokenizer, "--bos")
    assert not begins_after_end(capsys, monkeypatch, run, model, tokenizer, "--no-bos")
    folder = place / "sequences"
    assert main(["train", *texts, *TINY, "training.batching=sequences", f"out={folder}"]) == 0
    capsys.readouterr()
    whole = cli.terminal.load(str(folder), "cpu")
    assert not begins_after_end(capsys, monkeypatch, folder, whole.model, whole.tokenizer)
    assert begins_after_end(capsys, monkeypatch, folder, whole.model, whole.tokenizer, "--bos")


def test_sampling_and_decoding_begin_as_scoring_does(capsys, run, place):
    assert done(capsys, "sample", run) == done(capsys, "sample", run, "--bos")
    assert done(capsys, "sample", run, "--count", 20) != done(capsys, "sample", run, "--count", 20, "--no-bos")
    file = place / "test.txt"
    assert done(capsys, "decode", run, file) == done(capsys, "decode", run, file, "--bos")
    assert done(capsys, "decode", run, file) != done(capsys, "decode", run, file, "--no-bos")


def test_a_seed_that_is_none(capsys, run):
    code, _, err = call(capsys, "sample", run, "--seed", 2**63)
    assert code == 2
    assert "less than 2^63" in err
    assert call(capsys, "sample", run, "--seed", -1)[0] == 2


class Terminal(io.StringIO):
    def isatty(self):
        return True


def test_waiting_is_said_on_a_terminal_alone_and_taken_back():
    for stream, shown in ((Terminal(), "loading it …"), (io.StringIO(), "")):
        with waiting("loading it", stream):
            assert stream.getvalue() == shown
        assert stream.getvalue() == (shown + "\r" + " " * len(shown) + "\r" if shown else "")


def test_what_is_waited_for_is_said_before_pytorch_is_there(run, place):
    """The first thing on a terminal is why nothing happens, and a pipe hears nothing."""
    command = [sys.executable, "-m", "trellis", "score", str(run), str(place / "test.txt")]
    ours, theirs = pty.openpty()
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs) as process:
        os.close(theirs)
        said = b""
        while piece := _read(ours):
            said += piece
        assert process.wait() == 0
    os.close(ours)
    assert said.decode().startswith("loading PyTorch …\r")
    quiet = subprocess.run(command, capture_output=True, text=True, check=True)
    assert "…" not in quiet.stderr


def _read(descriptor):
    try:
        return os.read(descriptor, 4096)
    except OSError:  # how a terminal ends on Linux
        return b""
