"""Two versions of Trellis in one run: each process has its own, and the ratios are of what was measured."""

import dataclasses

import pytest

from bench import against
from bench.__main__ import PARTS, _training_rows, main, quick
from bench.against import against as compare
from bench.contenders import TRELLIS
from bench.kernels import DYNAMAX
from bench.machine import ROOT
from bench.problem import Problem
from bench.quiet import Patience
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
    with (
        pytest.raises(ContenderError, match="the other Trellis"),
        Worker(dataclasses.replace(TRELLIS, sources=str(other)), TINY, 60.0),
    ):
        pass


def test_a_version_that_fails_is_a_row_that_says_so(other):
    said = []
    sheet = compare(other, [(TRELLIS, TINY)], 1, 60.0, Patience(0.0), said.append)
    assert sheet.rows == [
        ["Trellis", "6 states × 20 words, 3 × 5 tokens", "RuntimeError: the other Trellis", *["–"] * 4]
    ]
    assert said == ["Trellis"]
    assert len(sheet.head) == len(sheet.rows[0])


def test_a_folder_without_a_trellis_is_refused(tmp_path):
    with pytest.raises(SystemExit, match="holds no Trellis"):
        main(["--quick", "--quiet", "--against", str(tmp_path)])


def test_ratios_are_of_undisturbed_calls():
    slow = samples(0.001, others=0.5)
    assert against._row([samples(0.5, 0.3, 0.4) + slow, samples(0.25, 0.2, 0.2)]) == [
        "300",
        "200",
        "1.500",
        "2.000",
        "6/7",
    ]
    assert against._row([slow, samples(0.002)])[2] == "0.500"


def test_every_training_row_is_compared():
    rows = list(_training_rows(quick(), PARTS))
    assert {entry.name for entry, _ in rows} >= {
        "Trellis", "Trellis low-rank", "Trellis Baum–Welch", "Trellis blocked, hierarchical", "Trellis blocked, flat",
        "low-rank, native, float32", "blocked, PyTorch, float32",
    }  # fmt: skip
    assert DYNAMAX not in [entry for entry, _ in rows]
    assert len(list(_training_rows(quick(), ["growth"]))) == 2


@pytest.mark.slow  # two processes, each importing Trellis
def test_a_version_against_itself(capsys):
    main(["--quick", "--quiet", "--against", str(ROOT / "src"), "--parts", "race", "--only", "Trellis low-rank"])
    said = capsys.readouterr().out
    assert "this / that" in said
    assert said.count("Trellis low-rank") == 1
