"""Two versions of Trellis in one run: each process has its own, and the ratios are of what was measured."""

import dataclasses

import pytest

from bench.__main__ import PARTS, main, quick
from bench.against import against, told, training_rows
from bench.contenders import TRELLIS
from bench.encoders import encoder_entries
from bench.machine import ROOT
from bench.problem import Problem
from bench.worker import ContenderError, Sample, Worker

TINY = Problem(states=6, words=20, batch=3, length=5, rank=2, seed=3)


def samples(*seconds, others=0.0):
    return [Sample(each, 0, others, None) for each in seconds]


@pytest.fixture
def other(tmp_path):
    """Sources of a Trellis that cannot be imported, and says so."""
    (tmp_path / "trellis").mkdir()
    (tmp_path / "trellis" / "__init__.py").write_text("raise RuntimeError('the other Trellis')\n")
    return tmp_path


def test_a_contender_has_the_sources_it_is_given(other):
    entry = dataclasses.replace(TRELLIS, sources=str(other))
    with pytest.raises(ContenderError, match="the other Trellis"), Worker(entry, TINY, 60.0):
        pass


def test_a_version_that_fails_has_a_line_that_says_so(other, capsys):
    plan = dataclasses.replace(quick(), growth={"states": [TINY]})
    against(other, plan, ["growth"])
    (line,) = capsys.readouterr().out.splitlines()
    assert line.split("  ")[0] == "Trellis"
    assert "6 states × 20 words, 3 × 5 tokens" in line
    assert line.endswith("RuntimeError: the other Trellis")


def test_a_folder_without_a_trellis_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="holds no Trellis"):
        main(["--quick", "--quiet", "--against", str(tmp_path)])


def test_ratios_are_of_undisturbed_calls():
    slow = samples(0.001, others=0.5)
    line = told(samples(0.5, 0.3, 0.4) + slow, samples(0.25, 0.2, 0.2))
    assert line == "300 / 200 ms = 1.500, medians 2.000, 6/7 quiet"
    assert told(slow, samples(0.002)) == "1 / 2 ms = 0.500, medians 0.500, 1/2 quiet"


def test_every_training_row_is_compared():
    rows = training_rows(quick())
    assert set(rows) == set(PARTS)
    assert {part: [entry.name for entry, _ in found] for part, found in rows.items()} == {
        "race": ["Trellis", "Trellis low-rank", "Trellis Baum–Welch"],
        "growth": ["Trellis", "Trellis"],
        "blocked": ["Trellis blocked, hierarchical", "Trellis blocked, flat"],
        "kernels": [f"{model}, {path}, float32" for model in ("low-rank", "blocked") for path in ("native", "PyTorch")],
        "encoders": [entry.name for entry in encoder_entries()],
        "memory": ["plain", "a word", "a frequent word"] * 2,
        "categorical": [],
        "steering": [],
    }


@pytest.mark.slow  # two processes a row, each importing Trellis
def test_a_version_against_itself(capsys):
    main(["--quick", "--quiet", "--against", str(ROOT / "src"), "--parts", "race"])
    lines = capsys.readouterr().out.splitlines()
    assert len(lines) == 3
    assert all("ms = " in line for line in lines)
