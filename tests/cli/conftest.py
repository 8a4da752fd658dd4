"""A tiny model, trained once for all tests of the command line by the command itself."""

import pytest

from trellis import HMM, load_tokenizer
from trellis.cli import main

from .commands import LINES, TINY


@pytest.fixture(autouse=True)
def _wide_terminal(monkeypatch):
    monkeypatch.setenv("COLUMNS", "200")


@pytest.fixture(scope="session")
def place(tmp_path_factory):
    """A folder with texts."""
    folder = tmp_path_factory.mktemp("cli")
    (folder / "train.txt").write_text("".join(f"{line}\n" for line in LINES * 8))
    (folder / "valid.txt").write_text("".join(f"{line}\n" for line in LINES[::3]))
    (folder / "test.txt").write_text("the cat likes seeds\na dog heard a bone\n\none fish saw the milk\n")
    return folder


@pytest.fixture(scope="session")
def texts(place):
    return [
        f"data.{split}={place / name}.txt"
        for split, name in (("corpus", "train"), ("valid", "valid"), ("test", "test"))
    ]


@pytest.fixture(scope="session")
def run(place, texts):
    folder = place / "run"
    assert main(["train", *texts, *TINY, f"out={folder}"]) == 0
    return folder


@pytest.fixture(scope="session")
def model(run):
    return HMM.from_pretrained(run / "best")


@pytest.fixture(scope="session")
def tokenizer(run):
    return load_tokenizer(run / "best")
