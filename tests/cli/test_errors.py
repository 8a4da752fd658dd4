"""What users get wrong, and disks: one sentence on standard error, exit code 2, nothing lost."""

import errno
import io
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch

from trellis import HMM, HMMConfig
from trellis.cli import main
from trellis.text import WordTokenizer
from trellis.training import precision

WORDS = WordTokenizer(["<unk>", "<eos>", "a", "b", "c"])
TINY = ["model.states=4", "training.batch_size=4", "training.length=8", "training.epochs=1"]


@pytest.fixture(autouse=True)
def place(tmp_path, monkeypatch):
    """An empty working folder with a text, a cache of its own, and nobody else's data."""
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    (tmp_path / "text.txt").write_text("a b c a b\nb c a\n" * 20)
    return tmp_path


@pytest.fixture
def model(place):
    HMM(HMMConfig(WORDS.vocab_size, states=3), seed=0).save_pretrained("model", WORDS)
    return place / "model"


@pytest.fixture
def refused(capsys):
    """Run a command that must be refused: the sentence it says."""

    def run(*arguments):
        code = main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        assert code == 2, (code, out, err)
        assert "Traceback" not in err
        said = [line for line in err.splitlines() if line.startswith("error: ")]
        assert len(said) == 1, err
        assert err.splitlines()[-1] == said[0]
        assert said[0].endswith((".", "?")), said[0]
        return said[0]

    return run


def files(folder):
    return {path.relative_to(folder): path.read_bytes() for path in sorted(folder.rglob("*")) if path.is_file()}


# text


@pytest.mark.parametrize(
    "arguments",
    [
        ["prepare", "FILE"],
        ["train", *TINY, "data.corpus=FILE"],
        ["train", *TINY, "data.corpus=text.txt", "data.valid=FILE"],
        ["evaluate", "model", "FILE"],
        ["score", "model", "FILE"],
        ["decode", "model", "FILE"],
        ["fill", "model", "FILE"],
        ["inspect", "model", "--corpus", "FILE"],
    ],
    ids=lambda arguments: " ".join(arguments)[:60],
)
def test_missing_empty_and_foreign_files(refused, model, place, arguments):
    (place / "empty.txt").touch()
    (place / "latin.txt").write_bytes(b"a b\ncaf\xe9\n")
    for name, said in (
        ("gone.txt", "no file gone.txt"),
        ("empty.txt", "is empty"),
        ("latin.txt", "not UTF-8 at line 2"),
    ):
        assert said in refused(*(argument.replace("FILE", name) for argument in arguments))
    assert not (place / "runs").exists()


@pytest.mark.parametrize(("typed", "said"), [(b"", "standard input is empty"), (b"a\n\xff b\n", "not UTF-8 at line 2")])
def test_standard_input(refused, model, monkeypatch, typed, said):
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(typed)))
    assert said in refused("score", model)


def test_a_corpus_nobody_knows(refused, model):
    assert "did you mean 'ptb'?" in refused("evaluate", model, "ptbb")
    assert "TRELLIS_DATA" in refused("train", "data.corpus=ptb", *TINY)
    assert "no split 'dev'" in refused("evaluate", model, "pydocs", "--split", "dev")


@pytest.mark.parametrize("text", ["a a a\n", "   \n"])
def test_a_vocabulary_of_one_word(refused, place, text):
    (place / "one.txt").write_text(text)
    assert "fewer than two words" in refused("train", "data.corpus=one.txt", *TINY)
    assert "fewer than two words" in refused("prepare", "one.txt")


def test_a_tokenizer_that_is_not_there(refused):
    assert "nor a tokenizer's folder" in refused("prepare", "text.txt", "--tokenizer", "wrods")


