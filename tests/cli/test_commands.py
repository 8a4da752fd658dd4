"""What all commands have in common."""

import os
import subprocess
import sys

import pytest
import torch

from trellis import HMM, __version__, load_tokenizer
from trellis.cli import main
from trellis.models import load_model

from .commands import TINY, done, records, type_in

ASKED = ("prepare", "distill", "train", "evaluate", "score", "decode", "fill", "sample", "inspect")


def test_help_does_not_wait_for_torch():
    code = "import sys, trellis.cli; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0


@pytest.mark.parametrize(
    "command", ["prepare", "distill", "train", "evaluate", "score", "decode", "fill", "sample", "inspect"]
)
def test_every_command_explains_itself_with_an_example(capsys, command):
    out = done(capsys, command, "--help")
    assert "Example" in out
    assert f"trellis {command} " in out
    assert "--json" in out
    assert "--threads" in out


def test_completion_is_offered(capsys):
    out = done(capsys, "--help")
    assert "--install-completion" in out
    assert "--show-completion" in out


def test_a_script_of_completions_can_be_had():
    environment = {**os.environ, "_TYPER_COMPLETE_TEST_DISABLE_SHELL_DETECTION": "1"}
    command = [sys.executable, "-m", "trellis", "--show-completion", "bash"]
    found = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert found.returncode == 0, found.stderr
    assert "complete -o default -F _trellis_completion trellis" in found.stdout


def test_the_version_is_the_packages(capsys):
    assert done(capsys, "--version").split() == ["trellis", __version__]


def test_help_alone(capsys):
    assert "Start here" in done(capsys)


def test_a_reader_that_leaves_early_hears_no_complaint(run, place):
    (place / "many.txt").write_text("the cat saw\n" * 20_000)
    command = f"'{sys.executable}' -m trellis score '{run}' '{place / 'many.txt'}' --threads 1 | head -n 1"
    found = subprocess.run(["bash", "-c", command], capture_output=True, text=True, check=False)
    assert found.stdout.startswith("ln p")
    assert found.stderr == ""


@pytest.mark.slow
def test_two_processes_learn_as_one_and_only_the_first_speaks(run, tmp_path):
    command = [
        sys.executable,
        "-m",
        "torch.distributed.run",
        "--standalone",
        "--nproc-per-node=2",
        "-m",
        "trellis",
        "train",
    ]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    arguments = [str(run / "config.yaml"), f"out={tmp_path / 'two'}", "--json"]
    found = subprocess.run([*command, *arguments], capture_output=True, text=True, env=environment, check=False)
    assert found.returncode == 0, found.stderr
    assert len(found.stdout.splitlines()) == 1
    one, two = (HMM.from_pretrained(folder / "best").tables() for folder in (run, tmp_path / "two"))
    torch.testing.assert_close(two, one, rtol=1e-3, atol=1e-5)


@pytest.fixture(scope="module")
def blocked_run(place, texts):
    folder = place / "blocked"
    shape = ["support=brown", "states=12", "blocks=4", "width=8", "dropout=0.5", "encoder=residual", "bias=true",
             "start=low_rank", "transition=hierarchical", "emission=low_rank"]  # fmt: skip
    assert main(["train", *texts, *(f"model.{one}" for one in shape), *TINY[1:4], "training.lr=0.02", f"out={folder}",
                 "training.batching=streams"]) == 0  # fmt: skip
    return folder


def test_a_blocked_model_answers_every_command(capsys, monkeypatch, blocked_run):
    model = load_model(blocked_run / "best")
    assert model.config.support == "brown"
    assert len(set(model.block_V.tolist())) == 4
    type_in(monkeypatch, "the cat likes seeds\n")
    (best,) = records(done(capsys, "decode", blocked_run, "--no-bos", "--json"))
    tokenizer = load_tokenizer(blocked_run / "best")
    ids = torch.tensor([[tokenizer.id(word) for word in best["tokens"]]])
    assert best["paths"][0]["states"] == model.viterbi(ids).states_BT[0].tolist()
    type_in(monkeypatch, "the <mask> likes seeds\n")
    (gap,) = records(done(capsys, "decode", blocked_run, "--posterior", "--json"))
    assert len(gap["posterior"][0]["states"]) == len(best["tokens"])
    corpus = ["--corpus", blocked_run.parent / "valid.txt", "--states", 12]
    (found,) = records(done(capsys, "inspect", blocked_run, *corpus, "--json"))
    assert sum(state["usage"] for state in found["states"]) == pytest.approx(1.0, abs=1e-6)
    shown = {state["state"]: state["words"] for state in found["states"]}
    assert best["paths"][0]["words"][0] == [word for word, p in shown[best["paths"][0]["states"][0]][:3] if p > 0]
    word, probability = shown[best["paths"][0]["states"][0]][0]
    dense = model.tables().emission_SV[best["paths"][0]["states"][0]]
    assert probability == pytest.approx(float(dense[tokenizer.id(word)]), rel=1e-4)
    assert records(done(capsys, "sample", blocked_run, "--json"))[0]["text"]
