import os
from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def data_dir() -> Path:
    folder = Path(os.environ.get("TRELLIS_DATA") or Path(__file__).parents[3] / "shared" / "data")
    if not (folder / "ptb").is_dir():
        pytest.skip("no data folder: set TRELLIS_DATA")
    return folder


@pytest.fixture(autouse=True)
def _one_thread(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TOKENIZERS_PARALLELISM", "false")
