"""Progress on anything that takes more than two seconds, with the time left."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TextIO

from rich.console import Console
from rich.progress import BarColumn, TextColumn
from rich.progress import Progress as RichProgress

_PATIENCE = 2.0  # seconds: shorter work than this is not worth a line on the screen
_PLAIN_EVERY = 10.0  # seconds between lines in a log file


def short_number(number: float) -> str:
    """Write a count in three figures or so (950, 41k, 2.1M), for lines people glance at."""
    for unit in ("", "k", "M", "G"):
        if abs(number) < 999.5:
            return f"{number:.1f}{unit}" if unit and abs(number) < 9.95 else f"{number:.0f}{unit}"
        number /= 1000
    return f"{number:.1f}T"


def short_time(seconds: float) -> str:
    """Write a duration as people say it (42s, 3m05s, 2h10m)."""
    whole = round(seconds)
    if whole < 60:
        return f"{whole}s"
    minutes, rest = divmod(whole, 60)
    return f"{minutes}m{rest:02d}s" if minutes < 60 else f"{minutes // 60}h{minutes % 60:02d}m"


def counted(number: int, noun: str) -> str:
    """Write a number of things (1 line, 2,000 lines)."""
    return f"{number:,} {noun}" if number == 1 else f"{number:,} {noun}s"


def roughly(number: int, noun: str) -> str:
    """Write a number of things in three figures or so (1 line, 41k lines)."""
    return f"{short_number(number)} {noun}" if number == 1 else f"{short_number(number)} {noun}s"


@contextmanager
def waiting(what: str, stream: TextIO | None = None) -> Iterator[None]:
    """Say on a terminal what is waited for, and take it back after; say nothing in a pipe or a log.

    For work that cannot say how far it is, and that prints nothing itself.
    """
    stream = stream if stream is not None else sys.stderr
    line = f"{what} …" if stream.isatty() else ""
    print(line, end="", file=stream, flush=True)
    try:
        yield
    finally:
        print(f"\r{' ' * len(line)}\r" if line else "", end="", file=stream, flush=True)


class Progress:
    """A bar on a terminal, a plain line now and then in a log, silence for short or `quiet` work.

    `done` is where the work starts, so that a resumed run shows its true place and an honest rate.
    """

    def __init__(
        self,
        label: str,
        total: int | None = None,
        *,
        unit: str = "",
        done: int = 0,
        quiet: bool = False,
        stream: TextIO | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.label, self.total, self.unit, self.done, self.quiet = label, total, unit, done, quiet
        self.status = ""
        self._clock, self._stream = clock, stream if stream is not None else sys.stderr
        self._first = done
        self._began = self._last_line = clock()
        self._bar: RichProgress | None = None

    def __enter__(self) -> Progress:
        self._began = self._last_line = self._clock()
        return self

    def __exit__(self, *_: object) -> None:
        if self._bar is not None:
            self._draw()
            self._bar.stop()

    def advance(self, amount: int = 1, status: str | None = None) -> None:
        """Count `amount` more done; `status` is free text shown beside the rate until replaced."""
        self.done += amount
        if status is not None:
            self.status = status
        now = self._clock()
        if self.quiet or now - self._began < _PATIENCE:
            return
        if self._stream.isatty():
            self._draw()
        elif now - self._last_line >= _PLAIN_EVERY:
            self._last_line = now
            print(f"{self.label} {self.summary()}", file=self._stream, flush=True)

    def summary(self) -> str:
        """Say how far, how fast and how long still, in one line."""
        elapsed = max(self._clock() - self._began, 1e-9)
        rate = (self.done - self._first) / elapsed
        place = f"{100 * self.done / self.total:.0f}%" if self.total else short_number(self.done)
        parts = [place, f"{short_number(rate)} {self.unit}".rstrip() + "/s"]
        if self.total is None:
            parts.append(f"{short_time(elapsed)} so far")
        elif rate > 0:
            parts.append(f"{short_time(max(self.total - self.done, 0) / rate)} left")
        return "  ".join([*parts, self.status]).rstrip()

    def _draw(self) -> None:
        if self._bar is None:
            label = TextColumn("{task.description}", markup=False)
            summary = TextColumn("{task.fields[summary]}", markup=False)
            self._bar = RichProgress(label, BarColumn(), summary, console=Console(file=self._stream), transient=True)
            self._bar.add_task(self.label, total=self.total, summary="")
            self._bar.start()
        self._bar.update(self._bar.task_ids[0], completed=self.done, summary=self.summary())
