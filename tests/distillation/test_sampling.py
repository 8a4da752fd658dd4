"""Text sampled from a model: the same bytes however often it was killed, and a corpus like any other."""

import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
from dataclasses import replace

import numpy as np
import pytest
import torch

from trellis.distillation import sampling
from trellis.distillation.drawing import draw_texts
from trellis.distillation.sampling import SampleSettings, sample_text
from trellis.errors import TrellisError
from trellis.text import load_tokenizer

SMALL = SampleSettings(tokens=900, length=20, batch=8)
LESS = SampleSettings(tokens=200, length=20, batch=8)


def small(**changes):
    return replace(SMALL, **changes)


def bytes_of(ids):
    return {file.name: file.read_bytes() for file in ids.folder.iterdir()}


def sampled(llama, monkeypatch, cache, settings=SMALL, split="train"):
    monkeypatch.setenv("TRELLIS_CACHE", str(cache))
    return sample_text(str(llama), settings, split, quiet=True)


def test_a_sample_is_whole_texts_of_the_models_tokens(llama, bpe, own_cache):
    ids = sample_text(str(llama), SMALL, quiet=True)
    ends = np.asarray(ids.documents)
    assert ids.meta.tokens == len(ids.ids) == ends[-1] >= 900 > ends[-2]
    assert ids.meta.documents == len(ends)
    assert ids.meta.fingerprint == bpe.fingerprint() == load_tokenizer(ids.folder).fingerprint()
    lengths = np.diff(ends, prepend=0)
    assert (lengths.min() > 0, lengths.max()) == (True, 20)
    documents = np.split(np.asarray(ids.ids), ends[:-1])
    assert all(document[-1] == bpe.eos_id for document in documents if len(document) < 20)
    assert not any((document[:-1] == bpe.eos_id).any() for document in documents)
    texts = [bpe.decode([token for token in document if token != bpe.eos_id]) for document in documents]
    assert ids.meta.bytes == sum(len(text.encode()) + 1 for text in texts)
    assert ids.meta.words == sum(len(text.split()) + 1 for text in texts)


def test_a_batch_depends_on_its_number_alone(llama, own_cache, monkeypatch):
    """Batches drawn one by one from generators of their own, put after one another, are the sample."""
    ids = sample_text(str(llama), SMALL, quiet=True)
    one, drawn = sampling.load_speaker(sampling.find_teacher(str(llama), 0)), []
    for number in range(12):
        seed = int(np.random.SeedSequence([0, 0, number]).generate_state(1, np.uint64)[0])
        drawn += draw_texts(one, 8, 20, 1.0, torch.Generator().manual_seed(seed))
    expected = np.concatenate(drawn)
    assert len(expected) > len(ids)
    assert np.array_equal(expected[: len(ids)], ids.ids)


def test_more_of_a_sample_begins_with_what_was_there(llama, own_cache, monkeypatch):
    less = sample_text(str(llama), small(tokens=300), quiet=True)
    drawn = []
    monkeypatch.setattr(sampling, "draw_texts", lambda *told: drawn.append(told) or draw_texts(*told))
    more = sample_text(str(llama), SMALL, quiet=True)
    assert np.array_equal(more.ids[: len(less)], less.ids)
    assert 0 < len(drawn) < 900 / 8 / 4
    before = len(drawn)
    assert sample_text(str(llama), small(tokens=500), quiet=True).meta.tokens >= 500
    assert len(drawn) == before  # there was enough of it


def test_what_decides_a_text_tells_it_from_others(llama, own_cache):
    texts = [
        sample_text(str(llama), settings, split, quiet=True).ids[:200].tolist()
        for settings, split in [
            (LESS, "train"), (LESS, "valid"), (replace(LESS, seed=1), "train"), (replace(LESS, batch=9), "train"),
            (replace(LESS, temperature=0.3), "train"), (replace(LESS, length=15), "train"),
        ]
    ]  # fmt: skip
    assert len({str(text) for text in texts}) == 6


class Killed(BaseException):
    """As sudden as a kill."""


