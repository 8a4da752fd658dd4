"""The one place where processes meet: sums over all of them. Alone, a process is its own sum."""

from __future__ import annotations

import atexit
import os
import sys
from collections.abc import Iterable
from typing import NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor


class World(NamedTuple):
    """Which process this is, of how many."""

    rank: int = 0
    size: int = 1
    device: torch.device = torch.device("cpu")  # where sums are taken

    @property
    def chief(self) -> bool:
        """Whether this process speaks and writes for all."""
        return self.rank == 0

    def sum_(self, tensors: Iterable[Tensor]) -> None:
        """Replace each tensor by its sum over all processes."""
        if self.size > 1:
            for tensor in tensors:
                dist.all_reduce(tensor)

    def sum(self, *numbers: float) -> tuple[float, ...]:
        """Each number summed over all processes."""
        total = torch.tensor(numbers, dtype=torch.float64, device=self.device)
        self.sum_([total])
        return tuple(total.cpu().tolist())

    def gather_rows(self, mine: Tensor, rows: int) -> Tensor:
        """All processes' contiguous shares of `rows` rows, put together in each of them."""
        whole = mine.new_zeros(rows, *mine.shape[1:])
        whole[self.share(rows)][: len(mine)] = mine
        self.sum_([whole])
        return whole

    def share(self, rows: int) -> slice:
        """The rows of a batch that fall to this process."""
        return slice(self.rank * rows // self.size, (self.rank + 1) * rows // self.size)


def world(device: torch.device) -> World:
    """This process's place among those that torchrun started; those on GPUs meet there."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    # Once for the life of the process: a group made where another was destroyed waits for ever.
    on_gpus = device.type == "cuda"
    if not dist.is_initialized():
        if on_gpus:
            torch.cuda.set_device(device)
        dist.init_process_group("nccl" if on_gpus else "gloo")
        atexit.register(_leave)
    return World(dist.get_rank(), dist.get_world_size(), device if on_gpus else torch.device("cpu"))


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(code: int) -> None:
    """End a process that torchrun started, without taking Python apart: one in twenty has been seen to abort there."""
    if "WORLD_SIZE" in os.environ:
        _leave()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
