"""The page says what the results say."""

import json

import pytest

from torture import report
from torture.__main__ import PAGE, PARTS, RESULTS, _joined
from torture.outcomes import BAD, KINDS

MACHINE = {"cpu": "any", "cores": 2, "memory_bytes": 8e9, "system": "any", "python": "3", "versions": {"torch": "2"},
           "commit": "0" * 40, "uncommitted_changes": False}  # fmt: skip


def part(worst=(), **counts):
    return {"tried": sum(counts.values()), **dict.fromkeys(KINDS, 0), **counts, "seconds": 1.0, "worst": [*worst]}


RUN = {"command": "python -m torture", "date": "then", "seconds": 60.0, "seed": 7, "minutes": 1.0, "machine": MACHINE,
       "parts": {"kills": part(unharmed=1200, refused=3)}}  # fmt: skip


def test_every_part_is_explained():
    assert set(report.TRIED) == {*PARTS, "workers", "machines"}


def test_counts_are_summed():
    worst = [{"fault": "files:9", "kind": "crash", "what": "flipped a bit", "seen": "signal 11"}]
    page = report.page({**RUN, "parts": {**RUN["parts"], "files": part(worst, refused=5, crash=2, nan=1)}})
    assert "| kills | 1,203 | 3 | 1,200 | 0 |" in page
    assert "| files | 8 | 5 | 0 | 1 nan, 2 crash |" in page
    assert "| all | 1,211 | 8 | 1,200 | 1 nan, 2 crash |" in page
    assert "`--only files:9`, crash: `flipped a bit`" in page


def test_a_page_has_the_parts_that_were_run():
    fuzz = {"settings": {"executions": 12345, "seconds": 150.0, "coverage": 321, "findings": 0}}
    assert "Fuzzing" not in report.page(RUN)
    page = report.page({**RUN, "fuzz": fuzz, "sanitized": {"kernels": part(refused=7)}})
    assert "| settings | 12,345 | 150 | 321 | 0 |" in page
    assert "| kernels | 7 | 7 | 0 | 0 |" in page
    for kind, meaning in BAD.items():
        assert f"- *{kind}*: {meaning}" in page


OTHERS = {"elastic": {"z": 3}, "fuzz": {"x": 1}, "sanitized": {"y": 2}}


@pytest.mark.parametrize(
    ("sanitized", "alone", "wanted"),
    [
        (False, False, {**RUN, **OTHERS}),
        (True, False, {**RUN, "seed": 1, **OTHERS, "sanitized": RUN["parts"]}),
        (False, True, {**RUN, "seed": 1, **OTHERS, "elastic": RUN}),
    ],
    ids=["all", "sanitized", "workers alone"],
)
def test_what_a_run_did_not_look_for_stays(sanitized, alone, wanted, tmp_path, monkeypatch):
    monkeypatch.setattr("torture.__main__.RESULTS", tmp_path / "results.json")
    (tmp_path / "results.json").write_text(json.dumps({**RUN, "seed": 1, **OTHERS}))
    monkeypatch.setattr("os.environ", {"LD_PRELOAD": "libasan.so" if sanitized else ""})
    assert _joined(RUN, alone) == wanted


def test_runs_that_lost_workers_alone_have_a_table_of_their_own():
    page = report.page({**RUN, "elastic": {**RUN, "seed": 3, "parts": {"workers": part(unharmed=50)}}})
    assert "| workers | 50 | 0 | 50 | 0 |" in page.partition("## Lost workers")[2]
    assert "seed 3" in page.partition("## Lost workers")[2]


def test_the_page_in_the_docs_is_that_of_the_results(tmp_path):
    results = json.loads(RESULTS.read_text("utf-8"))
    assert PAGE.read_text("utf-8") == report.page(results)
    report.write(results, tmp_path / "results.json", tmp_path / "page.md")
    assert json.loads((tmp_path / "results.json").read_text("utf-8")) == results
