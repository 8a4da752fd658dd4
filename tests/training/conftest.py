import os
import tempfile
from pathlib import Path

import pytest

from trellis.training import loop


@pytest.fixture
def tmp_path():
    """A folder in memory where there is one: these tests write hundreds of checkpoints, and each waits for the disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)


@pytest.fixture
def at_update(monkeypatch):
    """Do something when a certain update has just been noted in the diary."""
    write = loop.Metrics.write

    def install(wanted, action):
        def noted(self, update, **numbers):
            write(self, update, **numbers)
            if update == wanted and "loss" in numbers:
                action()

        monkeypatch.setattr(loop.Metrics, "write", noted)

    yield install
    monkeypatch.undo()
