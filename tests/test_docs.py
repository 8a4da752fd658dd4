"""The documents are true: their code blocks run, in order, in an empty folder."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent
PAGES = [ROOT / "README.md", *sorted((ROOT / "docs").glob("*.md"))]
BLOCK = re.compile(r"(?P<skip><!-- not run: [^\n]+ -->\n)?```(?P<language>sh|python)\n(?P<code>.*?)```", re.DOTALL)


def blocks(page: Path) -> list[tuple[str, str]]:
    found = BLOCK.finditer(page.read_text(encoding="utf-8"))
    return [(match["language"], match["code"]) for match in found if not match["skip"]]


def command(language: str, code: str) -> list[str]:
    return [sys.executable, "-c", code] if language == "python" else ["bash", "-euo", "pipefail", "-c", code]


@pytest.mark.parametrize("page", [page for page in PAGES if blocks(page)], ids=lambda page: page.name)
def test_every_block_of_a_page_runs(page, tmp_path):
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    environment = {**os.environ, "PATH": path, "OMP_NUM_THREADS": "1"}
    for language, code in blocks(page):
        run = subprocess.run(
            command(language, code), cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
        )
        assert run.returncode == 0, f"{code}\n{run.stdout}\n{run.stderr}"


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_link_to_a_file_leads_somewhere(page):
    for target in re.findall(r"\]\((?!https?:)([^)#]+)", page.read_text(encoding="utf-8")):
        assert (page.parent / target).exists(), f"{page.name} links to {target}"
