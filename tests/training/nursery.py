"""Starts training runs quickly, to be killed: imports once, and forks a child for every line of JSON it reads.

It writes `pid N`, then what the child says (`update N` after each, and how it ended), then `gone CODE`.
"""

import json
import os
import sys
from pathlib import Path

import torch
from runs import run, settings

from trellis.training import Stopped, loop


def say(line: str) -> None:
    os.write(1, f"{line}\n".encode())  # at once, and whole


class Talking(loop.Metrics):
    def write(self, update: int, **numbers: float) -> None:
        super().write(update, **numbers)
        if "loss" in numbers:
            say(f"update {update}")


def child(folder: str, changes: dict) -> None:
    loop.Metrics = Talking
    try:
        run(Path(folder), settings(**changes), resume=True)
        say("finished")
    except Stopped as stopped:
        say(str(stopped))


if __name__ == "__main__":
    torch.set_num_threads(1)
    warm = torch.zeros(
        1, requires_grad=True
    )  # the first optimiser imports half of torch: better here than in each child
    warm.grad = torch.zeros(1)
    torch.optim.AdamW([warm], fused=True).step()
    for line in sys.stdin:
        pid = os.fork()
        if pid == 0:
            child(**json.loads(line))
            os._exit(0)
        say(f"pid {pid}")
        say(f"gone {os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])}")
