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


ONE_PROGRAM = "<!-- one program -->"  # of a page whose blocks go on from one another


def blocks(page: Path) -> list[tuple[str, str]]:
    text = page.read_text(encoding="utf-8")
    found = [(match["language"], match["code"]) for match in BLOCK.finditer(text) if not match["skip"]]
    return [("python", "\n".join(code for _, code in found))] if ONE_PROGRAM in text else found


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


def section(page: Path, heading: str) -> str:
    """The first block of Python under a heading."""
    text = page.read_text(encoding="utf-8")
    assert f"\n## {heading}\n" in text, heading
    return next(match["code"] for match in BLOCK.finditer(text.partition(f"\n## {heading}\n")[2]))


@pytest.mark.parametrize(("heading", "lines"), [("From an array", 8), ("From a column of pandas", 5)])
def test_from_data_to_scores_states_and_samples_in_a_few_lines(heading, lines):
    code = section(ROOT / "README.md", heading)
    assert len([line for line in code.splitlines() if line.strip()]) <= lines
    assert {"fit", "score", "sample"} <= set(re.findall(r"\.(\w+)\(", code))


@pytest.mark.slow  # reads the prose of Python's own documentation
def test_the_first_model_of_the_readme_learns_far_more_than_a_unigram(tmp_path):
    code = section(ROOT / "README.md", "From Python") + "\nprint(trained.perplexity, trained.unigram)\n"
    run = subprocess.run([sys.executable, "-c", code], cwd=tmp_path, capture_output=True, text=True, check=True)
    perplexity, unigram = map(float, run.stdout.splitlines()[-1].split())
    assert perplexity < 0.6 * unigram
