"""Installing where nothing can be compiled."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

USE = """
from pathlib import Path
import torch
from trellis import ops
from trellis.ops.steps import push
assert ops.library.PATH.parent == Path("installed/trellis").absolute(), ops.library.PATH
assert not ops.usable(torch.zeros(1))
print(push(torch.ones(1, 2, 3), torch.tensor([0]), torch.ones(1, 3)).tolist())
print(ops.status().level)
"""


def test_without_a_compiler_trellis_is_installed_and_works(tmp_path: Path) -> None:
    pytest.importorskip("setuptools", minversion="77")
    for name in ("setup.py", "pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, tmp_path / name)
    shutil.copytree(ROOT / "src", tmp_path / "src", ignore=shutil.ignore_patterns("*.so*", "*.egg-info", "__pycache__"))
    environment = os.environ | {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++", "PIP_NO_INDEX": "1"}
    pip = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", "--no-build-isolation"]
    subprocess.run([*pip, "--no-deps", "--target", "installed", "."], cwd=tmp_path, env=environment, check=True)
    assert not list((tmp_path / "installed").rglob("*.so"))
    used = subprocess.run(
        [sys.executable, "-c", USE], cwd=tmp_path, env=environment | {"PYTHONPATH": "installed"}, text=True,
        capture_output=True, check=False,
    )  # fmt: skip
    assert used.returncode == 0, used.stderr
    assert used.stderr.count("PyTorch does all the work: the native kernels were not built") == 1
    assert used.stdout.splitlines() == ["[[3.0, 3.0]]", "None"]
