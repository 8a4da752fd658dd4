"""Runs killed at any moment go on to the same weights, and leave nothing half-written in sight."""

import json
import os
import random
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from trellis.models import HMM
from trellis.training import checkpoints

from .runs import assert_same_run, run, settings, visible


class Nursery:
    """A process that starts runs for us, and us listening to them."""

    def __init__(self, process):
        self.process = process

    def start(self, folder, changes):
        self.process.stdin.write(json.dumps({"folder": str(folder), "changes": changes}) + "\n")
        self.process.stdin.flush()
        return int(self.until("pid")[-1].split()[1])

    def until(self, *beginnings):
        """Lines up to the first that begins like one of these."""
        lines = []
        while not lines or not lines[-1].startswith(beginnings):
            line = self.process.stdout.readline()
            assert line, f"the nursery died after {lines}"
            lines.append(line.strip())
        return lines


@pytest.fixture(scope="module")
def nursery():
    command = [sys.executable, str(Path(__file__).with_name("nursery.py"))]
    environment = os.environ | {"OMP_NUM_THREADS": "1"}
    with subprocess.Popen(
        command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment
    ) as process:
        yield Nursery(process)
        process.stdin.close()


def assert_whole(folder, keep):
    """Whatever can be seen in a run's folder can be read."""
    if not (folder / "run").exists():
        return
    found = checkpoints.found(folder / "run")
    assert len(found) <= keep + 1  # one more if killed before the oldest was deleted
    for checkpoint in found:
        place = json.loads((checkpoint / "place.json").read_text())
        checkpoints.load(checkpoint, place["run"])
        HMM.from_pretrained(checkpoint)
    others = set(visible(folder)) - {path.name for path in found}
    assert others <= {"best", "metrics.jsonl", "tensorboard"}
    if "best" in others:
        HMM.from_pretrained(folder / "run" / "best")


@pytest.mark.slow  # thirty kills in all
@pytest.mark.parametrize(
    "changes",
    [
        {"batching": "streams", "checkpoint_every": 1},
        {"batching": "windows", "checkpoint_every": 3, "schedule": "plateau", "patience": 0},
        {"batching": "streams", "method": "baum_welch", "checkpoint_every": 2, "accumulate": 2, "epochs": 32.0},
    ],
    ids=["streams", "windows", "baum_welch"],
)
def test_killed_ten_times_a_run_ends_with_the_same_weights(changes, nursery, tmp_path):
    changes = {"epochs": 16.0, "keep": 1} | changes
    run(tmp_path / "undisturbed", settings(**changes))
    rng, killed = random.Random(str(changes)), tmp_path / "killed"
    for _ in range(10):
        pid = nursery.start(killed, changes)
        for _ in range(rng.randint(1, 4)):
            nursery.until("update")
        time.sleep(rng.uniform(0.0, 0.02))
        os.kill(pid, signal.SIGKILL)
        assert nursery.until("gone")[-1] == f"gone {-signal.SIGKILL}"
        assert_whole(killed, keep=1)
    nursery.start(killed, changes)
    assert nursery.until("gone")[-2:] == ["finished", "gone 0"]
    assert_whole(killed, keep=1)
    assert [path.name for path in (killed / "run").iterdir() if path.name.startswith(".")] == [".run.lock"]
    assert_same_run(killed, tmp_path / "undisturbed")


@pytest.mark.slow
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_asked_to_stop_it_writes_a_checkpoint_and_says_so(number, nursery, tmp_path):
    changes = {"batching": "streams", "epochs": 4.0, "checkpoint_every": 1000}
    run(tmp_path / "undisturbed", settings(**changes))
    pid = nursery.start(tmp_path / "stopped", changes)
    nursery.until("update 7")
    os.kill(pid, number)
    *_, sentence, gone = nursery.until("gone")
    (checkpoint,) = checkpoints.found(tmp_path / "stopped" / "run")
    update = int(checkpoint.name.partition("-")[2])
    assert update >= 7
    assert sentence == f"stopped after update {update} of 28"
    assert gone == "gone 0"
    nursery.start(tmp_path / "stopped", changes)
    assert nursery.until("update")[-1] == f"update {update + 1}"
    nursery.until("gone 0")
    assert_same_run(tmp_path / "stopped", tmp_path / "undisturbed")
