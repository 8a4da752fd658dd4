"""A run's diary: one JSON object a line, and the same numbers for TensorBoard."""

from __future__ import annotations

import json
from pathlib import Path

from torch.utils.tensorboard import SummaryWriter

from trellis.folders import write_atomically
from trellis.json_files import parse_json
from trellis.training.run_folder import BOARD, METRICS_FILE


class Metrics:
    """Appends to `metrics.jsonl`; on resuming, first forgets what came after the checkpoint."""

    def __init__(self, runs: Path, update: int) -> None:
        self.path = runs / METRICS_FILE
        self._forget_after(update)
        self.file = self.path.open("a", encoding="utf-8")
        self.board = SummaryWriter(str(runs / BOARD), purge_step=update + 1)

    def _forget_after(self, update: int) -> None:
        if not self.path.exists():
            return
        kept = [line for line in self.path.read_bytes().split(b"\n") if _update_of(line) <= update]
        write_atomically(self.path, b"".join(line + b"\n" for line in kept))

    def write(self, update: int, **numbers: float) -> None:
        """Note these numbers at this update."""
        self.file.write(json.dumps({"update": update, **numbers}) + "\n")
        self.file.flush()
        for name, number in numbers.items():
            self.board.add_scalar(name, number, update)

    def close(self) -> None:
        """Finish both files."""
        self.file.close()
        self.board.close()


def _update_of(line: bytes) -> float:
    """A line's update; a line cut short by a kill, or of bytes that are no text, comes after everything."""
    try:
        return float(parse_json(line, infinite=True)["update"])
    except (ValueError, KeyError, TypeError):
        return float("inf")
