"""`trellis distill` with a tiny teacher of our own, and the run that begins from it."""

import json

import pytest

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
