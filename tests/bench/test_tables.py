import json
from pathlib import Path

import pytest
import torch

from bench import report
from bench.__main__ import main
from bench.blocked_problem import BlockedProblem
from bench.breakdown import UPDATE, breakdown, part
from bench.contenders.brown_clusters import corpus_in
from bench.kernel_tables import blocked_sheets, kernel_sheets, share_of_bare, times_dynamax, times_pytorch

MACHINE = {
    "cpu": "any", "cores": 2, "threads": 2, "memory_bytes": 8e9, "system": "any", "python": "3", "versions": {},
    "commit": "0" * 40, "uncommitted_changes": False, "load_average": [0.0],
}  # fmt: skip
OLD = {  # as runs wrote it before there were blocked models and kernels
    "command": "python -m bench", "date": "then", "seconds": 1.0, "seeds": [0], "machine": MACHINE, "races": [],
    "growth": {},
}  # fmt: skip


def timing(seconds: float, tokens: int = 1000) -> dict:
    return {
        "seconds": [seconds], "samples": 2, "undisturbed": 1, "best_seconds": seconds, "median_seconds": 2 * seconds,
        "tokens_per_second": tokens / seconds, "median_tokens_per_second": tokens / seconds / 2, "peak_bytes": 5e6,
    }  # fmt: skip


def lap(model: str, path: str, precision: str, seconds: float, **more: object) -> dict:
    name = f"{model}, {path}, {precision}"
    return {"model": model, "path": path, "precision": precision, "contender": name, "failure": None,
            "step": timing(seconds), **more}  # fmt: skip


SPENT = {"recursion": 0.2, "products": 0.1, "exponentials": 0.05, "optimiser": 0.05, "other": 0.1}  # of a slower step
OPERATIONS = {"recursion": 3e9, "products": 1e9}
MATCH = {
    "problem": {"states": 512, "words": 32_000, "batch": 10, "length": 100},
    "contenders": [
        lap("low-rank", "native", "bf16", 0.25, level="avx512", breakdown=SPENT, operations=OPERATIONS),
        lap("low-rank", "PyTorch", "bf16", 0.5),
        lap("low-rank", "PyTorch", "float32", 1.0),
        lap("scalar", "PyTorch", "float32", 0.125),
        {"contender": "dynamax", "failure": None, "step": timing(2.0)},
        {"contender": "scalar, native, bf16", "model": "scalar", "path": "native", "precision": "bf16",
         "failure": "it broke", "step": {"failure": "not timed"}},
    ],
}  # fmt: skip
KERNELS = {"bare": {"level": "avx512", "float32": 50e9, "bf16": 100e9}, "matches": [MATCH]}


def point(states: int, transition: str, seconds: float, batch: int = 16) -> dict:
    size = {"states": states, "blocks": 128, "batch": batch, "length": 32, "transition": transition, "pairs": 400}
    return {**size, "failure": None, "seconds": [seconds], "undisturbed": 1, "tokens_per_second": 512 / seconds,
            "peak_bytes": 2e9}  # fmt: skip


BROWN = {"corpus": "ptb", "tokens": 929589, "types": 10000, "clusters": 128, "seconds": 41.0, "peak_bytes": 1e8,
         "undisturbed": True, "failure": None}  # fmt: skip
BLOCKED = {
    "points": [
        point(1 << 15, "hierarchical", 0.2), point(1 << 15, "flat", 3.0), point(1 << 17, "hierarchical", 0.8),
        point(1 << 15, "hierarchical", 0.1, batch=32),
    ],
    "brown": BROWN,
}  # fmt: skip


def test_speeds_are_compared_with_the_same_model_in_float32_and_with_dynamax():
    native, half, base, scalar, *_ = MATCH["contenders"]
    assert [times_pytorch(MATCH, found) for found in (native, half, base, scalar)] == pytest.approx([4, 2, 1, 1])
    assert times_dynamax(MATCH, native) == pytest.approx(8)
    assert times_pytorch(MATCH, MATCH["contenders"][-1]) is None


def test_shares_are_of_the_bare_rate_in_the_same_precision():
    native, unknown, *_ = MATCH["contenders"]
    bare = KERNELS["bare"]
    assert share_of_bare(native, bare) == pytest.approx(4e9 / 0.25 / 100e9)
    assert share_of_bare(native, bare, "recursion") == pytest.approx(3e9 / (0.25 * 0.4) / 100e9)
    assert share_of_bare(native, bare, "products") == pytest.approx(1e9 / (0.25 * 0.2) / 100e9)
    assert share_of_bare(unknown, bare) is None
    assert share_of_bare(native, {"level": None, "reason": "none were built"}) is None


def test_tables_of_kernels_show_failures_and_where_the_time_goes():
    speeds, rest = kernel_sheets(KERNELS)
    assert speeds.rows[0][:7] == ["low-rank", "native (avx512)", "bf16", "4,000", "2,000", "4", "8"]
    assert speeds.rows[-1][3] == "it broke"
    assert all(len(row) == len(speeds.head) for row in speeds.rows)
    assert rest.rows == [
        ["low-rank", "native (avx512)", "bf16", "250", "40.0 %", "20.0 %", "10.0 %", "10.0 %", "20.0 %"]
    ]


