"""`trellis train` on a tiny text: what it leaves, and how it stops and goes on."""

import json
import re
import signal
import subprocess
import sys
import time

import pytest
import yaml

from trellis.cli import main
from trellis.models import hmm

from .commands import TINY, call, done

LOW_RANK = ["model.transition=low_rank", "model.emission=low_rank", "model.width=6"]


def test_training_learns_and_leaves_everything(run, model, place, tokenizer):
    assert {"best", "config.yaml", "metrics.jsonl", "tensorboard"} <= {path.name for path in run.iterdir()}
    measured = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    assert min(line["valid_perplexity"] for line in measured if "valid_perplexity" in line) < 10
    assert model.config.states == 8


def test_the_saved_config_is_the_whole_run(run):
    config = yaml.safe_load((run / "config.yaml").read_text())
    assert config["model"]["states"] == 8
    assert config["training"]["seed"] == 0
    assert config["out"] == str(run)


def test_training_ends_with_figures_and_what_to_try_next(capsys, place, texts, tmp_path):
    out = done(capsys, "train", *texts, *TINY, "training.epochs=0.2", f"out={tmp_path / 'r'}")
    assert "best validation perplexity" in out
    assert f"trellis evaluate {tmp_path / 'r'}" in " ".join(out.split())
    code, out, err = call(capsys, "train", tmp_path / "r" / "config.yaml", "--resume", "--json")
    assert code == 0
    assert json.loads(out)["model"] == str(tmp_path / "r" / "best")
    assert "learning from train.txt" in err


def test_what_to_try_next_works_for_models_too_large_for_tables(capsys, place, texts, tmp_path, monkeypatch):
    monkeypatch.setattr(hmm, "LARGEST_DENSE", 8)
    shape = ["model.support=brown", "model.states=12", "model.blocks=3", "model.width=4", "model.encoder=residual",
             "model.transition=hierarchical", "model.emission=low_rank", "training.epochs=0.2"]  # fmt: skip
    out = done(capsys, "train", *texts, *TINY, *shape, f"out={tmp_path / 'r'}")
    (command,) = re.findall(rf"trellis (inspect {re.escape(str(tmp_path / 'r'))} --corpus \S+)", " ".join(out.split()))
    assert "12 states" in done(capsys, *command.split())
    code, _, err = call(capsys, "inspect", tmp_path / "r")
    assert (code, "measure usage on a text" in " ".join(err.split())) == (2, True)


def test_the_same_config_gives_the_same_model(capsys, run, tmp_path):
    done(capsys, "train", run / "config.yaml", f"out={tmp_path / 'again'}")
    first, second = ((folder / "best" / "model.safetensors").read_bytes() for folder in (run, tmp_path / "again"))
    assert first == second


def test_without_validation_text_the_last_model_counts(capsys, place, tmp_path):
    out = done(capsys, "train", f"data.corpus={place / 'valid.txt'}", *TINY, f"out={tmp_path / 'r'}")
    assert "no validation text" in out
    assert (tmp_path / "r" / "best").exists()


def test_nothing_to_resume_is_a_beginning(capsys, place, texts, tmp_path):
    code, _, err = call(capsys, "train", *texts, *TINY, "training.epochs=0.1", f"out={tmp_path / 'r'}", "--resume")
    assert code == 0
    assert "nothing to resume" in err


