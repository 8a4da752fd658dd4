"""The one place where processes meet: sums over all of them. Alone, a process is its own sum."""

from __future__ import annotations

import atexit
import os
import sys
import time
from collections.abc import Iterable
from datetime import timedelta
from typing import NamedTuple, NoReturn

import torch
import torch.distributed as dist
from torch import Tensor
from torch.distributed import PrefixStore  # type: ignore[attr-defined]  # documented all the same
from torch.distributed.rendezvous import rendezvous

from trellis.errors import TrellisError
from trellis.torchrun import end_with_torchrun
from trellis.training.wires import APART, FAILED, PATIENCE, TOGETHER, Wires, gather

AGREED = (0, 3)  # exit codes by which all processes end together
# Of sums, while the first process validates: a loss is noticed by the wires, not by waiting.
_AS_LONG_AS_IT_TAKES = timedelta(days=30)
_wires: Wires | None = None


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
            try:
                for tensor in tensors:
                    dist.all_reduce(tensor)
            except RuntimeError as error:
                _explain(error)

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

    def meet(self) -> None:
        """From now on, no process can do without the others: if one dies, all end."""
        if _wires is not None:
            _wires.tell(TOGETHER)

    def part(self) -> None:
        """Wait for all processes to come here; from now on, they may end as they like."""
        self.sum(0.0)
        if _wires is not None:
            _wires.tell(APART)


def world(device: torch.device) -> World:
    """This process's place among those that torchrun started; those on GPUs meet there."""
    if int(os.environ.get("WORLD_SIZE", "1")) == 1:
        return World()
    # Once for the life of the process: a group made where another was destroyed waits for ever.
    on_gpus = device.type == "cuda"
    if not dist.is_initialized():
        if on_gpus:
            torch.cuda.set_device(device)
        _join("nccl" if on_gpus else "gloo")
        atexit.register(_leave)
    return World(dist.get_rank(), dist.get_world_size(), device if on_gpus else torch.device("cpu"))


def _join(backend: str) -> None:
    """Gather with the other processes, and make one group of all; ends with torchrun from now on."""
    global _wires
    end_with_torchrun()
    where = f"{os.environ.get('MASTER_ADDR')}:{os.environ.get('MASTER_PORT')}"
    try:
        store, rank, size = next(rendezvous("env://", timeout=timedelta(seconds=PATIENCE)))
        name, wires = gather(store, rank, size)
    except RuntimeError as error:
        raise TrellisError(f"torchrun cannot be reached at {where}: see that it runs there.") from error
    _wires = Wires(rank, wires)
    try:
        dist.init_process_group(
            backend, store=PrefixStore(name, store), rank=rank, world_size=size, timeout=_AS_LONG_AS_IT_TAKES
        )
    except RuntimeError as error:
        _explain(error)


def _explain(error: RuntimeError) -> NoReturn:
    """Leave it to the wires to say who was lost; what else may be wrong between processes is said here."""
    time.sleep(5.0)
    reason = str(error).partition("\n")[0]
    raise TrellisError(f"the processes lost each other ({reason}): run the same command with --resume.") from error


def _leave() -> None:
    if dist.is_initialized():
        dist.destroy_process_group()


def leave(code: int) -> None:
    """End a process that torchrun started, without taking Python apart: one in twenty has been seen to abort there."""
    if "WORLD_SIZE" in os.environ:
        sys.stdout.flush()
        sys.stderr.flush()
        if _wires is not None:
            _wires.tell(APART if code in AGREED else FAILED)
        if code == 0 and _wires is not None and not _wires.finish():
            os._exit(2)
        if code in AGREED:
            _leave()
        os._exit(code)
