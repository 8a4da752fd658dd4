"""Commands run in the tests' own process, and what they print."""

import io
import json
import sys

import torch

from trellis.cli import main

SUBJECTS, VERBS, OBJECTS = ("the cat", "a dog", "one bird"), ("saw", "likes", "heard"), ("the milk", "a bone", "seeds")
LINES = [f"{s} {v} {o}" for s in SUBJECTS for v in VERBS for o in OBJECTS]
TINY = ["model.states=8", "training.batch_size=8", "training.length=8", "training.epochs=3", "training.lr=0.2"]


def call(capsys, *arguments):
    """Run a command in this process: exit code, standard output and standard error."""
    code = main([str(argument) for argument in arguments])
    out, err = capsys.readouterr()
    return code, out, err


def done(capsys, *arguments):
    code, out, err = call(capsys, *arguments)
    assert code == 0, err
    return out


def rows(out):
    """Tab-separated output, without its heading."""
    return [line.split("\t") for line in out.splitlines()[1:]]


def records(out):
    return [json.loads(line) for line in out.splitlines()]


def type_in(monkeypatch, text):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(text.encode())))


def nats_of(model, tokenizer, text, state=None):
    log_prob_BT, state = model.score(torch.tensor([[*tokenizer.encode(text), tokenizer.eos_id]]), state)
    return log_prob_BT[0].tolist(), state
