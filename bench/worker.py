"""A contender in a process of its own: thread pools do not fight, and memory peaks do not mix."""

from __future__ import annotations

import os
import resource
import sys
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from types import TracebackType
from typing import Any, Literal, NamedTuple

from bench.contenders import THREADS, Contender, Entry, Task
from bench.quiet import DISTURBED, busy_seconds, share

Pass = Literal["evaluate", "step"]
PASSES: tuple[Pass, ...] = ("evaluate", "step")  # timed; other questions are answered as they come
_STATUS, _CLEAR = Path("/proc/self/status"), Path("/proc/self/clear_refs")


class Sample(NamedTuple):
    """One timed call."""

    seconds: float  # wall time
    peak_bytes: int  # of resident memory above the libraries'
    others: float  # share of the machine's cores that other processes took meanwhile
    value: float | None  # what the call returned

    @property
    def disturbed(self) -> bool:
        """Whether the call had to share its cores; OpenMP's barriers then cost many times the work."""
        return self.others > DISTURBED


class ContenderError(Exception):
    """A contender could not do what it was asked; the message is the reason its results show."""


def _peak_bytes() -> int:
    """The most memory this process has held resident since `_forget_peak`, or ever where that is unknown."""
    if _STATUS.exists():
        line = next(line for line in _STATUS.read_text().splitlines() if line.startswith("VmHWM"))
        return 1024 * int(line.split()[1])
    return 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss


def _forget_peak() -> None:
    if _CLEAR.exists():
        _CLEAR.write_text("5")  # the kernel's number for "set the high-water mark to what is resident now"


def _timed(contender: Contender, wanted: Pass, libraries: int) -> Sample:
    _forget_peak()
    busy, own, began = busy_seconds(), time.process_time(), time.perf_counter()
    value = getattr(contender, wanted)()
    seconds = time.perf_counter() - began
    others = (busy_seconds() - busy) - (time.process_time() - own)
    return Sample(seconds, _peak_bytes() - libraries, share(others, seconds), value)


def _serve(connection: Connection, entry: Entry, task: Task) -> None:
    """The child: import, build, then answer calls until told None."""
    if entry.sources:
        sys.path.insert(0, entry.sources)  # PYTHONPATH would not do: a spawned process has its parent's path
    try:
        entry.build(task.toy()).step()  # libraries import much of themselves only when first used
        _forget_peak()
        libraries = _peak_bytes()
        contender = entry.build(task)
        connection.send(None)
        while (wanted := connection.recv()) is not None:
            timed = wanted in PASSES
            connection.send(_timed(contender, wanted, libraries) if timed else getattr(contender, wanted)())
    except Exception as error:  # whatever a peer raises becomes its result
        connection.send(ContenderError(f"{type(error).__name__}: {error}".splitlines()[0][:200]))


@contextmanager
def _environment(extra: Mapping[str, str]) -> Iterator[None]:
    """Variables that must be there before the child's libraries load, malloc included."""
    threads = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS"), str(THREADS))
    wanted = {**threads, "JAX_PLATFORMS": "cpu", "KINETO_LOG_LEVEL": "99", **extra}  # the profiler is not to chat
    before = dict(os.environ)
    os.environ.update(wanted)
    try:
        yield
    finally:
        os.environ.clear()
        os.environ.update(before)


class Worker:
    """The parent's hold on a contender's process."""

    def __init__(self, entry: Entry, task: Task, limit: float) -> None:
        self.entry, self.limit = entry, limit
        context = get_context("spawn")
        self._connection, theirs = context.Pipe()
        self._process = context.Process(target=_serve, args=(theirs, entry, task), daemon=True)
        with _environment(entry.environment):
            self._process.start()
        theirs.close()

    def __enter__(self) -> Worker:
        try:
            self._receive()  # ready, or the reason why not
        except ContenderError:
            self.close()
            raise
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def call(self, wanted: Pass) -> Sample:
        """Time one call in the child."""
        self._connection.send(wanted)
        answer = self._receive()
        if not isinstance(answer, Sample):
            raise ContenderError(f"answered {answer!r}")
        return answer

    def ask(self, question: str) -> dict[str, Any]:
        """What the contender says of itself: the answer of this method, untimed."""
        self._connection.send(question)
        answer = self._receive()
        if not isinstance(answer, dict):
            raise ContenderError(f"answered {answer!r}")
        return answer

    def _receive(self) -> object:
        if not self._connection.poll(self.limit):
            raise ContenderError(f"over {self.limit:.0f} s")
        try:
            answer: object = self._connection.recv()
        except EOFError as error:  # killed, most likely for want of memory
            self._process.join()
            raise ContenderError(f"process ended with code {self._process.exitcode}") from error
        if isinstance(answer, ContenderError):
            raise answer
        return answer

    def close(self) -> None:
        """End the child, politely if it listens."""
        if self._process.is_alive():
            self._process.terminate()
        self._process.join()
        self._connection.close()