def test_ctrl_c_stops_with_a_checkpoint_that_other_settings_cannot_take_over(capsys, run, place, tmp_path):
    folder = tmp_path / "stopped"
    command = [sys.executable, "-m", "trellis", "train", run / "config.yaml", f"out={folder}", "--threads", "1"]
    process = subprocess.Popen([*map(str, command), "training.epochs=600"], stderr=subprocess.PIPE, text=True)
    while not (folder / "metrics.jsonl").exists() and process.poll() is None:
        time.sleep(0.02)
    process.send_signal(signal.SIGINT)
    _, err = process.communicate(timeout=60)
    assert process.returncode == 3, err
    assert "--resume goes on" in err
    assert list(folder.glob("checkpoint-*"))
    code, _, err = call(capsys, "train", folder, "--resume", "training.epochs=3")
    assert code == 2
    assert "holds another run, with training.epochs=600" in err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ([*LOW_RANK, "model.encoder=mlp", "model.parameters=10"], "10 parameters are fewer than the smallest model of"),
        (
            [*LOW_RANK, "model.encoder=mlp", "model.support=words", "model.states=28", "model.parameters=10"],
            "10 parameters are fewer than the smallest model of",
        ),
        (["training.network_lr=0.1"], "training.network_lr is for an encoder with networks: leave it out, or set"),
        (["model.kind=lstm", "training.network_lr=0.1"], "training.network_lr is for an encoder with networks"),
        (["training.init=distill", "distill.teacher=nowhere"], "there is no teacher 'nowhere', looked at nowhere"),
    ],
    ids=["budget", "budget of blocks", "rate", "rate of another kind", "teacher"],
)
def test_a_model_that_cannot_be_is_refused_before_anything_is_said_or_written(
    capsys, texts, changes, sentence, tmp_path
):
    shape = TINY[1:] if "model.kind=lstm" in changes else TINY
    code, out, err = call(capsys, "train", *texts, *shape, *changes, f"out={tmp_path / 'r'}")
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
    assert not (tmp_path / "r").exists()


# Distillation


@pytest.fixture(scope="module")
def teacher(place, texts):
    shape = ["model.kind=lstm", "model.width=6", "model.layers=1", *TINY[1:4], "training.lr=0.01"]
    assert main(["train", *texts, *shape, f"out={place / 'teacher'}"]) == 0
    return f"distill.teacher={place / 'teacher'}"


QUICK = ["training.init=distill", "distill.points=20", "distill.iterations=5", "distill.restarts=1"]


@pytest.mark.parametrize(
    "changes",
    [
        ["distill.counts=true"],
        ["model.support=brown", "model.blocks=2", "distill.counts=true"],
        [*LOW_RANK, "distill.centroids=true", "distill.head=true", "distill.frozen=300"],
        ["training.batching=streams", "model.support=brown", "model.blocks=2", *LOW_RANK],
        ["training.method=baum_welch"],
        [*LOW_RANK, "model.memory=1"],
        [*LOW_RANK, "model.memory=1", "model.support=brown", "model.blocks=2", "training.batching=streams"],
        [*LOW_RANK, "model.encoder=mlp", "distill.centroids=true", "distill.frozen=300", "training.lr=0.02"],
        [*LOW_RANK, "model.encoder=transformer", "model.layers=1", "model.heads=2", "training.lr=0.02"],
    ],
    ids=["dense", "blocks", "embeddings", "streams", "Baum-Welch", "memory", "memory of blocks", "MLP", "transformer"],
)
def test_a_run_begins_with_a_teachers_labels(capsys, texts, teacher, changes, tmp_path):
    out = tmp_path / "r"
    done(capsys, "train", *texts, *TINY, *QUICK, teacher, "distill.tokens=640", *changes, f"out={out}")
    found = [json.loads(line) for line in (out / "metrics.jsonl").read_text().splitlines()]
    joint = [line["joint"] for line in found if "loss" in line]
    assert joint == [1.0] * 10 + [0.0] * (len(joint) - 10)  # 64 tokens an update
    before = {path: path.read_bytes() for path in out.rglob("*.safetensors")}
    done(capsys, "train", out, "--resume")
    assert {path: path.read_bytes() for path in out.rglob("*.safetensors")} == before


def test_a_run_whose_teacher_is_refused_leaves_no_folder(capsys, texts, teacher, tmp_path):
    code, _, err = call(capsys, "train", *texts, *TINY, *QUICK, teacher, "distill.layer=9", f"out={tmp_path / 'r'}")
    assert (code, "has no layer 9" in err.splitlines()[-1]) == (2, True), err
    assert not (tmp_path / "r").exists()


