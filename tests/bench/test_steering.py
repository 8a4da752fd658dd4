"""Guidance in the bench: its tables, and that what is timed is what is said."""

import pytest

from bench import report, steering
from bench.steering import measure, quick_task
from bench.steering_tables import overhead, steering_sheets

from .test_tables import OLD


def timed(seconds, **more):
    return {"best_seconds": seconds, "seconds": [seconds], "samples": 2, "undisturbed": 1} | more


FOUND = {
    "task": {"batch": 8, "words": 32_000, "states": 512},
    "tokenizer": "Llama 2",
    "step": {"alone": timed(0.020), "guided": timed(0.025)},
    "compiling": {"one keyword": timed(0.1, states=9), "outlines-core": timed(2.0, states=None)},
}


def test_the_tables_say_what_was_found():
    step, compiling = steering_sheets(FOUND)
    assert step.rows == [["8", "32,000", "512 states", "20", "25", "25.0 %", "2/4"]]
    assert [row[2:4] for row in compiling.rows] == [["9", "100"], ["–", "2,000"]]
    for sheet in (step, compiling):
        assert all(len(row) == len(sheet.head) for row in sheet.rows)
    assert overhead(FOUND["step"]) == pytest.approx(0.25)


def test_the_page_has_the_part_if_it_was_run():
    assert "## Guidance" in report.page({**OLD, "steering": FOUND})
    assert "## Guidance" not in report.page({**OLD, "steering": None})


def test_steps_and_automata_are_timed(monkeypatch):
    pytest.importorskip("transformers")
    monkeypatch.delenv("TRELLIS_DATA", raising=False)
    found = measure(quick_task(), 2, 0.0)
    assert found["tokenizer"] == "made-up words"
    assert "data_dir" not in found["task"]
    for watch in found["step"].values():
        assert watch["samples"] == 2
        assert watch["best_seconds"] == min(watch["seconds"])
    assert found["compiling"]["one keyword"]["states"] > 1
    assert found["compiling"]["ten keywords"]["states"] > found["compiling"]["three keywords"]["states"]


def test_without_transformers_there_is_nothing_to_time(monkeypatch):
    monkeypatch.setattr(steering, "find_spec", lambda name: None)
    assert steering.compare(quick_task(), 1, 0.0) is None
