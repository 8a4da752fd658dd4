"""`trellis distill` with a tiny teacher of our own, and the run that begins from it."""

import importlib
import json
import re

import pytest

from trellis.manifests import MANIFEST

from .commands import TINY, call, done

SMALL = ["distill.points=20", "distill.iterations=5", "distill.restarts=1", "distill.tokens=150"]


@pytest.fixture(scope="module")
def teacher(place, texts):
    from trellis.cli import main

    folder = place / "lstm"
    shape = ["model.kind=lstm", "model.width=6", "model.layers=1", *TINY[1:4], "training.lr=0.01"]
    assert main(["train", *texts, *shape, f"out={folder}"]) == 0
    return f"distill.teacher={folder}"


def test_labels_are_made_told_of_and_found_again(capsys, texts, teacher):
    asked = ["distill", *texts, "model.states=8", *SMALL, teacher]
    first = json.loads(done(capsys, *asked, "--json"))
    assert first["tokens"] == 150
    assert first["states"] == 8
    assert first["points_per_centroid"] == 20
    assert first["library"] in ("faiss", "sklearn")
    assert 0 < first["entropy_bits"] <= first["most_bits"] == 3
    assert json.loads(done(capsys, *asked, "--json")) == first
    out = done(capsys, *asked)
    for part in (first["teacher_hash"], first["folder"], "-1, 6 dimensions", "20 points a centroid", "150 tokens in"):
        assert part in out


def test_the_next_command_trains_from_the_labels(capsys, texts, teacher, tmp_path):
    out = done(capsys, "distill", *texts, *TINY, *SMALL, teacher, f"out={tmp_path / 'run'}")
    command = out[out.index("trellis train") :].split()
    assert command[-1] == "training.init=distill"
    code, out, err = call(capsys, *command[1:])
    assert (code, "best validation perplexity" in out) == (0, True)
    assert f"the first 150 tokens with the labels of {teacher.partition('=')[2]}, then without labels" in err


def test_a_run_that_ends_before_its_labels_do_says_so(capsys, texts, teacher, tmp_path):
    asked = [
        "train",
        *texts,
        *TINY,
        "model.states=8",
        "training.init=distill",
        *SMALL[:3],
        teacher,
        "training.epochs=0.5",
    ]
    code, _, err = call(capsys, *asked, f"out={tmp_path / 'run'}")
    assert code == 0, err
    (said,) = re.findall(r"all (\S+) tokens with the labels of .*: distill\.tokens=(\d+) would go on without", err)
    assert said[0] == f"{4 * int(said[1])}"  # few enough to be told in full
    code, _, err = call(capsys, *asked, f"distill.tokens={said[1]}", f"out={tmp_path / 'other'}")
    assert f"the first {said[1]} tokens with the labels" in err


def test_states_without_a_cluster_are_told_of(capsys, texts, teacher):
    out = done(capsys, "distill", *texts, *SMALL, "model.support=words", "model.states=56", teacher, "distill.layer=0")
    assert "without cluster  " in out


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        ([], "distillation needs a teacher: set distill.teacher"),
        (["distill.teacher=nowhere"], "there is no teacher 'nowhere'"),
        (["distill.teacher=nowhere", "model.kind=lstm"], "only an HMM has states to label"),
        (["distill.tutor=it"], "unknown setting 'distill.tutor'"),
    ],
)
def test_what_cannot_be_distilled(capsys, texts, settings, sentence):
    code, _, err = call(capsys, "distill", *texts, *settings)
    assert code == 2
    assert sentence in err
    assert len(err.splitlines()) == 1


@pytest.mark.parametrize(
    ("settings", "sentence"),
    [
        (["data.tokenizer=characters"], "has another vocabulary: set data.tokenizer to the teacher's folder, or"),
        (["distill.layer=9"], "has no layer 9: set distill.layer from 0 (embeddings) to 1, or -1 (last)."),
        (["distill.layer=0", "model.states=56"], "different vectors are too few for 56 clusters: give more text, or"),
        (["distill.pca=7"], "distill.pca=7 is more than the 6 dimensions of the teacher: lower it."),
    ],
    ids=["vocabulary", "layer", "clusters", "PCA"],
)
def test_what_this_teacher_cannot_give(capsys, texts, teacher, tmp_path, monkeypatch, settings, sentence):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    code, out, err = call(capsys, "distill", *texts, "model.states=8", *SMALL, teacher, *settings)
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1