def test_ids_outside_the_vocabulary(refused, model, capsys):
    assert main(["prepare", "text.txt", "--tokenizer", str(model), "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    ids = np.fromfile(f"{folder}/ids.bin", dtype="<u2")
    ids[7] = 99
    ids.tofile(f"{folder}/ids.bin")
    for said in ("ids.bin has changed since it was written", "ids.bin is broken; delete"):
        for arguments in (["evaluate", model, folder], ["inspect", model, "--corpus", folder]):
            assert said in refused(*arguments)
        Path(folder, "manifest.json").unlink(missing_ok=True)


def test_ids_of_another_tokenizer(refused, model, capsys):
    assert main(["prepare", "text.txt", "--vocab-size", "4", "--json"]) == 0
    folder = json.loads(capsys.readouterr().out)["folder"]
    assert "prepared with another tokenizer" in refused("evaluate", model, folder)


# models


@pytest.mark.parametrize("command", ["evaluate", "score", "decode", "fill", "sample", "inspect"])
def test_no_model_there(refused, place, command):
    (place / "empty").mkdir()
    extra = ["text.txt"] if command in ("evaluate", "score", "decode", "fill") else []
    assert "there is no model nowhere" in refused(command, "nowhere", *extra)
    assert "config.json" in refused(command, "empty", *extra)
    assert "config.json" in refused(command, "text.txt", *extra)


@pytest.mark.parametrize("name", ["model.safetensors", "config.json", "tokenizer.json"])
def test_models_cut_short_or_incomplete(refused, model, name):
    whole = (model / name).read_bytes()
    (model / name).write_bytes(whole[: len(whole) // 2])
    refused("sample", model)
    (model / name).unlink()
    assert str(name) in refused("sample", model)


def test_models_of_another_vocabulary_kind_or_version(refused, model):
    about = json.loads((model / "config.json").read_text())
    for change, said in (
        ({"vocab_size": 9}, "do not fit this model"),
        ({"format": 99}, "another version"),
        ({"model_type": "llama"}, "model of another kind"),
        ({"states": 0}, "at least one state"),
    ):
        (model / "config.json").write_text(json.dumps({**about, **change}))
        (model / "manifest.json").unlink(missing_ok=True)
        assert said in refused("sample", model)


def test_a_model_with_somebody_elses_tokenizer(refused, model):
    WordTokenizer(["<unk>", "<eos>", "x", "y", "z"]).save(model)
    assert "tokenizer.json has changed since it was written" in refused("sample", model)
    (model / "manifest.json").unlink()
    assert "not the one its model was trained with" in refused("sample", model)


def test_a_model_outside_a_run_needs_a_text(refused, model):
    assert "name a corpus or files" in refused("evaluate", model)


def test_a_prompt_without_probability(refused, place):
    hmm = HMM(HMMConfig(WORDS.vocab_size, states=1))
    hmm.set_tables(torch.ones(1), torch.ones(1, 1), torch.tensor([[0.0, 0.5, 0.5, 0.0, 0.0]]))
    hmm.save_pretrained("narrow", WORDS)
    assert "gives the prompt no probability" in refused("sample", "narrow", "--prompt", "a b")


# settings


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (["training.lrr=1"], "unknown setting 'training.lrr': did you mean 'training.lr'?"),
        (["model.states=0"], "at least one state"),
        (["model.states=4", "model.emission=low_rank", "model.width=5"], "model.width is 5"),
        (["training.lr"], "or write a setting as training.lr=0.1"),
        (["=1"], "is not an override"),
        (["a.yaml", "b.yaml"], "cannot both be the config"),
        (["gone.yaml"], "no config file gone.yaml"),
        (["broken.yaml"], "broken.yaml, line 2 is not sound YAML"),
        (["model.transition=low_rank", "model.width=2", "training.method=baum_welch", *TINY], "Baum–Welch"),
        (["training.restarts=2", *TINY], "training.init=restarts"),
        (["training.init=restarts", *TINY], "validation text"),
        (["--threads", "0"], "--threads"),
        (["--resum"], "--resume"),
    ],
    ids=lambda value: " ".join(value)[:50] if isinstance(value, list) else "",
)
def test_settings(refused, place, arguments, said):
    (place / "broken.yaml").write_text("model:\n  states: ]\n")
    assert said in refused("train", "data.corpus=text.txt", *arguments)
    assert not list(place.glob("runs/*/best"))


def test_questions_that_exclude_each_other(refused, model):
    assert "one at a time" in refused("decode", model, "text.txt", "--k", 2, "--posterior")
    assert "unknown protocol 'steam': did you mean 'stream" in refused(
        "evaluate", model, "text.txt", "--protocol", "steam"
    )


def test_a_precision_that_would_crash(refused, monkeypatch):
    monkeypatch.setattr(precision, "bf16_works", lambda: False)
    assert "bf16 products crash" in refused("train", "data.corpus=text.txt", "training.precision=bf16", *TINY)


# runs


@pytest.fixture
def run(place, capsys):
    assert main(["train", "data.corpus=text.txt", *TINY, "out=run"]) == 0
    capsys.readouterr()
    return place / "run"


def test_a_folder_that_holds_a_run(refused, run):
    before = files(run)
    assert "holds a run already" in refused("train", "data.corpus=text.txt", *TINY, "out=run")
    assert "training.lr=0.05 and not 0.3" in refused("train", run, "training.lr=0.3", "--resume")
    (run / "config.yaml").unlink()
    del before[(run / "config.yaml").relative_to(run)]
    assert "other settings" in refused("train", "data.corpus=text.txt", *TINY, "training.lr=0.3", "out=run", "--resume")
    assert files(run) == before


def test_other_text_under_the_same_name(refused, run, place):
    (place / "text.txt").write_text("a b\nc c c\n" * 30)
    assert "other settings, text or vocabulary" in refused("train", run, "--resume")


@pytest.mark.parametrize("name", ["model.safetensors", "training.safetensors", "place.json"])
def test_a_checkpoint_cut_short(refused, run, name):
    (checkpoint,) = run.glob("checkpoint-*")
    whole = (checkpoint / name).read_bytes()
    (checkpoint / name).write_bytes(whole[: len(whole) // 2])
    said = refused("train", run, "--resume")
    assert f"{name} has changed" in said or f"{name} is cut short or damaged" in said


def test_a_run_without_a_model_yet(refused, run):
    shutil.rmtree(run / "best")
    assert "a run without a model yet" in refused("sample", run)


def test_a_folder_that_cannot_be(refused, place):
    assert "cannot be written" in refused("train", "data.corpus=text.txt", *TINY, "out=text.txt/run")
    assert "cannot be written" in refused("train", "data.corpus=text.txt", *TINY, "out=text.txt")


# disks


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_disk_that_fills_up_takes_nothing_with_it(refused, run, model, monkeypatch, number):
    def full(descriptor):
        raise OSError(number, os.strerror(number))

    for old in run.glob("checkpoint-*"):
        shutil.rmtree(old)
    before = files(run / "best")
    monkeypatch.setattr(os, "fsync", full)
    assert "disk" in refused("train", run, "--resume")
    assert files(run / "best") == before
    assert not list(run.glob("checkpoint-*"))
    assert not list(run.glob(".*partial"))
    monkeypatch.undo()


def test_a_limit_on_files_is_a_full_disk(place):
    # In a process of its own: the limit would also strike the file that the tests' output may go to.
    limited = ["sh", "-c", 'ulimit -f 12 && exec "$@"', "sh", sys.executable, "-m", "trellis"]  # 6 kB
    command = ["train", "data.corpus=text.txt", *TINY, "model.states=64", "out=new", "--threads", "1"]
    found = subprocess.run([*limited, *command], capture_output=True, text=True, check=False)
    assert found.returncode == 2
    assert "Traceback" not in found.stderr
    assert "full" in found.stderr.splitlines()[-1]
    assert not (place / "new" / "best").exists()
    assert not list(place.glob("new/.*partial"))


@pytest.mark.skipif(os.geteuid() != 0 or not shutil.which("mount"), reason="only root can make a small disk")
@pytest.mark.parametrize("size", ["4k", "80k"])
def test_a_small_disk(place, size):
    (place / "disk").mkdir()
    mount = ["mount", "-t", "tmpfs", "-o", f"size={size}", "none", "disk"]
    if subprocess.run(mount, capture_output=True, check=False).returncode:
        pytest.skip("mounting is forbidden here")
    command = [sys.executable, "-m", "trellis", "train", "data.corpus=text.txt", *TINY, "out=disk/run"]
    try:
        found = subprocess.run(
            [*command, "model.states=150", "--threads", "1"], capture_output=True, text=True, check=False
        )
        assert found.returncode == 2
        assert "Traceback" not in found.stderr
        assert "full" in found.stderr.splitlines()[-1]
        assert not list(place.glob("disk/run/.*partial"))
        assert not list(place.glob("disk/run/best"))
    finally:
        subprocess.run(["umount", "disk"], check=True)


# interruptions


def test_ctrl_c_is_a_short_word(model, monkeypatch, capsys):
    class Impatient(io.BytesIO):
        def __next__(self):
            raise KeyboardInterrupt

    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(Impatient()))
    assert main(["score", str(model)]) == 130
    assert capsys.readouterr().err == "interrupted\n"


def test_no_memory_is_a_sentence(refused, model, monkeypatch):
    def no_memory(*_, **__):
        raise RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory: you tried to allocate 9 bytes.")

    monkeypatch.setattr(HMM, "sample", no_memory)
    assert "not enough memory" in refused("sample", model)


def test_a_memory_longer_than_the_text_or_its_windows_is_refused(refused, place):
    vectors = [f"model.{part}=low_rank" for part in ("start", "transition", "emission")]
    (place / "short.txt").write_text("a b\n")
    memory = ("train", "short.txt", *vectors, "model.width=2", "model.states=3", "model.memory=3", "out=run")
    assert "a memory of 3 words is longer than the text, 3 tokens" in refused(*memory)
    assert "model.memory=3 is longer than windows of 3 can show" in refused(
        *memory, "training.batching=windows", "training.length=3"
    )
    blocks = ("model.support=brown", "model.blocks=2", "model.states=4", "model.transition=hierarchical")
    cache = (*blocks, "model.memory=1", "model.ngrams=2", "model.cache=500", "training.batching=windows")
    assert "model.cache=500 is longer than windows of 64 can show" in refused(*memory, *cache, "training.length=64")
    assert "model.ngrams=5 is longer than windows of 4 can show" in refused(
        *memory, "model.memory=1", "model.ngrams=5", "training.batching=windows", "training.length=4"
    )


@pytest.mark.parametrize("size", [2**40, 2**63 - 1])
@pytest.mark.parametrize(("kind", "name"), [("hmm_rnn", "states"), ("lstm", "width"), ("feed_forward", "width")])
def test_a_model_that_no_machine_can_hold_is_a_sentence(refused, kind, name, size):
    said = refused("train", "text.txt", "data.valid=text.txt", f"model.kind={kind}", f"model.{name}={size}", "out=run")
    assert "there is not enough memory: ask for fewer states" in said


def test_a_bug_still_shows_itself(model, monkeypatch):
    def bug(*_, **__):
        raise ZeroDivisionError

    monkeypatch.setattr(HMM, "sample", bug)
    with pytest.raises(ZeroDivisionError):
        main(["sample", str(model)])


def test_clusters_need_a_folder_before_they_are_found(refused):
    assert "there is no folder no/such to write text.paths into" in refused(
        "cluster", "text.txt", "--clusters", 2, "--out", "no/such/text.paths"
    )


SEEDED = {
    "sample": ["sample", "MODEL"],
    "decode": ["decode", "MODEL", "TEXT", "--samples", "2"],
    "ask": ["ask", "MODEL", "a", "--next", "1", "--draw", "2"],
    "write": ["write", "MODEL"],
    "synthesise": ["synthesise", "new"],
}


@pytest.mark.parametrize(
    "seed", ["18446744073709551616", "9223372036854775808", "-1", "9" * 5000, "x"], ids=lambda s: s[:20]
)
@pytest.mark.parametrize("command", SEEDED.values(), ids=SEEDED)
def test_seeds_out_of_range(refused, model, command, seed):
    said = refused(*[{"MODEL": model, "TEXT": "text.txt"}.get(word, word) for word in command], "--seed", seed)
    assert "seed" in said


NUMBERS = {
    "sample --count": ["sample", "MODEL", "--count"],
    "sample --length": ["sample", "MODEL", "--length"],
    "decode --k": ["decode", "MODEL", "TEXT", "--k"],
    "decode --samples": ["decode", "MODEL", "TEXT", "--samples"],
    "fill --best": ["fill", "MODEL", "TEXT", "--best"],
    "write --length": ["write", "MODEL", "--length"],
    "ask --next": ["ask", "MODEL", "a", "--next"],
}


@pytest.mark.parametrize("number", ["1000000000000000000000000000000", "99999999999999", "-1"])
@pytest.mark.parametrize("command", NUMBERS.values(), ids=NUMBERS)
def test_numbers_that_nobody_means(refused, model, command, number):
    refused(*[{"MODEL": model, "TEXT": "text.txt"}.get(word, word) for word in command], number)


def test_names_that_are_too_long_for_a_file(refused):
    said = refused("train", "data.corpus=" + ",".join(f"text-{number}.txt" for number in range(1000)))
    assert "is too long for the name of a file: name several as a list" in said
    assert len(said) < 300
    assert (
        "there is no file missing-0.txt"
        in refused(
            "train", "data.corpus=[" + ", ".join(f"missing-{number}.txt" for number in range(1000)) + "]"
        ).lower()
    )
