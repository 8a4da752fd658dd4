"""What torchrun starts in the tests of several processes: every case, one after the other, in each process."""

import faulthandler
import os
import signal
import sys
from pathlib import Path

import torch
from runs import SHARED, STOPPED, run, settings, shared_model

from trellis.training import Stopped, loop
from trellis.training.distributed import leave


def stop_after(update: int, rank: int) -> None:
    """Ask one process alone to stop, as a user's `kill` would."""
    learn = loop._Run._update

    def noticed(self, *arguments):
        if self.place.update == update and self.world.rank == rank:
            os.kill(os.getpid(), signal.SIGTERM)
        return learn(self, *arguments)

    loop._Run._update = noticed


if __name__ == "__main__":
    faulthandler.dump_traceback_later(90, exit=True)  # processes that wait for each other say where, and end
    torch.set_num_threads(1)
    folder = Path(sys.argv[1])
    for name, changes in SHARED.items():
        run(folder / name, settings(**changes), make=shared_model(name))
    stop_after(8, rank=1)
    for name in ("resumed", "left to one"):
        try:
            run(folder / name, settings(**STOPPED))
        except Stopped as stopped:
            print(f"{name}: {stopped}", flush=True)
    run(folder / "resumed", settings(**STOPPED), resume=True)
    leave(0)
