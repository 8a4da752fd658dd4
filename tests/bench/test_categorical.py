import json

import numpy as np
import pytest
import torch

from bench import categorical, report
from bench.__main__ import main
from bench.categorical import LOG, OURS, SCALING, Task, measure
from bench.categorical_tables import categorical_sheets, faster

from .test_tables import OLD

TINY = Task(3, 4, 10, 2, symbols=5)


@pytest.fixture(autouse=True)
def threads():
    """Measuring sets the number of threads of its process, which here is everybody's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


def result(ours, scaling, log, **more):
    timed = {
        name: {
            question: {"best_seconds": seconds, "samples": 2, "undisturbed": 1} for question in categorical.QUESTIONS
        }
        for name, seconds in ((OURS, ours), (SCALING, scaling), (LOG, log))
    }
    task = {"states": 1024, "sequences": 200, "length": 50}
    return {"task": task, "contenders": timed, "table_difference": 2e-15, "failure": None, **more}


def test_times_are_beside_both_implementations_and_a_size_that_differs_has_none():
    good, bad = result(0.001, 0.025, 0.2), result(0.001, 0.1, 0.1, failure="tables differ by 0.1, scores by 0")
    assert faster(good, "score", SCALING) == pytest.approx(25)
    (sheet,) = categorical_sheets([good, bad])
    assert sheet.rows[0] == ["1,024", "200 × 50", "1", "200", "25", "1", "200", "25", "1", "25", "2e-15", "3/6"]
    assert sheet.rows[1][2] == "tables differ by 0.1, scores by 0"
    assert all(len(row) == len(sheet.head) for row in sheet.rows)


def test_the_page_has_the_part_if_it_was_run():
    assert "## The estimator" in report.page({**OLD, "categorical": [result(0.001, 0.1, 0.1)]})
    assert "The estimator" not in report.page({**OLD, "categorical": None})


def test_all_contenders_learn_the_same_from_the_same_start():
    pytest.importorskip("hmmlearn")
    found = measure(TINY, 1, 0.0)
    assert found["failure"] is None
    assert found["table_difference"] < 1e-9
    assert set(found["contenders"]) == {OURS, SCALING, LOG}
    for timed in found["contenders"].values():
        assert timed["fit"]["best_seconds"] == min(timed["fit"]["seconds"])
        assert timed["fit"]["samples"] == 2


def test_answers_that_differ_are_noticed(monkeypatch):
    pytest.importorskip("hmmlearn")
    from trellis import CategoricalHMM

    fit = CategoricalHMM.fit

    def wrong(self, X, lengths):
        fit(self, X, lengths).transmat_ = np.full((3, 3), 1 / 3)

    monkeypatch.setattr(CategoricalHMM, "fit", wrong)
    assert "tables differ by" in measure(TINY, 0, 0.0)["failure"]


def test_without_hmmlearn_there_is_nothing_to_compare(monkeypatch):
    monkeypatch.setattr(categorical, "find_spec", lambda name: None)
    assert categorical.compare((TINY,), 1, 0.0, print) is None


@pytest.mark.slow  # a process a size
def test_a_quick_run_writes_its_part(tmp_path):
    pytest.importorskip("matplotlib")
    pytest.importorskip("hmmlearn")
    main(["--quick", "--quiet", "--parts", "categorical", "--out", str(tmp_path / "bench")])
    found = json.loads((tmp_path / "bench" / "bench.json").read_text("utf-8"))["categorical"]
    assert [one["task"]["sequences"] for one in found] == [6, 1]
    assert all(one["failure"] is None for one in found)
    assert "CategoricalHMM beside hmmlearn" in (tmp_path / "bench.md").read_text("utf-8")