def test_hierarchical_is_compared_with_flat_of_the_same_size_and_batch():
    published, ours, brown = blocked_sheets(BLOCKED)
    assert [row[-2] for row in published.rows] == ["15", "–"]
    assert [row[-2] for row in ours.rows] == ["–"]
    assert published.rows[0][0] == "32,768"
    assert brown.rows == [["ptb", "929,589", "10,000", "128", "41", "100", "1/1"]]


def test_a_page_has_the_parts_that_were_run():
    old = report.page(OLD)
    assert "Blocked" not in old
    assert "kernels" not in old
    new = report.page({**OLD, "blocked": BLOCKED, "kernels": KERNELS})
    assert "### Blocked models, 16 × 32 tokens" in new
    assert "100 in bf16 (avx512)" in new
    bare = {"level": None, "reason": "none were built."}
    assert "none were built." in report.page({**OLD, "kernels": {**KERNELS, "bare": bare}})


def test_results_in_the_docs_still_render(tmp_path):
    pytest.importorskip("matplotlib")
    committed = json.loads((Path(__file__).parents[2] / "docs" / "bench" / "bench.json").read_text("utf-8"))
    for results in (committed, {**committed, "blocked": BLOCKED, "kernels": KERNELS}):
        report.write(results, tmp_path / "bench")
        assert (tmp_path / "bench" / "bench.svg").stat().st_size > 1000
    assert "Where the time goes" in (tmp_path / "bench.md").read_text("utf-8")


def test_text_crosses_as_many_pairs_as_the_penn_treebank():
    ours, published = BlockedProblem(batch=32, length=64), BlockedProblem()
    assert len(ours.pairs()) == pytest.approx(1205, rel=0.05)
    assert len(published.pairs()) == pytest.approx(403, rel=0.05)
    assert ours.ids().min() >= 0
    assert ours.ids().max() < ours.words


def penn_treebank(folder: Path) -> None:
    (folder / "ptb").mkdir()
    (folder / "ptb" / "ptb.train.txt").write_text("a b a c\nb a d a\nc a b a\n")


def test_clusters_the_penn_treebank_where_there_is_one(tmp_path):
    assert (corpus_in(None), corpus_in(str(tmp_path))) == ("pydocs", "pydocs")
    penn_treebank(tmp_path)
    assert corpus_in(str(tmp_path)) == "ptb"


def test_time_goes_to_the_recursion_and_the_update_first_and_then_to_the_kind_of_operation():
    recursions = {"_LogProbs", "_LogProbsBackward"}
    assert part(["aten::mm", "_LogProbsBackward", "autograd::engine::evaluate_function"], recursions) == "recursion"
    assert part(["native: adamw", UPDATE], recursions) == "optimiser"
    assert part(["aten::mm", "aten::matmul"], recursions) == "products"
    assert part(["native: pair_forward", "_BilinearPairs"], recursions) == "products"
    assert part(["aten::sub", "aten::logsumexp"], recursions) == "exponentials"
    assert part(["aten::index_select"], recursions) == "other"


def test_a_breakdown_finds_the_products_and_exponentials_of_a_step():
    matrix = torch.randn(300, 300, requires_grad=True)

    def multiply() -> None:
        (matrix @ matrix).sum().backward()
        with torch.profiler.record_function(UPDATE):
            matrix.detach().add(1.0)

    spent = breakdown(multiply)
    assert spent["recursion"] == spent["exponentials"] == 0
    assert min(spent["products"], spent["optimiser"], spent["other"]) > 0
    assert breakdown(lambda: matrix.exp())["exponentials"] > 0


@pytest.mark.slow  # a process a size
def test_quick_run_of_blocked_models_and_kernels_writes_their_sections(tmp_path):
    pytest.importorskip("matplotlib")
    penn_treebank(tmp_path)
    where = ["--data-dir", str(tmp_path), "--out", str(tmp_path / "bench")]
    main(["--quick", "--quiet", "--parts", "blocked", "kernels", *where])
    results = json.loads((tmp_path / "bench" / "bench.json").read_text("utf-8"))
    assert results["command"].startswith("python -m bench --quick --quiet --parts blocked kernels --data-dir DATA ")
    points, brown = results["blocked"]["points"], results["blocked"]["brown"]
    assert [found["transition"] for found in points] == ["hierarchical", "flat"]
    assert all(found["failure"] is None and found["tokens_per_second"] > 0 for found in points)
    assert (brown["failure"], brown["corpus"], brown["clusters"]) == (None, "ptb", 4)
    assert brown["seconds"] > 0
    for match in results["kernels"]["matches"]:
        for found in match["contenders"]:
            assert found["failure"] is None
            assert found["path"] == "native" or found["level"] is None
            assert found["step"]["tokens_per_second"] > 0
            assert min(found["breakdown"][part] for part in ("recursion", "products", "optimiser")) > 0
    page = (tmp_path / "bench.md").read_text("utf-8")
    assert "### Blocked models, 2 × 8 tokens" in page
    assert "### Kernels: 64 states in 8 blocks, 2 × 8 tokens" in page
