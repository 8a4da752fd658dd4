import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import expression
from trellis.errors import InputError

LETTERS = "abcé日α€1 \n_😀-z"
ATOMS = [
    *[
        "a",
        "b",
        "é",
        "日",
        "😀",
        ".",
        "[a-c]",
        "[^a]",
        "[α-ω€]",
        "[^é-日\\d]",
        "[-a]",
        "[a-]",
        "[]a]",
        "[^]]",
        "[\\w-]",
    ],
    *[
        r"\d",
        r"\D",
        r"\w",
        r"\W",
        r"\s",
        r"\S",
        r"\n",
        r"\.",
        r"\x61",
        r"\u00e9",
        r"\U0001F600",
        "-",
        "a{",
        "{}",
        "a{x}",
    ],
]
QUANTIFIERS = ["*", "+", "?", "{2}", "{0}", "{1,2}", "{2,}", "{,2}", "*?", "+?", "??", "{1,2}?"]
PATTERNS = st.recursive(
    st.sampled_from(ATOMS),
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map("".join),
        st.lists(parts, min_size=2, max_size=3).map(lambda them: f"({'|'.join(them)})"),
        st.builds("(?:{}){}".format, parts, st.sampled_from(QUANTIFIERS)),
    ),
    max_leaves=6,
)


@settings(max_examples=200)
@given(PATTERNS, st.lists(st.text(st.sampled_from(LETTERS), max_size=6), min_size=20, max_size=20))
def test_expressions_match_what_python_matches(pattern, texts):
    automaton, python = expression(pattern), re.compile(pattern, re.ASCII)
    for text in ["", "a", "é", *texts]:
        assert automaton.accepts(text.encode()) == bool(python.fullmatch(text)), (pattern, text)


@given(PATTERNS)
def test_no_text_with_broken_bytes_is_matched(pattern):
    automaton = expression(pattern)
    for wrong in (b"\xc3", b"\xa9", b"a\xff", b"\xe6\x97"):
        assert not automaton.accepts(wrong)


def test_anchors_may_stand_at_the_ends():
    for pattern in ("^ab$", "^ab", "ab$", "ab"):
        assert expression(pattern).same_language(expression("(?:ab)"))


@pytest.mark.parametrize(
    ("pattern", "place", "reason"),
    [
        ("ab(c", 3, "never closed"),
        ("ab)c", 3, "closes nothing"),
        ("a[bc", 2, "never closed"),
        ("a[", 2, "never closed"),
        ("[]", 1, "never closed"),
        ("a**", 3, "in parentheses"),
        ("a{2}{3}", 7, "in parentheses"),
        ("a*+", 3, "possessive"),
        ("*a", 1, "nothing that this \\* could repeat"),
        ("a|+", 3, "nothing that this \\+ could repeat"),
        ("a{3,2}", 2, "smaller count comes first"),
        ("é(?=a)", 2, "Only groups"),
        ("(?P<n>a)", 1, "Only groups"),
        ("(?i)a", 1, "Only groups"),
        (r"(a)\1", 4, "not supported"),
        (r"a\b", 2, "not supported"),
        ("x^y", 2, "whole text"),
        ("x$y", 2, "whole text"),
        ("[z-a]", 2, "no range"),
        (r"[\d-z]", 2, "no range"),
        ("ab\\", 3, "Nothing follows"),
        (r"a\u12", 2, "4 hexadecimal digits"),
        (r"\U99999999", 1, "8 hexadecimal digits"),
        (r"\ud800", 1, "surrogate"),
        ("(" * 101 + ")" * 101, 101, "nested"),
    ],
)
def test_what_cannot_be_read_is_pointed_at(pattern, place, reason):
    with pytest.raises(InputError, match=reason) as refused:
        expression(pattern)
    message, shown, arrow = str(refused.value).split("\n")
    assert message.endswith(f"at character {place} of the expression:")
    assert (shown, arrow) == (f"  {pattern}", " " * (place + 1) + "^")


def test_sizes_are_bounded():
    with pytest.raises(InputError, match="1,000,000 single symbols"):
        expression("(a{1000}){1000}")
    with pytest.raises(InputError, match="use smaller counts"):
        expression("((((a{99}){99}){99}){99}){99}")
    assert expression("(?:[a-z]{3} ){100}").shortest() == 400
