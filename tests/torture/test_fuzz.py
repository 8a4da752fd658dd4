"""The targets of the fuzzer, with inputs of hypothesis: seeds with pieces cut out, put in, doubled; and any bytes."""

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from torture.fuzz.__main__ import try_input
from torture.fuzz.targets import TARGETS, Target, clean, run

PIECES = st.sampled_from(
    [b"", b"\0", b"\xff", b"\n", b"\t", b'"', b"[", b"{", b"}", b"null", b"-1", b"1e400", b"9" * 30, b"NaN", b"true",
     b"(", b")", b"{1,999999}", b"\\", b"*", b"&a", b"*a", b"!!float x", b"\xc3\xa9", b"\xed\xa0\x80", b": ", b"=",
     b"'", b"[" * 3000]
)  # fmt: skip


@pytest.fixture(autouse=True, scope="module")
def _tidy():
    yield
    clean()


def changed(seeds: tuple[bytes, ...]) -> st.SearchStrategy[bytes]:
    """A seed, some stretches of which are replaced."""

    def splice(seed: bytes, cuts: list[tuple[float, int, bytes]]) -> bytes:
        for share, length, piece in cuts:
            at = round(share * len(seed))
            seed = seed[:at] + piece + seed[at + length :]
        return seed

    cut = st.tuples(st.floats(0, 1, allow_subnormal=False), st.integers(0, 8), PIECES | st.binary(max_size=6))
    return st.builds(splice, st.sampled_from(seeds), st.lists(cut, min_size=1, max_size=3))


@pytest.mark.parametrize("name", TARGETS)
def test_anything_is_read_or_refused_in_a_sentence(name):
    @settings(derandomize=True, max_examples=40, deadline=None, database=None, suppress_health_check=[*HealthCheck])
    @given(changed(TARGETS[name].seeds()) | st.binary(max_size=80))
    def check(data):
        run(name, data)

    check()


@pytest.mark.parametrize("name", TARGETS)
def test_a_target_reads_a_seed_well(name):
    TARGETS[name].read(TARGETS[name].seeds()[-1])


def test_a_finding_is_kept_once_for_each_place(tmp_path, monkeypatch):
    monkeypatch.setitem(TARGETS, "bad", Target(lambda data: {}[data], (b"",)))
    for data in (b"1", b"2"):
        try_input("bad", data, tmp_path)
    assert sorted(path.suffix for path in tmp_path.iterdir()) == [".input", ".txt"]
    assert "KeyError" in next(tmp_path.glob("*.txt")).read_text()
