import json
import math
from itertools import product

import pytest
import torch

from bench.__main__ import QUICK, main
from bench.contenders import TRELLIS, Entry
from bench.contenders.trellis_hmm import BaumWelch, LowRank, Scalar
from bench.problem import Problem
from bench.race import Lap, Rules, race
from bench.worker import ContenderError

TINY = Problem(states=6, words=20, batch=3, length=5, rank=2, seed=3)


def test_truth_is_the_sum_over_all_paths():
    problem = Problem(states=3, words=5, batch=2, length=3, rank=2)
    start, transition, emission = problem.tables()
    for ids, found in zip(problem.ids(), problem.log_likelihoods(), strict=True):
        total = 0.0
        for path in product(range(3), repeat=3):
            probability = start[path[0]] * emission[path[0], ids[0]]
            for t in (1, 2):
                probability *= transition[path[t - 1], path[t]] * emission[path[t], ids[t]]
            total += probability
        assert found == pytest.approx(math.log(total), abs=1e-12)


def test_a_contender_that_computes_something_else_is_not_timed():
    lap = Lap(TRELLIS, rows=3, tokens=15, truth=-100.0)
    lap.check(-100.0005)
    for wrong in (-100.1, math.nan):
        with pytest.raises(ContenderError, match="computes a log-likelihood"):
            lap.check(wrong)


def test_the_reason_of_a_failure_is_the_result():
    missing = Entry("missing", "trellis_hmm:Missing", ("torch",), "a class that does not exist")
    absent = Entry("absent", "trellis_hmm:Scalar", ("no_such_library",), "not installed")
    laps = race(TINY, Rules(rounds=1, limit=30.0), (missing, absent))
    assert "Missing" in laps[0].failure
    assert laps[1].failure == "not installed: no_such_library"
    assert laps[0].as_dict()["step"] == {"failure": "not timed"}


@pytest.mark.parametrize("contender", [Scalar, LowRank, BaumWelch])
def test_evaluations_are_of_a_model_in_use_and_steps_are_not(contender):
    threads = torch.get_num_threads()
    try:
        ours = contender(TINY, 2)
        truth = TINY.log_likelihoods()[:2].sum()
        assert [ours.evaluate(), ours.evaluate()] == pytest.approx([truth, truth], rel=1e-5)
        assert not ours.model.training  # or it would keep nothing
        ours.step()
        assert ours.model.training
        assert ours.evaluate() > truth  # by the new parameters, and not by what was kept of the old
    finally:
        torch.set_num_threads(threads)


@pytest.mark.slow  # a process a contender, each importing its library
def test_quick_run_agrees_on_the_likelihood_and_writes_everything(tmp_path, capsys):
    for library in ("pomegranate", "optax", "matplotlib"):  # of the bench extra, not of the development one
        pytest.importorskip(library)
    main(["--quick", "--quiet", "--parts", "race", "growth", "--out", str(tmp_path / "bench")])
    results = json.loads((tmp_path / "bench" / "bench.json").read_text("utf-8"))
    assert {"command", "date", "seeds", "machine", "races", "growth"} <= results.keys()
    assert {"cpu", "threads", "versions", "commit", "load_average"} <= results["machine"].keys()
    laps = results["races"][0]["contenders"]
    assert [lap["contender"] for lap in laps] == [entry.name for entry in QUICK]
    for lap in laps:
        assert lap["failure"] is None
        assert lap["log_likelihood"] == pytest.approx(lap["expected_log_likelihood"], rel=1e-5)
        assert lap["step"]["tokens_per_second"] > 0
        assert lap["evaluate"]["peak_bytes"] >= 0
    assert all(point["tokens_per_second"] > 0 for point in results["growth"]["states"])
    assert "× dynamax" in capsys.readouterr().out
    assert (tmp_path / "bench" / "bench.svg").stat().st_size > 1000
    assert "python -m bench --quick" in (tmp_path / "bench.md").read_text("utf-8")
