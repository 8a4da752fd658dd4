import ctypes

import pytest

from trellis.training.memory import keep_freed_memory


@pytest.fixture
def asked(monkeypatch):
    """What the C library is asked, by a process that has not asked yet."""

    def install(library):
        keep_freed_memory.cache_clear()
        monkeypatch.setattr(ctypes, "CDLL", library)
        keep_freed_memory()

    yield install
    keep_freed_memory.cache_clear()


def test_the_c_library_is_asked_once(asked):
    calls = []

    class Library:
        def mallopt(self, *what):
            calls.append(what)

    asked(lambda name: Library())
    keep_freed_memory()
    assert calls == [(-3, 1 << 30), (-1, (1 << 31) - 1)]


def test_one_without_such_a_switch_is_left_alone(asked):
    def none(name):
        raise OSError

    asked(lambda name: object())
    asked(none)
