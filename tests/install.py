"""Build the archives, install each in an environment of its own, and use it there: python tests/install.py PYTHON ...

Three of them: the sdist, a wheel with native kernels, and a wheel made where there is no compiler. `make package` calls
this; it takes minutes, because every environment gets its own PyTorch.
"""

import os
import re
import shlex
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).parent.parent
TORCH = shlex.split(os.environ.get("TORCH", "torch==2.13.0"))
PIP = ["-m", "pip", "--disable-pip-version-check"]
NO_COMPILER = {"CC": "/nonexistent/cc", "CXX": "/nonexistent/c++"}


def run(*command: object, folder: Path = ROOT, without: dict[str, str] | None = None) -> str:
    """What a command says; if it fails, that is the end."""
    environment = {**os.environ, **(without or {})}
    environment.pop("PYTHONPATH", None)
    told = subprocess.run(
        list(map(str, command)), cwd=folder, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT,
        text=True, check=False,
    )  # fmt: skip
    if told.returncode:
        raise SystemExit(f"{' '.join(map(str, command))}\n{told.stdout}")
    return told.stdout


def build(folder: Path) -> list[tuple[Path, dict[str, str]]]:
    """Every archive, and what must be missing where it is installed."""
    wheel = [sys.executable, *PIP, "wheel", "--quiet", "--no-deps", "--wheel-dir"]
    run(sys.executable, "setup.py", "--quiet", "sdist", "--dist-dir", folder)
    (sdist,) = folder.glob("*.tar.gz")
    run(*wheel, folder / "native", sdist)
    run(*wheel, folder / "plain", sdist, without=NO_COMPILER)
    (native,), (plain,) = (list((folder / name).glob("*.whl")) for name in ("native", "plain"))
    return [(native, {}), (plain, NO_COMPILER), (sdist, {}), (sdist, NO_COMPILER)]


def check(python: str, archive: Path, without: dict[str, str]) -> None:
    """Install an archive in a clean environment, and see that it works."""
    version = re.split(r"[-_]lm-|-py3|\.tar", archive.name)[1]
    with tempfile.TemporaryDirectory() as place:
        inside = Path(place) / "venv" / "bin" / "python"
        run(python, "-m", "venv", Path(place) / "venv")
        run(inside, *PIP, "install", "--quiet", *TORCH)
        run(inside, *PIP, "install", "--quiet", archive, without=without)
        said = run(inside, ROOT / "tests" / "smoke.py", version, folder=Path(place), without=without)
        print(f"{archive.name}{', no compiler' if without else ''}: {said}", end="", flush=True)


def main(pythons: list[str]) -> None:
    """Every archive with every Python."""
    with tempfile.TemporaryDirectory() as folder:
        archives = build(Path(folder))
        for python in pythons:
            for archive, without in archives:
                check(python, archive, without)


if __name__ == "__main__":
    main(sys.argv[1:] or [sys.executable])
