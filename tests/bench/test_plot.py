import copy
import json
from pathlib import Path

import pytest

pytest.importorskip("matplotlib")
from bench.plot import _round_up, plot

COMMITTED = json.loads((Path(__file__).parents[2] / "docs" / "bench" / "bench.json").read_text("utf-8"))


def drawn(results, path):
    plot(results, path)
    return path.read_text("utf-8").splitlines()


def test_drawn_again_the_picture_is_the_same(tmp_path):
    first, second = (drawn(COMMITTED, tmp_path / name) for name in ("a.svg", "b.svg"))
    assert first == second
    assert len(first) < 600
    assert sorted(path.name for path in tmp_path.iterdir()) == ["a.svg", "b.svg"]


def test_text_stays_text_and_nothing_says_when(tmp_path):
    svg = "\n".join(drawn(COMMITTED, tmp_path / "a.svg"))
    assert ">512 states × 10,000 words</text>" in svg
    assert "metadata" not in svg
    assert "matplotlib" not in svg.lower()


def test_a_new_figure_moves_its_own_bar_and_nothing_else(tmp_path):
    other = copy.deepcopy(COMMITTED)
    other["races"][0]["contenders"][0]["step"]["tokens_per_second"] *= 1.1
    before, after = drawn(COMMITTED, tmp_path / "a.svg"), drawn(other, tmp_path / "b.svg")
    assert sum(a != b for a, b in zip(before, after, strict=True)) == 1


@pytest.mark.parametrize("failing", [0, 1, 7])
def test_a_race_that_nobody_or_not_everybody_finishes_is_drawn(tmp_path, failing):
    other = copy.deepcopy(COMMITTED)
    for lap in other["races"][0]["contenders"][failing:]:
        lap["step"] = lap["evaluate"] = {}
    assert any("pomegranate" in line for line in drawn(other, tmp_path / "a.svg"))


@pytest.mark.parametrize(("value", "end"), [(1, 1), (7, 8), (9, 10), (116_768, 150_000), (5_844, 6_000), (0.03, 0.03)])
def test_axes_end_at_round_numbers(value, end):
    assert _round_up(value) == pytest.approx(end)
