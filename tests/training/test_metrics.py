import json
import time

import pytest
from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

from trellis.training.metrics import Metrics


def noted(folder):
    return [json.loads(line) for line in (folder / "metrics.jsonl").read_text().splitlines()]


def note(folder, since, updates):
    metrics = Metrics(folder, since)
    for update in updates:
        metrics.write(update, loss=update / 8, tokens=10 * update)
    metrics.close()


def test_a_line_an_update_and_the_same_for_tensorboard(tmp_path):
    note(tmp_path, 0, [1, 2, 3])
    assert noted(tmp_path) == [{"update": n, "loss": n / 8, "tokens": 10 * n} for n in (1, 2, 3)]
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [(event.step, event.value) for event in board.Scalars("loss")] == [(1, 0.125), (2, 0.25), (3, 0.375)]


def test_lines_are_there_as_soon_as_they_are_written(tmp_path):
    metrics = Metrics(tmp_path, 0)
    metrics.write(1, loss=2.0)
    assert noted(tmp_path) == [{"update": 1, "loss": 2.0}]
    metrics.close()


DEEP = "[" * 100_000 + "\n"


@pytest.mark.parametrize(
    "tail", ["", '{"update": 5, "lo', "garbage\n", "[1]\n", '{"loss": 1}\n', "\udcff\n", DEEP],
    ids=["nothing", "cut", "garbage", "a list", "no update", "no text", "deep"],
)  # fmt: skip
def test_resuming_forgets_what_came_after_the_checkpoint(tail, tmp_path):
    note(tmp_path, 0, [1, 2, 3, 4])
    with (tmp_path / "metrics.jsonl").open("a", encoding="utf-8", errors="surrogateescape") as file:
        file.write(tail)
    note(tmp_path, 2, [3])
    assert [line["update"] for line in noted(tmp_path)] == [1, 2, 3]
    assert sorted(path.name for path in tmp_path.iterdir()) == ["metrics.jsonl", "tensorboard"]


def test_tensorboard_forgets_as_well(tmp_path):
    note(tmp_path, 0, [1, 2, 3, 4])
    time.sleep(1.1)  # its files are ordered by the second they were begun in
    note(tmp_path, 2, [3])
    board = EventAccumulator(str(tmp_path / "tensorboard")).Reload()
    assert [event.step for event in board.Scalars("loss")] == [1, 2, 3]
