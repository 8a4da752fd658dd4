import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.constraints import (
    contains,
    contains_any,
    contains_tokens,
    ends_with,
    length,
    matches,
    matches_words,
    parse,
    starts_with,
    times,
    tokens,
    without,
)
from trellis.errors import InputError

PHRASES = st.text(st.characters(exclude_categories=["Cs"]), max_size=6).filter(lambda text: text.split())
LEAVES = st.one_of(
    st.lists(PHRASES, min_size=1, max_size=3).map(lambda them: contains(*them)),
    PHRASES.map(without),
    PHRASES.map(starts_with),
    PHRASES.map(ends_with),
    st.sampled_from([matches(r"\d+'\\"), matches("a,(b)"), matches_words("the (big|small)* dog"), matches("")]),
    st.builds(times, PHRASES, st.integers(0, 3), st.one_of(st.none(), st.integers(3, 5))),
    st.sampled_from([length(2), length(1, None), length(1, 4), tokens([3, 5]), tokens([]), contains_tokens([0])]),
)
TREES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.builds(lambda one, other: one & other, parts, parts),
        st.builds(lambda one, other: one | other, parts, parts),
        st.builds(lambda one: ~one, parts),
        st.builds(lambda one, other: one.then(other), parts, parts),
    ),
    max_leaves=5,
)


@given(TREES)
def test_what_is_written_is_read_again(constraint):
    assert parse(str(constraint)) == constraint


@pytest.mark.parametrize(
    ("text", "constraint"),
    [
        ("contains(dragon)", contains("dragon")),
        (" contains( old castle , dragon ) ", contains("old castle", "dragon")),
        ("contains('a, b') & length(5, 12)", contains("a, b") & length(5, 12)),
        ("contains(a) and not contains(b) or length(3)", (contains("a") & ~contains("b")) | length(3)),
        ("~(contains(a) | contains(b))", ~(contains("a") | contains("b"))),
        (
            "contains_any(a, b).then(without(c)).then(length(2))",
            contains_any("a", "b").then(without("c")).then(length(2)),
        ),
        ("(contains(a) & length(2)).then(contains(b))", (contains("a") & length(2)).then(contains("b"))),
        ("times(dog, 2)", times("dog", 2)),
        ("times(dog, 2, any)", times("dog", 2, None)),
        ("tokens(3, 5) | contains_tokens([3, 5])", tokens([3, 5]) | contains_tokens([3, 5])),
        (r"matches('\d+ \'x\'')", matches(r"\d+ 'x'")),
        (r"matches(\d+)", matches(r"\d+")),
        ("contains(and)", contains("and")),
    ],
)
def test_the_grammar(text, constraint):
    assert parse(text) == constraint


@pytest.mark.parametrize(
    ("text", "place", "reason"),
    [
        ("", 1, "Name a constraint"),
        ("contains(a) &", 14, "Name a constraint"),
        ("contains(a) contains(b)", 13, "between two constraints"),
        ("contain(a)", 1, "did you mean 'contains'"),
        ("contains", 9, "between the parentheses"),
        ("contains(a", 11, "comma between"),
        ("contains('a", 10, "value is missing"),
        ("contains(a,)", 12, "value is missing"),
        ("(contains(a)", 13, r"A \) is missing"),
        ("contains(a))", 12, "between two constraints"),
        ("contains(a).next(b)", 17, r"Only \.then"),
        ("~" * 101 + "contains(a)", 101, "nested"),
    ],
)
def test_what_is_wrong_is_pointed_at(text, place, reason):
    with pytest.raises(InputError, match=reason) as refused:
        parse(text)
    message, _, arrow = str(refused.value).split("\n")
    assert message.endswith(f"at character {place}:")
    assert arrow == " " * (place + 1) + "^"


@pytest.mark.parametrize(
    ("text", "reason"),
    [
        ("length(5) & length(9, 2)", r"^In length\( \) at character 13: .* smaller number first\.$"),
        ("contains()", "name one at least"),
        ("contains('')", "is no phrase"),
        ("length(two)", "'two' is no whole number"),
        ("length(1, 2, 3)", "one number or two"),
        ("length()", "one number or two"),
        ("times(2)", "a phrase and then one number or two"),
        ("times()", "a phrase and then one number or two"),
        ("tokens(a)", "no whole number"),
        ("starts_with(a, b)", "one value, not 2"),
        ("matches('a(')", r"never closed"),
        ("length(99999999999999)", "no whole number"),
    ],
)
def test_values_that_do_not_fit(text, reason):
    with pytest.raises(InputError, match=reason):
        parse(text)
