from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata.syntax import automaton_of
from trellis.automata.utf8 import BYTES, LAST, characters, complement, literal, normal

EDGES = [0, 0x7F, 0x80, 0x7FF, 0x800, 0xD7FF, 0xD800, 0xDFFF, 0xE000, 0xFFFF, 0x10000, 0x3FFFF, 0x40000, LAST]
POINTS = st.one_of(st.sampled_from(EDGES), st.integers(0, LAST))
RANGES = st.lists(st.tuples(POINTS, POINTS).map(sorted).map(tuple), max_size=4)


def is_character(point):
    return not 0xD800 <= point <= 0xDFFF


def probes(ranges):
    near = {limit + step for pair in ranges for limit in pair for step in (-1, 0, 1)}
    return [point for point in {*EDGES, *near} if 0 <= point <= LAST and is_character(point)]


@settings(max_examples=60)
@given(RANGES)
def test_a_character_is_read_by_its_bytes(ranges):
    automaton = automaton_of(characters(ranges), BYTES)
    for point in probes(ranges):
        spelt = chr(point).encode()
        inside = any(low <= point <= high for low, high in ranges)
        assert automaton.accepts(spelt) == inside
        assert not automaton.accepts(spelt[:-1])
        assert not automaton.accepts(spelt + b"a")


@settings(max_examples=60)
@given(RANGES)
def test_the_complement_is_all_other_characters(ranges):
    others = complement(ranges)
    for point in probes(ranges):
        assert any(low <= point <= high for low, high in others) != any(low <= point <= high for low, high in ranges)
    assert complement(others) == normal(ranges)


def test_bytes_that_are_no_utf8_are_no_character():
    anything = automaton_of(characters([(0, LAST)]), BYTES)
    for wrong in (b"\x80", b"\xc0\x80", b"\xc1\xbf", b"\xe0\x9f\xbf", b"\xed\xa0\x80", b"\xf4\x90\x80\x80", b"\xff"):
        assert not anything.accepts(wrong)
    assert all(anything.accepts(bytes([byte])) == (byte < 0x80) for byte in range(256))


@settings(max_examples=60)
@given(st.text(max_size=8))
def test_literals(text):
    spelt = text.encode("utf-8", errors="ignore")
    automaton = automaton_of(literal(spelt), BYTES)
    assert automaton.accepts(spelt)
    assert automaton.shortest() == len(spelt)
    assert not automaton.accepts(spelt + b"x")
