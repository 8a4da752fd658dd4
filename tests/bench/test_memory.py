import json

import pytest
import torch

from bench import report
from bench.__main__ import main
from bench.blocked_problem import BlockedProblem
from bench.contenders import versions
from bench.memory import (
    FREQUENT,
    FREQUENT_WORDS,
    MEMORY,
    PLAIN,
    entries,
    memory_sheets,
    quick_sizes,
    times_plain,
    truth,
)
from bench.problem import Problem

from .test_tables import OLD, timing

DENSE = Problem(states=6, words=20, batch=3, length=5, rank=2, seed=3)
BLOCKED = BlockedProblem(16, 4, words=12, batch=2, length=6, width=8)


@pytest.fixture(autouse=True)
def threads():
    """Contenders set the number of threads of their process, which here is everybody's."""
    before = torch.get_num_threads()
    yield
    torch.set_num_threads(before)


@pytest.mark.parametrize("problem", [DENSE, BLOCKED], ids=["dense", "blocked"])
def test_both_models_find_their_exact_likelihood_and_only_one_learns_of_words(problem):
    plain, memory, frequent = entries(problem)
    assert (plain.name, memory.name, frequent.name) == (PLAIN, MEMORY, FREQUENT)
    for entry in (plain, memory, frequent):
        ours = entry.build(problem)
        assert ours.evaluate() == pytest.approx(truth(problem, entry), rel=1e-5)
        for _ in range(3):
            ours.step()
        assert ours.evaluate() > truth(problem, entry)
        assert (ours.model.memory is not None and bool(ours.model.memory.words.any())) == (entry is not plain)


def test_frequent_words_are_a_fraction_of_all_or_all_that_there_are():
    problem = Problem(states=4, words=FREQUENT_WORDS + 1, batch=1, length=2, rank=2)
    *_, frequent = entries(problem)
    kept_W = frequent.build(problem).model.memory.kept_W
    assert kept_W.tolist() == list(range(FREQUENT_WORDS))  # of the problem's frequencies, the highest
    assert versions.fitting({"memory_words": FREQUENT_WORDS, "memory": 1}, 12) == {"memory_words": 12, "memory": 1}


def laps(*seconds):
    return [
        {"contender": name, "failure": None, "step": timing(one)}
        for name, one in zip((PLAIN, MEMORY), seconds, strict=True)
    ]


FOUND = [
    {"problem": {"states": 512, "words": 32_000}, "models": laps(0.5, 0.6)},
    {
        "problem": {"states": 16_384, "words": 10_000, "blocks": 128},
        "models": [*laps(0.5, 0.6)[:1], {"contender": MEMORY, "failure": "it broke", "step": {"failure": "not timed"}}],
    },
]


def test_times_are_those_of_the_plain_step():
    assert times_plain(*FOUND[0]["models"]) == pytest.approx(1.2)
    assert times_plain(*FOUND[1]["models"]) is None
    (sheet,) = memory_sheets(FOUND)
    assert sheet.rows[0] == [
        "512 states × 32,000 words", "a word", "2,000", "1,000", "1,667", "833", "1.2", "1.2", "5", "2/4"
    ]  # fmt: skip
    assert sheet.rows[1][:3] == ["16,384 states × 10,000 words, 128 blocks", "a word", "it broke"]
    assert all(len(row) == len(sheet.head) for row in sheet.rows)


def test_the_page_says_what_the_table_is():
    assert "## States that remember their word" in report.page({**OLD, "memory": FOUND})
    assert "remember" not in report.page(OLD)


@pytest.mark.slow  # a process a contender, each importing its library
def test_quick_run_times_every_size(tmp_path):
    pytest.importorskip("matplotlib")  # of the bench extra
    main(["--quick", "--quiet", "--parts", "memory", "--out", str(tmp_path / "bench")])
    found = json.loads((tmp_path / "bench" / "bench.json").read_text("utf-8"))["memory"]
    assert len(found) == len(quick_sizes())
    for one in (lap for size in found for lap in size["models"]):
        assert one["failure"] is None
        assert one["step"]["tokens_per_second"] > 0
