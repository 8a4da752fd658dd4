import json
from dataclasses import replace

import numpy as np
import pytest
import torch

from bench import report
from bench.__main__ import main
from bench.contenders.trellis_encoders import Encoded, exact_log_likelihood
from bench.contenders.trellis_teacher import Forward, Labelling
from bench.encoder_tables import encoder_sheets, times_scalar
from bench.encoders import SETTINGS, encoder_entries
from bench.problem import Problem

from .test_tables import OLD, timing

TINY = Problem(states=6, words=20, batch=3, length=5, rank=2, seed=3)


@pytest.fixture(autouse=True)
def threads():
    """Contenders set the number of threads of their process, which here is everybody's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("name", SETTINGS)
def test_every_encoder_finds_its_exact_likelihood_and_learns(name):
    settings = SETTINGS[name]
    truth = exact_log_likelihood(TINY, settings)
    ours = Encoded(TINY, 3, settings)
    assert ours.evaluate() == pytest.approx(truth, rel=1e-5)
    ours.step()
    assert ours.evaluate() > truth
    assert ours.facts()["parameters"] > TINY.words * TINY.rank


def test_labelling_rounds_every_state_to_the_nearest_centre():
    ours, tokens = Labelling(TINY, 3), TINY.tokens
    assert ours.evaluate() == tokens
    ours.step()
    ours.centres_SR = np.roll(ours.centres_SR, 1, axis=0)  # not those that the labels are of
    assert ours.evaluate() < tokens


def test_the_forward_pass_reads_what_labelling_reads():
    read, whole = [], replace(TINY, batch=8, length=16)  # two windows
    for contender in (Forward, Labelling):
        ours, seen = contender(whole, 8), []
        states = ours.reader.teacher.states
        object.__setattr__(ours.reader.teacher, "states", lambda ids, s=states, seen=seen: seen.append(ids) or s(ids))
        ours.step()
        read.append(torch.cat(seen))
    assert torch.equal(*read)
    assert Forward(TINY, 3).evaluate() == TINY.tokens


def lap(name, seconds, **more):
    return {"contender": name, "failure": None, "step": timing(seconds), **more}


ENCODERS = {
    "problem": {"states": 512, "words": 32_000, "batch": 10, "length": 100},
    "models": [
        lap("scalar", 0.5, parameters=16_000_000), lap("table", 0.4), lap("mlp ψ", 0.75, parameters=4_194_304),
        {"contender": "pretrained", "failure": "not installed: transformers", "step": {"failure": "not timed"}},
    ],
    "teachers": [lap("forward pass", 1.0), lap("labelling", 1.25)],
}  # fmt: skip


def test_times_are_those_of_the_scalar_step_and_of_the_forward_pass():
    laps = ENCODERS["models"]
    assert [times_scalar(laps, found) for found in laps[:3]] == pytest.approx([1.0, 0.8, 1.5])
    assert times_scalar(laps, laps[3]) is None
    models, teachers = encoder_sheets(ENCODERS)
    assert models.rows[2] == ["mlp ψ", "4,194,304", "1,333", "667", "1.5", "1.5", "5", "1/2"]
    assert models.rows[3][:3] == ["pretrained", "–", "not installed: transformers"]
    assert [row[3] for row in teachers.rows] == ["100.0 %", "80.0 %"]
    assert all(len(row) == len(sheet.head) for sheet in (models, teachers) for row in sheet.rows)


def test_the_page_says_what_the_table_is():
    assert "## Encoders and teachers" in report.page({**OLD, "encoders": ENCODERS})
    assert "Encoders" not in report.page(OLD)


@pytest.mark.slow  # a process a contender, each importing its library
def test_quick_run_times_every_encoder(tmp_path):
    pytest.importorskip("matplotlib")  # of the bench extra
    main(["--quick", "--quiet", "--parts", "encoders", "--out", str(tmp_path / "bench")])
    found = json.loads((tmp_path / "bench" / "bench.json").read_text("utf-8"))["encoders"]
    assert [one["contender"] for one in found["models"]] == [entry.name for entry in encoder_entries()]
    for one in (*found["models"], *found["teachers"]):
        assert one["failure"] is None
        assert one["step"]["tokens_per_second"] > 0
