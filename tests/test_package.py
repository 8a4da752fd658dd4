"""What people install: wheels for any Python, and an sdist with everything in it."""

import os
import re
import shutil
import subprocess
import sys
import tarfile
import tomllib
import zipfile
from pathlib import Path

import pytest
from packaging.requirements import Requirement

import trellis
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


@pytest.fixture(scope="module")
def plain(checkout, tmp_path_factory):
    """A wheel made without a compiler."""
    return built(checkout, tmp_path_factory.mktemp("plain"), compiler=False)


def test_a_wheel_made_without_a_compiler_is_for_every_machine(plain):
    assert plain.name.endswith("-py3-none-any.whl")
    with zipfile.ZipFile(plain) as files:
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
    known = {str(path.relative_to(checkout)) for path in checkout.rglob("*") if path.is_file()}
    ours = {name for name in known if not name.startswith((".ci/", ".gitignore", "build/")) and ".egg-info" not in name}
    assert ours - names == set()
    assert {"CHANGELOG.md", "tests/conftest.py", "examples/demo.py", "src/native/api.h", "Makefile"} <= names
    assert not [name for name in names if name.endswith((".so", ".pyc"))]


def test_the_version_stands_in_one_place(plain):
    with zipfile.ZipFile(plain) as files:
        (metadata,) = (name for name in files.namelist() if name.endswith(".dist-info/METADATA"))
        assert f"\nVersion: {trellis.__version__}\n" in files.read(metadata).decode()
    for name in ("pyproject.toml", "setup.py", "CITATION.cff"):
        assert f'"{trellis.__version__}"' not in (ROOT / name).read_text(encoding="utf-8"), name


def test_every_extra_is_named_by_what_it_gives():
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]["optional-dependencies"]
    assert set(extras) <= {"hub", "teachers", "sklearn", "faiss", "gguf", "plots", "evaluation", "bench", "dev"}
    sources = [path.read_text(encoding="utf-8") for path in (ROOT / "src").rglob("*.py")]
    named = {extra for source in sources for extra in re.findall(r"trellis-lm\[(\w+)\]", source)}
    assert named <= set(extras)


def test_pytorch_is_a_range_that_the_measured_release_lies_in():
    about = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    (wanted,) = (Requirement(one) for one in about["dependencies"] if re.match(r"torch\b", one))
    (measured,) = re.findall(r"^TORCH \?= torch==(\S+)$", (ROOT / "Makefile").read_text(encoding="utf-8"), re.MULTILINE)
    assert all(one in wanted.specifier for one in (measured, f"{measured}+cpu", "2.99.0"))
    assert not any(one in wanted.specifier for one in ("2.0.0", "3.0.0"))


def test_an_installed_trellis_does_what_it_must(tmp_path):
    command = [sys.executable, str(ROOT / "tests" / "smoke.py"), trellis.__version__]
    told = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr


def test_every_public_name_can_be_had_with_or_without_scikit_learn():
    assert "CategoricalHMM" in trellis.__all__
    code = "import sys; sys.modules['sklearn'] = None\nfrom trellis import *\nprint(*sorted(globals()))"
    told = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert told.returncode == 0, told.stderr
    assert {"HMM", "load_model", "train"} < set(told.stdout.split())
    assert "CategoricalHMM" not in told.stdout.split()
    assert set(trellis.__all__) == set(trellis._HOME)
