"""Batches made side by side, each on one thread, and given in the order of their numbers.

A step of a small language model is too short to be shared by threads: a batch for each is faster. One thread a batch
also means that its sums do not depend on how many threads there are.
"""

from __future__ import annotations

import itertools
import threading
from collections import deque
from collections.abc import Callable, Generator
from concurrent.futures import Future, ThreadPoolExecutor
from typing import TypeVar

import torch

from trellis.progress import Progress

Made = TypeVar("Made")


class _Enough(Exception):  # noqa: N818  # no error: it ends batches that nobody waits for any longer
    """Nobody wants this batch."""


def in_order(
    make: Callable[[int, Callable[[int], None]], Made], first: int, bar: Progress
) -> Generator[Made, None, None]:
    """Batches `first`, `first` + 1 … without end, as many at a time as PyTorch has threads.

    `make` takes a batch's number, and a function to tell of progress. Closing this ends what is under way.
    """
    threads, lock, enough = torch.get_num_threads(), threading.Lock(), threading.Event()

    def advance(amount: int) -> None:
        if enough.is_set():
            raise _Enough
        with lock:
            bar.advance(amount)

    with ThreadPoolExecutor(threads, initializer=lambda: torch.set_num_threads(1)) as pool:
        waiting: deque[Future[Made]] = deque()
        try:
            for number in itertools.count(first):
                waiting.append(pool.submit(make, number, advance))
                if len(waiting) == threads:
                    yield waiting.popleft().result()
        finally:
            enough.set()
            for batch in waiting:
                batch.cancel()
            torch.set_num_threads(threads)  # which a thread of the pool may have set for all
