import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.text import MemoryCorpus
from trellis.text.held_out import FEWEST, MOST, held_out

WORDS = st.text("abc ", min_size=1, max_size=400).map(str.strip).filter(bool)


def corpus(*documents):
    return MemoryCorpus("some", tuple(documents))


@given(st.lists(WORDS, min_size=1, max_size=60))
def test_both_parts_are_the_text_and_neither_is_empty(documents):
    kept, away = held_out(corpus(*documents))
    if away is None:
        assert sum(map(len, documents)) < FEWEST
        assert list(kept) == documents
        return
    first, second = list(kept), list(away)
    assert first
    assert second
    assert "".join("".join(first).split()) + "".join("".join(second).split()) == "".join("".join(documents).split())


def test_a_tenth_of_many_lines_is_held_out_and_no_line_is_cut():
    lines = [f"line {number} says little" for number in range(1000)]
    kept, away = held_out(corpus(*lines))
    assert [*kept, *away] == lines
    assert len(list(away)) == pytest.approx(100, abs=3)


def test_one_long_document_is_cut_between_two_words():
    words = [f"word{number}" for number in range(1000)]
    kept, away = held_out(corpus(" ".join(words)))
    (first,), (second,) = kept, away
    assert [*first.split(), *second.split()] == words
    assert len(second.split()) == pytest.approx(100, abs=3)


def test_a_document_that_holds_half_of_the_text_is_cut():
    last = " ".join(f"word{number}" for number in range(1000))
    kept, away = held_out(corpus("a b c", last))
    assert len(list(kept)) == 2
    assert len(list(away)) == 1


def test_of_a_long_text_no_more_is_held_out_than_measures_well():
    _, away = held_out(corpus(*["ten letter"] * (3 * MOST // 11 * 10 // 2)))
    assert sum(len(line) + 1 for line in away) == pytest.approx(MOST, rel=1e-3)


def test_parts_are_known_apart_and_from_the_whole():
    whole = corpus(*[f"line {number}" for number in range(500)])
    hashes = {whole.content_hash(), *(part.content_hash() for part in held_out(whole))}
    assert len(hashes) == 3
    assert held_out(whole)[0].content_hash() == held_out(whole)[0].content_hash()


def test_progress_is_that_of_the_corpus():
    whole = corpus(*[f"line {number}" for number in range(500)])
    seen = []
    list(held_out(whole)[1].read(seen.append))
    assert sum(seen) == 500 == held_out(whole)[1].size
