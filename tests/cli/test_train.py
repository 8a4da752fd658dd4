"""`trellis train` on a tiny text: what it leaves, and how it stops and goes on."""

import json
import re
import signal
import subprocess
import sys
import time

import yaml

from trellis.models import hmm

from .commands import TINY, call, done


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
    assert (code, "measure usage on text" in " ".join(err.split())) == (2, True)


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
