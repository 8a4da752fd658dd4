"""Results say which code made them, and code that nobody can find again makes none."""

import os
import subprocess

import pytest

from experiments.record import _milliseconds, commit_of
from trellis import TrellisError


@pytest.fixture
def checkout(tmp_path):
    """A repository with code in it."""
    folder = tmp_path / "code"
    (folder / "src").mkdir(parents=True)
    (folder / "src" / "file").write_text("first\n")
    git(folder, "init", "--quiet")
    commit(folder)
    return folder


def git(folder, *arguments):
    who = ["-c", "user.name=a", "-c", "user.email=a@b", "-c", "commit.gpgsign=false"]
    return subprocess.run(
        ["git", "-C", folder, *who, *arguments], check=True, capture_output=True, text=True
    ).stdout.strip()


def commit(folder):
    git(folder, "add", "src")
    git(folder, "commit", "--quiet", "--message", "a change")


def test_the_commit_of_the_code_is_found(checkout):
    (checkout / "notes").write_text("of no importance\n")
    assert commit_of(checkout) == git(checkout, "log", "-1", "--format=%h")


def test_code_that_is_not_committed_is_refused(checkout):
    (checkout / "src" / "file").write_text("second\n")
    with pytest.raises(TrellisError, match="differs from the last commit"):
        commit_of(checkout)


def test_code_that_changed_after_the_run_began_is_refused(checkout, tmp_path):
    (tmp_path / "config.yaml").write_text("")
    when = int(git(checkout, "log", "-1", "--format=%ct"))
    os.utime(tmp_path / "config.yaml", (when + 5, when + 5))
    assert commit_of(checkout, tmp_path)
    os.utime(tmp_path / "config.yaml", (when - 5, when - 5))
    with pytest.raises(TrellisError, match="changed the code: train it again"):
        commit_of(checkout, tmp_path)


def test_a_folder_that_holds_no_run_is_refused(checkout, tmp_path):
    with pytest.raises(TrellisError, match="nowhere is no run"):
        commit_of(checkout, tmp_path / "nowhere")


def test_a_folder_without_git_is_refused(tmp_path, monkeypatch):
    monkeypatch.setenv("GIT_CEILING_DIRECTORIES", str(tmp_path.parent))
    with pytest.raises(TrellisError, match="no checkout"):
        commit_of(tmp_path)


def test_the_time_of_an_update_is_the_median(tmp_path):
    path = tmp_path / "metrics.jsonl"
    # 100 tokens an update at 1000, 500 and 10 a second: 100, 200 and 10,000 ms.
    path.write_text(
        '{"update": 1, "tokens": 100, "tokens_per_second": 1000}\n{"update": 1, "valid_perplexity": 3}\n'
        '{"update": 2, "tokens": 200, "tokens_per_second": 500}\n'
        '{"update": 3, "tokens": 300, "tokens_per_second": 10}\n'
    )
    assert _milliseconds(path) == 200
    path.write_text('{"update": 0, "valid_perplexity": 3}\n')
    assert _milliseconds(path) is None
