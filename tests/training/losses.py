"""Workers that are killed at the worst moments: what the tests of lost workers start, once.

torchrun's own agent forks them out of a process that has imported everything, so that a restart takes no seconds. It
writes `begin CASE` and `end CASE CODE` around what the workers say; in the last case it is killed itself, by a worker.
"""

import os
import signal
import sys
import uuid
from collections.abc import Callable
from pathlib import Path

import torch
from runs import run, settings
from torch.distributed.elastic.multiprocessing import DefaultLogsSpecs
from torch.distributed.elastic.multiprocessing.errors import ChildFailedError
from torch.distributed.launcher.api import LaunchConfig, elastic_launch

from trellis import folders
from trellis.training import checkpoints, loop
from trellis.training.distributed import World
from trellis.training.wires import Wires

SETTINGS = {"batching": "streams", "batch_size": 5, "checkpoint_every": 4, "epochs": 2.0, "validations": 3.0}


def die(pid: int | None = None) -> None:
    os.kill(pid or os.getpid(), signal.SIGKILL)


def before(place: object, name: str, when: Callable[..., object]) -> None:
    """Die as a function is called, if something is true of its arguments."""
    function = getattr(place, name)

    def dying(*arguments, **named):
        if when(*arguments, **named):
            die()
        return function(*arguments, **named)

    setattr(place, name, dying)


def while_the_first_validates(rank: int) -> None:
    if rank == 1:
        before(loop._Run, "_validate", lambda *_: True)
    else:
        loop.evaluate = lambda *_, **__: signal.pause()  # for ever, but for a signal or a wire that ends all


# Who dies, and what has it die; in this order, one at each start.
MOMENTS: list[tuple[str, Callable[[int], None]]] = [
    ("before they gather", lambda rank: die() if rank == 1 else None),
    ("before all are told to go", lambda rank: before(Wires, "__init__", lambda *_: rank == 0)),
    ("in the first update", lambda rank: before(World, "sum", lambda self, *n: len(n) == 3 and rank == 1)),
    ("writing the first checkpoint", lambda rank: before(checkpoints, "write_tensors", lambda *_: True)),
    ("as the others wait for a sum", lambda rank: before(loop._Run, "_update", lambda run, *_: late(run, rank == 0))),
    ("writing the best model", lambda rank: before(folders, "_swap", lambda _, to: to.name == "best")),
    ("while the first validates", while_the_first_validates),
    ("after the last checkpoint", lambda rank: before(World, "part", lambda *_: rank == 1)),
    ("when the first has ended", lambda rank: before(sys.modules[__name__], "ended", lambda: rank == 1)),
]


def late(run: loop._Run, mine: bool) -> bool:
    return mine and run.place.update == 10


def ended() -> None:
    """What comes after a run."""


def worker(folder: str, moments: list[int], kill_agent: bool) -> None:
    torch.set_num_threads(1)
    rank, attempt = int(os.environ["RANK"]), int(os.environ["TORCHELASTIC_RESTART_COUNT"])
    print(f"worker {rank} {os.getpid()}", flush=True)
    if attempt < len(moments):
        MOMENTS[moments[attempt]][1](rank)
    if kill_agent and rank == 1:
        before(loop._Run, "_update", lambda run, *_: late(run, True) and die(os.getppid()))
    loop.print = lambda text, **_: os.write(1, f"{text}\n".encode())
    run(Path(folder), settings(**SETTINGS), quiet=False)
    ended()


def launch(case: str, folder: Path, restarts: int, moments: list[int], kill_agent: bool = False) -> None:
    config = LaunchConfig(
        min_nodes=1, max_nodes=1, nproc_per_node=2, run_id=str(uuid.uuid4()), rdzv_backend="c10d",
        rdzv_endpoint="localhost:0", max_restarts=restarts, start_method="fork", logs_specs=DefaultLogsSpecs(),
    )  # fmt: skip
    print(f"begin {case}", flush=True)
    code = 0
    try:
        elastic_launch(config, worker)(str(folder / case), moments, kill_agent)
    except ChildFailedError as error:
        code = error.get_first_failure()[1].exitcode
    print(f"end {case} {code}", flush=True)


if __name__ == "__main__":
    top = Path(sys.argv[1])
    launch("undisturbed", top, 0, [])
    launch("killed", top, len(MOMENTS), list(range(len(MOMENTS))))
    launch("no restarts", top, 0, [2])
    launch("agent", top, 3, [], kill_agent=True)
