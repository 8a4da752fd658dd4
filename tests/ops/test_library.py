import ctypes
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
import torch
from torch import Tensor

import trellis
from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import library
from trellis.ops.steps import push

Call = library.structure("rows_NR square_NN word_N:int start:int? total_R?", "N R threads", "scale")


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
        ops.bare_rate()
    assert push(torch.ones(1, 1, 1), torch.tensor([0]), torch.ones(1, 1)).tolist() == [[1.0]]


@pytest.mark.parametrize("checkout", [True, False])
@pytest.mark.parametrize("compiled", [True, False])
def test_what_was_not_built_is_said_to_need_what_it_needs(
    checkout: bool, compiled: bool, monkeypatch: pytest.MonkeyPatch, fresh: None, tmp_path: Path
) -> None:
    compiler = tmp_path / "bin" / "g++"
    for path in (compiler, tmp_path / "here" / "src" / "trellis" / "x", tmp_path / "here" / "src" / "native" / "x"):
        path.parent.mkdir(parents=True)
    if compiled:
        compiler.write_text("#!/bin/sh\n")
        compiler.chmod(0o755)
    if checkout:
        (tmp_path / "here" / "src" / "native" / "api.cpp").write_text("")
    monkeypatch.delenv("CXX", raising=False)
    monkeypatch.setenv("PATH", str(compiler.parent))
    monkeypatch.setattr(library, "PATH", tmp_path / "here" / "src" / "trellis" / "_kernels.so")
    why = f", though there is a compiler, {compiler}: " if compiled else ": install a C++ compiler, then "
    how = f"run pip install --verbose --editable {tmp_path / 'here'}." if checkout else "install Trellis again from its"
    assert ops.status().reason.startswith(f"the native kernels were not built{why}{how}")


def test_the_compiler_is_the_one_that_was_asked_for(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    mine = tmp_path / "mine"
    mine.write_text("#!/bin/sh\n")
    mine.chmod(0o755)
    monkeypatch.setenv("CXX", f"{mine} -m64")
    assert ops.compiler() == str(mine)
    monkeypatch.setenv("CXX", str(tmp_path / "none"))
    assert ops.compiler() is None


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


def exponentials(x_N: Tensor) -> Tensor:
    out_N = torch.empty_like(x_N)
    pointers = (ctypes.c_void_p(tensor.data_ptr()) for tensor in (x_N, out_N))
    library._library().trellis_exponentials(*pointers, ctypes.c_int64(len(x_N)))
    return out_N


def test_exponentials_are_within_two_units_in_the_last_place(level: str) -> None:
    x = torch.cat([torch.linspace(-87.3, 88.7, 200_001), torch.linspace(-1, 1, 200_000)])
    exact = x.double().exp()
    unit = torch.finfo(torch.float32).eps * 2 ** exact.log2().floor()
    assert float(((exponentials(x).double() - exact) / unit).abs().max()) < 2
    edges = exponentials(torch.tensor([-torch.inf, -1e30, -110.0, 0.0, 89.0, 1e30, torch.inf, torch.nan]))
    assert edges[:7].tolist() == [0.0, 0.0, 0.0, 1.0, torch.inf, torch.inf, torch.inf]
    assert edges[7].isnan()


def test_what_kernels_cannot_read_is_refused() -> None:
    with pytest.raises(TrellisError, match="float64"):
        Call(rows_NR=torch.zeros(1, 1, dtype=torch.float64))
    with pytest.raises(TrellisError, match="int64"):
        Call(word_N=torch.zeros(1))
    with pytest.raises(TrellisError, match="on meta"):
        Call(rows_NR=torch.zeros(1, 1, device="meta"))
    for unknown in ({"columns": torch.zeros(1)}, {"columns": 3}):
        with pytest.raises(AttributeError):
            Call(**unknown)


def test_a_kernel_is_given_pointers_sizes_and_numbers() -> None:
    rows, words = torch.arange(6.0).view(2, 3).T, torch.zeros(3, dtype=torch.int64)
    given = Call(rows_NR=rows, word_N=words, start=None, scale=0.5)
    assert (given.N, given.R, given.threads, given.scale) == (3, 2, torch.get_num_threads(), 0.5)
    assert (given.word_N, given.start) == (words.data_ptr(), None)
    read = (ctypes.c_float * 6).from_address(given.rows_NR)  # contiguous, and kept alive
    assert list(read) == rows.flatten().tolist()
    made = given.empty("total_R")
    assert (made.shape, given.total_R) == ((2,), made.data_ptr())


@pytest.mark.parametrize("refuse", [library.check, Call])
def test_tensors_that_disagree_about_a_size_are_refused(refuse: Callable[..., object]) -> None:
    refuse(rows_NR=torch.zeros(2, 3), word_N=torch.zeros(2, dtype=torch.int64), total_R=None)
    with pytest.raises(TrellisError, match=r"word_N has shape \(3,\), not \(2,\)"):
        refuse(rows_NR=torch.zeros(2, 3), word_N=torch.zeros(3, dtype=torch.int64))
    for shape in ((2,), (2, 3, 1), ()):
        with pytest.raises(TrellisError, match="rows_NR has shape"):
            refuse(rows_NR=torch.zeros(shape))
    with pytest.raises(TrellisError, match=r"square_NN has shape \(2, 3\), not \(2, 2\)"):
        refuse(square_NN=torch.zeros(2, 3))


def test_a_size_that_is_given_must_be_that_of_the_tensors() -> None:
    with pytest.raises(TrellisError, match=r"rows_NR has shape \(2, 3\), not \(4, 3\)"):
        Call(rows_NR=torch.zeros(2, 3), N=4)


def test_the_library_lies_in_the_package() -> None:
    assert library.PATH.parent == Path(trellis.__file__).parent
    assert library.PATH.name == "_kernels.so"


def test_a_kernel_is_given_no_null_for_what_it_reads() -> None:
    asked = library.structure("rows_NR bias_N?", "N R threads")
    assert asked(rows_NR=torch.ones(2, 3), bias_N=None).rows_NR
    with pytest.raises(TrellisError, match="rows_NR cannot be NoneType: give a tensor"):
        asked(rows_NR=None, bias_N=torch.ones(2))
    with pytest.raises(TrellisError, match="pair_B cannot be NoneType"):
        push(torch.ones(1, 2, 2), None, torch.ones(1, 2))  # type: ignore[arg-type]
