import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import trellis
from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import library
from trellis.ops.steps import push


@pytest.fixture
def fresh() -> object:
    """The library forgotten, before and after."""
    library._loaded.cache_clear()
    yield
    library._loaded.cache_clear()


def test_levels_are_said_to_be_what_they_are(level: str) -> None:
    assert ops.status().level == level
    assert ops.usable(torch.zeros(1))
    assert not ops.usable(torch.zeros(1, dtype=torch.float64))
    with ops.using(None):
        assert not ops.usable(torch.zeros(1))
        assert ops.status().level is None
    assert ops.usable(torch.zeros(1))
    assert ops.bare_rate(seconds=0.0) > 0


def test_the_environment_overrides_the_level(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setenv(library.VARIABLE, "off")
    assert ops.status() == ops.Status(None, "TRELLIS_KERNELS=off asks for PyTorch.", ())
    library._loaded.cache_clear()
    monkeypatch.setenv(library.VARIABLE, "sse9")
    with pytest.raises(TrellisError, match="TRELLIS_KERNELS=sse9 is no level"):
        ops.status()
    if library.PATH.exists():
        library._loaded.cache_clear()
        monkeypatch.setenv(library.VARIABLE, "portable")
        assert ops.status().level == "portable"


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_library_pytorch_is_used_and_that_is_said_once(
    broken: bool, monkeypatch: pytest.MonkeyPatch, fresh: None, caplog: pytest.LogCaptureFixture, tmp_path: object
) -> None:
    path = tmp_path / "_ops.so"  # type: ignore[operator]
    if broken:
        path.write_text("no library")
    monkeypatch.setattr(library, "PATH", path)
    with caplog.at_level(logging.WARNING):
        assert not ops.usable(torch.zeros(1))
        assert not ops.usable(torch.zeros(1))
    assert [record.message.partition(":")[0] for record in caplog.records] == ["PyTorch does all the work"]
    assert ops.levels() == []
    with pytest.raises(TrellisError, match="no native kernels here"):
        library.exponentials(torch.zeros(1))
    assert push(torch.ones(1, 1, 1), torch.tensor([0]), torch.ones(1, 1)).tolist() == [[1.0]]


def test_a_forked_child_computes_too() -> None:
    if not ops.levels():
        pytest.skip("the native kernels were not built")
    child = """
import os, torch
from trellis.ops.steps import push
torch.set_num_threads(2)
into, pair, belief = torch.rand(8, 8, 8), torch.arange(8), torch.rand(8, 8)
wanted = push(into, pair, belief)
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.equal(push(into, pair, belief), wanted) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", child], timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not ops.levels(), reason="the native kernels were not built")
@pytest.mark.parametrize(
    ("before", "wanted"),
    [
        ({}, "20000"),
        ({"GOMP_SPINCOUNT": "7"}, "7"),
        ({"OMP_WAIT_POLICY": "active"}, ""),
        ({"TRELLIS_KERNELS": "off"}, ""),
    ],
)
def test_waiting_threads_soon_sleep_where_native_code_wants_their_cores(before: dict[str, str], wanted: str) -> None:
    ours = ("GOMP_SPINCOUNT", "OMP_WAIT_POLICY", "TRELLIS_KERNELS")
    clean = {name: value for name, value in os.environ.items() if name not in ours}
    program = "import os, trellis; print(os.environ.get('GOMP_SPINCOUNT', ''))"
    told = subprocess.run(
        [sys.executable, "-c", program], env=clean | before, capture_output=True, text=True, check=True
    )
    assert told.stdout.strip() == wanted


def test_exponentials_are_within_two_units_in_the_last_place(level: str) -> None:
    x = torch.cat([torch.linspace(-87.3, 88.7, 200_001), torch.linspace(-1, 1, 200_000)])
    exact = x.double().exp()
    unit = torch.finfo(torch.float32).eps * 2 ** exact.log2().floor()
    assert float(((library.exponentials(x).double() - exact) / unit).abs().max()) < 2
    edges = library.exponentials(torch.tensor([-torch.inf, -1e30, -110.0, 0.0, 89.0, 1e30, torch.inf, torch.nan]))
    assert edges[:7].tolist() == [0.0, 0.0, 0.0, 1.0, torch.inf, torch.inf, torch.inf]
    assert edges[7].isnan()


def test_what_kernels_cannot_read_is_refused() -> None:
    with pytest.raises(TrellisError, match="float64"):
        library.ready(torch.zeros(1, dtype=torch.float64))
    with pytest.raises(TrellisError, match="on meta"):
        library.ready(torch.zeros(1, device="meta"))
    with pytest.raises(TrellisError, match=r"rows has shape \(2, 3\), not \(3, 2\)"):
        library.check(torch.zeros(2, 3), (3, 2), "rows")
    assert library.ready(torch.zeros(3, 2).T).is_contiguous()


def test_the_library_lies_in_the_package() -> None:
    assert library.PATH.parent == Path(trellis.__file__).parent
    assert library.PATH.name == "_kernels.so"
