import os
import tempfile
from pathlib import Path

import pytest


@pytest.fixture
def tmp_path():
    """A folder in memory where there is one: these tests write hundreds of checkpoints, and each waits for the disk."""
    memory = "/dev/shm" if os.access("/dev/shm", os.W_OK) else None
    with tempfile.TemporaryDirectory(dir=memory) as folder:
        yield Path(folder)
