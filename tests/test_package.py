"""What people install: wheels for any Python, and an sdist with everything in it."""

import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from pathlib import Path

import pytest

from trellis import configs

ROOT = Path(__file__).parent.parent
COMPILER = next((name for name in ("c++", "g++", "clang++") if shutil.which(name)), None)


@pytest.fixture(scope="module")
def checkout(tmp_path_factory):
    """The files that git knows of, without anything that was built."""
    folder = tmp_path_factory.mktemp("checkout") / "trellis"
    told = subprocess.run(["git", "-C", str(ROOT), "ls-files", "-z"], capture_output=True, text=True, check=False)
    if told.returncode:
        pytest.skip("these tests are no checkout of git, so what belongs to the package is not known")
    for name in filter(None, told.stdout.split("\0")):
        if (ROOT / name).is_file():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, folder / name)
    return folder


def built(checkout, folder, *, compiler):
    """The one wheel that pip makes of a checkout, with a compiler or without."""
    pytest.importorskip("setuptools", minversion="77")
    without = {} if compiler else {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}
    pip = [sys.executable, "-m", "pip", "wheel", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    environment = {**os.environ, "PIP_NO_INDEX": "1", **without}
    subprocess.run([*pip, "--no-deps", "-w", str(folder), "."], cwd=checkout, env=environment, check=True)
    (wheel,) = folder.glob("*.whl")
    return wheel


def test_a_wheel_made_without_a_compiler_is_for_every_machine(checkout, tmp_path):
    wheel = built(checkout, tmp_path, compiler=False)
    assert wheel.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(wheel) as files:
        assert not [name for name in files.namelist() if name.endswith(".so")]
        assert "trellis/py.typed" in files.namelist()
        assert {f"trellis/configs/{name}.yaml" for name in configs.names()} < set(files.namelist())


@pytest.mark.slow
@pytest.mark.skipif(COMPILER is None, reason="there is no C++ compiler")
def test_a_wheel_with_the_library_is_for_every_python_of_its_platform(checkout, tmp_path):
    wheel = built(checkout, tmp_path, compiler=True)
    assert "-py3-none-" in wheel.name
    assert "any" not in wheel.name
    with zipfile.ZipFile(wheel) as files:
        files.extractall(tmp_path / "installed")
    code = "import trellis.ops as ops; print(ops.library.PATH, ops.status().level is not None)"
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "installed")}
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, env=environment, check=True)
    assert told.stdout.split() == [str(tmp_path / "installed" / "trellis" / "_kernels.so"), "True"]


def test_the_sdist_has_all_that_its_tests_and_documents_need(checkout, tmp_path):
    command = [sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", str(tmp_path)]
    subprocess.run(command, cwd=checkout, check=True, capture_output=True)
    (sdist,) = tmp_path.glob("*.tar.gz")
    with tarfile.open(sdist) as files:
        names = {name.partition("/")[2] for name in files.getnames()}
    wanted = {
        str(path.relative_to(checkout))
        for folder in ("src", "docs", "examples", "tests", "bench", "experiments")
        for path in (checkout / folder).rglob("*")
        if path.is_file() and ".egg-info" not in str(path)
    }
    assert wanted - names == set()
    assert {"CHANGELOG.md", "README.md", "Makefile", "pyproject.toml", "setup.py"} <= names