def test_a_cache_from_another_teacher_is_refused(capsys, texts, teacher, tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    asked = ["distill", *texts, "model.states=8", *SMALL, teacher]
    done(capsys, *asked)
    (file,) = tmp_path.glob("clusters-*/about.json")
    file.write_text(json.dumps(json.loads(file.read_text()) | {"teacher_hash": "other"}))
    (file.parent / MANIFEST).unlink()
    code, out, err = call(capsys, *asked)
    assert (code, out) == (2, "")
    assert err == f"error: {file.parent} holds a cache from another teacher: delete it and distil again.\n"


@pytest.fixture(scope="module")
def llm(place):
    """A tiny Llama that has learnt nothing, and its tokenizer."""
    transformers = pytest.importorskip("transformers")
    import torch

    from trellis.text import SubwordTokenizer

    folder = place / "llm"
    tokenizer = SubwordTokenizer.train_bpe((place / "train.txt").read_text().splitlines(), 270)
    torch.manual_seed(5)
    shape = {"hidden_size": 16, "intermediate_size": 24, "num_hidden_layers": 2, "num_attention_heads": 2}
    config = transformers.LlamaConfig(
        vocab_size=tokenizer.vocab_size, max_position_embeddings=64, bos_token_id=0, eos_token_id=0, **shape
    )
    transformers.LlamaForCausalLM(config).save_pretrained(folder)
    tokenizer.save(folder)
    return folder


FROM_LLM = [
    "--tokens", "1500", "--length", "24", "--batch", "8", "--threads", "1", "model.states=8", "training.batch_size=8",
    "training.length=16", "training.epochs=2", "training.lr=0.1", "training.checkpoint_every=5", *SMALL[:3],
]  # fmt: skip


def files(folder):
    return {path.name: path.read_bytes() for path in sorted((folder / "best").iterdir())}


@pytest.fixture(scope="module")
def of_llm(llm, place):
    """The run of an HMM of the tiny Llama, never disturbed."""
    from trellis.cli import main

    with pytest.MonkeyPatch.context() as patched:
        patched.setenv("TRELLIS_CACHE", str(place / "undisturbed"))
        assert main(["distill", "--from-llm", str(llm), *FROM_LLM, f"out={place / 'of-llm'}"]) == 0
    return place / "of-llm"


def test_an_hmm_of_a_language_model_is_an_ordinary_run(capsys, llm, of_llm, place, monkeypatch):
    from trellis import HMM, load_tokenizer

    assert HMM.from_pretrained(of_llm / "best").config.states == 8
    assert load_tokenizer(of_llm / "best").fingerprint() == load_tokenizer(llm).fingerprint()
    joint = [json.loads(line).get("joint") for line in (of_llm / "metrics.jsonl").read_text().splitlines()]
    assert {0.0, 1.0} <= set(joint)  # with labels first, then without
    monkeypatch.setenv("TRELLIS_CACHE", str(place / "undisturbed"))
    again = json.loads(done(capsys, "distill", "--from-llm", str(llm), *FROM_LLM, f"out={of_llm}", "--json"))
    assert again["model"] == str(of_llm / "best")


class Killed(BaseException):
    """As sudden as a kill."""


KILLS = {
    "sampling": ("trellis.distillation.sampling", "write_atomically", 5),
    "clustering": ("trellis.distillation.codebook", "cluster", 1),
    "labelling": ("trellis.distillation.labels", "usage", 1),
    "training": ("trellis.training.checkpoints", "save", 2),
}


@pytest.mark.parametrize("moment", KILLS)
def test_a_killed_distillation_goes_on_to_the_same_bytes(llm, of_llm, tmp_path, monkeypatch, moment):
    from trellis.cli import main

    module, name, times = KILLS[moment]
    real, calls = getattr(importlib.import_module(module), name), []

    def then_die(*told, **named):
        found = real(*told, **named)
        calls.append(told)
        if len(calls) == times:
            raise Killed
        return found

    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path / "cache"))
    command = ["distill", "--from-llm", str(llm), *FROM_LLM, f"out={tmp_path / 'run'}"]
    with monkeypatch.context() as patched:
        patched.setattr(f"{module}.{name}", then_die)
        with pytest.raises(Killed):
            main(command)
    assert main(command) == 0
    assert files(tmp_path / "run") == files(of_llm)


def test_sampled_text_is_a_corpus_like_any_other(capsys, place, of_llm, tmp_path, monkeypatch):
    monkeypatch.setenv("TRELLIS_CACHE", str(place / "undisturbed"))
    folder = next((place / "undisturbed").glob("sampled-*/llm-1500"))
    as_it_is = ["train", str(folder), "data.valid=none", *FROM_LLM[8:12], "training.epochs=1"]
    documents = json.loads((folder / "meta.json").read_text())["documents"]
    _, _, err = call(capsys, *as_it_is, f"data.tokenizer={folder}", f"out={tmp_path / 'ids'}")
    assert f"learning from text of llm: 1.5k tokens in {documents} documents, 270 types" in err
    code, _, err = call(capsys, *as_it_is, "data.tokenizer=characters", f"out={tmp_path / 'characters'}")
    assert code == 0, err


@pytest.mark.parametrize(
    ("arguments", "sentence"),
    [
        (["--from-llm", "nowhere"], "there is no teacher 'nowhere'"),
        (["--from-llm", "{place}"], "has no config.json"),
        (["--from-llm", "{llm}", "--tokens", "7", "model.states=8"], "7 tokens cannot tell 8 states apart"),
        (["--from-llm", "{llm}", "--length", "65"], "reads at most 64 tokens at once: set --length 64"),
        (["--from-llm", "{llm}", "--temperature", "0"], "--temperature must be above 0"),
        (["--from-llm", "{llm}", "--precision", "bf61"], "did you mean 'bf16'"),
        (["--from-llm", "{llm}", "model.kind=lstm"], "only an HMM has states to label"),
        (["--from-llm", "{llm}", "distill.teacher=it"], "leave out distill.teacher"),
        (["--from-llm", "{llm}", "data.tokenizer=bytes"], "leave out data.tokenizer"),
        (["--from-llm", "{llm}", "training.init=restarts"], "leave out training.init=restarts"),
        (["--from-llm", "{llm}", "model.stats=8"], "did you mean"),
        (["--tokens", "100"], "--tokens is for sampled text"),
    ],
)
def test_what_cannot_be_sampled_or_trained(capsys, llm, place, tmp_path, monkeypatch, arguments, sentence):
    monkeypatch.setenv("TRELLIS_CACHE", str(tmp_path))
    code, out, err = call(capsys, "distill", *(one.format(llm=llm, place=place) for one in arguments))
    assert (code, out) == (2, "")
    assert sentence in err
    assert len(err.splitlines()) == 1
