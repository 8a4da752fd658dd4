import io

import pytest

from trellis.progress import Progress, counted, roughly, short_number, short_time


class Clock:
    now = 0.0

    def __call__(self) -> float:
        return self.now


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def run(stream: io.StringIO, seconds: float, *, quiet: bool = False, total: int | None = 100) -> str:
    """Advance one in a half second, for so many seconds of a clock that does not tick by itself."""
    clock = Clock()
    with Progress("reading", total, unit="tok", quiet=quiet, stream=stream, clock=clock) as bar:
        for _ in range(int(seconds * 2)):
            clock.now += 0.5
            bar.advance(1, status="ppl [123.4]")
    return stream.getvalue()


@pytest.mark.parametrize("stream", [io.StringIO, Terminal])
def test_short_or_quiet_work_shows_nothing(stream):
    assert run(stream(), 1.5) == ""
    assert run(stream(), 30, quiet=True) == ""


def test_a_log_gets_a_line_every_ten_seconds():
    lines = run(io.StringIO(), 35).splitlines()
    assert lines[0] == "reading 20%  2 tok/s  40s left  ppl [123.4]"
    assert [line.split()[1] for line in lines] == ["20%", "40%", "60%"]


def test_without_a_total_it_says_how_long_so_far():
    assert run(io.StringIO(), 10, total=None) == "reading 20  2 tok/s  10s so far  ppl [123.4]\n"


def test_a_terminal_gets_a_bar_with_rate_time_left_and_status():
    shown = run(Terminal(), 5)
    for part in ("reading", "10%", "2 tok/s", "45s left", "ppl [123.4]"):
        assert part in shown


def test_a_resumed_run_shows_its_place_and_its_own_rate():
    clock = Clock()
    bar = Progress("training", 100, done=50, stream=io.StringIO(), clock=clock)
    clock.now = 10
    bar.advance(10)
    assert bar.summary() == "60%  1/s  40s left"


def test_a_status_stays_until_replaced():
    bar = Progress("x", stream=io.StringIO(), clock=Clock())
    bar.advance(1, status="first")
    bar.advance(1)
    assert bar.summary().endswith("first")
    bar.advance(1, status="")
    assert not bar.summary().endswith("first")


def test_it_writes_to_standard_error(capsys):
    clock = Clock()
    with Progress("x", 10, clock=clock) as bar:
        clock.now = 11
        bar.advance()
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("x 10%")


@pytest.mark.parametrize(
    ("number", "text"),
    [
        (0, "0"),
        (950, "950"),
        (999.7, "1.0k"),
        (1234, "1.2k"),
        (41_000, "41k"),
        (2.1e6, "2.1M"),
        (3e13, "30.0T"),
    ],
)
def test_numbers(number, text):
    assert short_number(number) == text


@pytest.mark.parametrize(("seconds", "text"), [(0.4, "0s"), (59.6, "1m00s"), (185, "3m05s"), (7800, "2h10m")])
def test_times(seconds, text):
    assert short_time(seconds) == text


def test_numbers_of_things():
    assert [counted(number, "line") for number in (0, 1, 2, 2000)] == ["0 lines", "1 line", "2 lines", "2,000 lines"]
    assert [roughly(number, "line") for number in (0, 1, 2, 2000)] == ["0 lines", "1 line", "2 lines", "2.0k lines"]