# What dies, and at which of its calls: a batch takes two of the disk's for its files and two for its state.
KILLS = {
    "drawing": (sampling, "draw_texts", 2),
    "ids": (os, "fsync", 4),
    "documents": (os, "fsync", 5),
    "state": (sampling, "write_atomically", 1),
    "cut": (sampling.IdFile, "from_documents", 0),
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_sample_killed_anywhere_goes_on_to_the_same_bytes(llama, tmp_path, monkeypatch, moment):
    expected = bytes_of(sampled(llama, monkeypatch, tmp_path / "undisturbed"))
    place, name, at = KILLS[moment]
    real, calls = getattr(place, name), itertools.count()

    def or_die(*told, **named):
        if next(calls) == at:
            raise Killed
        return real(*told, **named)

    with monkeypatch.context() as patched:
        patched.setattr(place, name, or_die)
        with pytest.raises(Killed):
            sampled(llama, monkeypatch, tmp_path / "killed")
    assert bytes_of(sampled(llama, monkeypatch, tmp_path / "killed")) == expected


@pytest.mark.parametrize("damage", ["state", "short", "long", "nonsense"])
def test_damaged_files_are_made_anew(llama, tmp_path, monkeypatch, damage):
    expected = bytes_of(sampled(llama, monkeypatch, tmp_path / "undisturbed"))
    ids = sampled(llama, monkeypatch, tmp_path / "damaged", small(tokens=400))
    store = ids.folder.parent
    if damage == "state":
        (store / "state.json").write_text("{")
    elif damage == "nonsense":
        (store / "state.json").write_text(json.dumps({"batches": 1}) + "]")
    elif damage == "short":
        os.truncate(store / "ids.bin", 10)
    else:
        for name in ("ids.bin", "documents.bin"):
            with (store / name).open("ab") as file:
                file.write(b"cut off by a kill")
    assert bytes_of(sampled(llama, monkeypatch, tmp_path / "damaged")) == expected


def test_a_killed_process_is_gone_on_with(llama, tmp_path, monkeypatch):
    expected = bytes_of(sampled(llama, monkeypatch, tmp_path / "undisturbed"))
    program = (
        "import os, signal, sys\n"
        "from trellis.distillation import sampling\n"
        "write, calls = sampling.write_atomically, []\n"
        "def then_die(*told):\n"
        "    write(*told)\n"
        "    calls.append(told)\n"
        "    if len(calls) == 3: os.kill(os.getpid(), signal.SIGKILL)\n"
        "sampling.write_atomically = then_die\n"
        "sampling.sample_text(sys.argv[1], sampling.SampleSettings(tokens=900, length=20, batch=8), quiet=True)\n"
    )
    told = os.environ | {"TRELLIS_CACHE": str(tmp_path / "killed"), "OMP_NUM_THREADS": str(torch.get_num_threads())}
    done = subprocess.run([sys.executable, "-c", program, str(llama)], env=told, check=False)
    assert done.returncode == -signal.SIGKILL
    state = json.loads(next((tmp_path / "killed").glob("sampled-*/state.json")).read_text())
    assert state["batches"] == 3
    assert bytes_of(sampled(llama, monkeypatch, tmp_path / "killed")) == expected


@pytest.mark.parametrize(
    ("changes", "sentence"),
    [
        ({"tokens": 0}, "--tokens must be at least 1"),
        ({"length": 0}, "--length must be at least 1"),
        ({"batch": -1}, "--batch must be at least 1"),
        ({"seed": -1}, "--seed cannot be negative"),
        ({"temperature": 0.0}, "--temperature must be above 0"),
        ({"temperature": float("nan")}, "--temperature must be above 0"),
        ({"precision": "float23"}, "did you mean 'float32'"),
    ],
)
def test_settings_that_mean_nothing(changes, sentence):
    with pytest.raises(TrellisError, match=sentence):
        small(**changes)


def test_models_that_cannot_be_sampled_from(llama, own_cache, tmp_path):
    with pytest.raises(TrellisError, match="has learnt nothing that it could say"):
        sample_text(f"random:{llama}", SMALL)
    with pytest.raises(TrellisError, match="reads at most 128 tokens at once: set --length 128"):
        sample_text(str(llama), small(length=129))
    (tmp_path / "empty").mkdir()
    with pytest.raises(TrellisError, match="has no config"):
        sample_text(str(tmp_path / "empty"), SMALL)
    with pytest.raises(TrellisError, match="there is no teacher 'nowhere'"):
        sample_text("nowhere", SMALL)


def test_the_best_model_of_a_run_is_called_by_the_runs_name(llama, own_cache, tmp_path):
    shutil.copytree(llama, tmp_path / "runs" / "small" / "best")
    ids = sample_text(str(tmp_path / "runs" / "small"), LESS, quiet=True)
    assert (ids.meta.corpus, ids.folder.name) == ("text of small", "small-200")