def test_a_teacher_of_another_text_is_refused_unless_asked_for(capsys, texts, teacher, tmp_path):
    lines = [f"a word {number % 7} of another text" for number in range(200)]
    (tmp_path / "other.txt").write_text("\n".join(lines))
    other = [f"data.corpus={tmp_path / 'other.txt'}", "data.tokenizer=" + teacher.removeprefix("distill.teacher=")]
    asked = [*other, *texts[1:], *TINY, *QUICK, teacher, f"out={tmp_path / 'r'}", "distill.tokens=300"]
    code, _, err = call(capsys, "train", *asked)
    assert code == 2
    assert "train.txt, which is another text than this run's: name a teacher of this text, or set" in err
    done(capsys, "train", *asked, "distill.any_text=true")
    (tmp_path / "same.txt").write_text((tmp_path.parent / texts[0].removeprefix("data.corpus=")).read_text())
    same = [f"data.corpus={tmp_path / 'same.txt'}", *texts[1:], *TINY, *QUICK, teacher, "distill.tokens=300"]
    done(capsys, "train", *same, f"out={tmp_path / 'copy'}")


def test_a_run_learns_from_a_teachers_text_too(capsys, texts, teacher, tmp_path):
    sampled = [teacher.replace("distill.", "sampled."), "sampled.tokens=500", "sampled.copies=2"]
    asked = ["train", *texts, *TINY, *sampled, "training.epochs=1"]
    done(capsys, *asked, f"out={tmp_path / 'r'}", "--json")
    before = {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")}
    done(capsys, "train", tmp_path / "r", "--resume")
    assert {path: path.read_bytes() for path in tmp_path.rglob("*.safetensors")} == before
    lines = [f"a word {number % 7} of another text" for number in range(200)]
    (tmp_path / "other.txt").write_text("\n".join(lines))
    other = [f"data.corpus={tmp_path / 'other.txt'}", "data.tokenizer=" + teacher.removeprefix("distill.teacher=")]
    code, _, err = call(capsys, *asked, *other, f"out={tmp_path / 'o'}")
    assert code == 2
    assert "another text than this run's: name a teacher of this text, or set sampled.any_text=true." in err


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        (["sampled.tokens=9"], "sampled.tokens=9 is for a teacher's text: set sampled.teacher, or leave it out."),
        (["sampled.teacher=nowhere"], "nowhere"),
        (
            ["sampled.teacher=x", "training.objective=joint", "data.labels=x.npy"],
            "labels are of the run's own text alone: leave out sampled.teacher, or the labels.",
        ),
        (["training.init=distill"], "training.init=distill needs a teacher: set distill.teacher to a model's folder."),
        (
            ["distill.teacher=x"],
            "distill.teacher=x is for distillation: set training.init=distill, or leave it out.",
        ),
        (["distill.counts=true"], "distill.counts=True is for distillation: set training.init=distill, or leave it"),
        (
            ["training.init=distill", "distill.teacher=x", "model.kind=lstm"],
            "distillation is for models with hidden states, not lstm: set training.init=random.",
        ),
        (
            ["training.init=distill", "distill.teacher=x", "training.objective=joint", "data.labels=x.npy"],
            "training.init=distill learns from labels of its own: leave out data.labels.",
        ),
    ],
)
def test_distillation_that_cannot_be_is_refused_before_the_text_is_read(capsys, changes, sentence, tmp_path):
    shape = [] if "model.kind=lstm" in changes else TINY
    code, _, err = call(capsys, "train", "data.corpus=nowhere.txt", *shape, *changes, f"out={tmp_path / 'r'}")
    assert (code, sentence in err) == (2, True), err
    assert not (tmp_path / "r").exists()
