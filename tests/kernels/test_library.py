import logging
import os
import subprocess
import sys

import pytest
import torch

from trellis import kernels
from trellis.errors import TrellisError
from trellis.kernels import library


@pytest.fixture
def fresh() -> object:
    """The library forgotten, before and after."""
    library._loaded.cache_clear()
    yield
    library._loaded.cache_clear()


def test_levels_are_said_to_be_what_they_are(level: str) -> None:
    assert kernels.status().level == level
    assert kernels.usable(torch.zeros(1))
    assert not kernels.usable(torch.zeros(1, dtype=torch.float64))
    with kernels.using(None):
        assert not kernels.usable(torch.zeros(1))
        assert kernels.status().level is None
    assert kernels.usable(torch.zeros(1))
    assert kernels.bare_rate(seconds=0.0) > 0


def test_the_environment_overrides_the_level(monkeypatch: pytest.MonkeyPatch, fresh: None) -> None:
    monkeypatch.setenv(library.VARIABLE, "off")
    assert kernels.status() == kernels.Status(None, "TRELLIS_KERNELS=off asks for PyTorch.", ())
    library._loaded.cache_clear()
    monkeypatch.setenv(library.VARIABLE, "sse9")
    with pytest.raises(TrellisError, match="TRELLIS_KERNELS=sse9 is no level"):
        kernels.status()
    if library.PATH.exists():
        library._loaded.cache_clear()
        monkeypatch.setenv(library.VARIABLE, "portable")
        assert kernels.status().level == "portable"


@pytest.mark.parametrize("broken", [False, True])
def test_without_a_library_pytorch_is_used_and_that_is_said_once(
    broken: bool, monkeypatch: pytest.MonkeyPatch, fresh: None, caplog: pytest.LogCaptureFixture, tmp_path: object
) -> None:
    path = tmp_path / "_kernels.so"  # type: ignore[operator]
    if broken:
        path.write_text("no library")
    monkeypatch.setattr(library, "PATH", path)
    with caplog.at_level(logging.WARNING):
        assert not kernels.usable(torch.zeros(1))
        assert not kernels.usable(torch.zeros(1))
    assert [record.message.partition(":")[0] for record in caplog.records] == ["PyTorch does all the work"]
    assert kernels.levels() == []
    with pytest.raises(TrellisError, match="no native kernels here"):
        kernels.push(torch.rand(1, 1, 1), torch.tensor([0]), torch.rand(1, 1))


def test_a_forked_child_computes_too() -> None:
    if not kernels.levels():
        pytest.skip("the native kernels were not built")
    child = """
import os, torch
from trellis import kernels
torch.set_num_threads(2)
into, pair, belief = torch.rand(8, 8, 8), torch.arange(8), torch.rand(8, 8)
wanted = kernels.push(into, pair, belief)
pid = os.fork()
if pid == 0:
    os._exit(0 if torch.equal(kernels.push(into, pair, belief), wanted) else 1)
raise SystemExit(os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1]))
"""
    assert subprocess.run([sys.executable, "-c", child], timeout=60, check=False).returncode == 0


@pytest.mark.skipif(not kernels.levels(), reason="the native kernels were not built")
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
