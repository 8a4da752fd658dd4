import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import every, nothing, one_after_another, syntax
from trellis.automata.syntax import Choice, One, Repeat, Row, automaton_of, size
from trellis.errors import InputError

from .languages import SYMBOLS

LEAVES = st.lists(st.booleans(), min_size=SYMBOLS, max_size=SYMBOLS).map(lambda flags: One(np.array(flags)))
TREES = st.recursive(
    LEAVES,
    lambda parts: st.one_of(
        st.lists(parts, max_size=3).map(lambda them: Row(tuple(them))),
        st.lists(parts, max_size=3).map(lambda them: Choice(tuple(them))),
        st.builds(Repeat, parts, st.integers(0, 2)),
        st.builds(
            lambda part, least, more: Repeat(part, least, least + more), parts, st.integers(0, 2), st.integers(0, 2)
        ),
    ),
    max_leaves=6,
)


def by_algebra(tree):
    """The language of a tree, one operation of automata at a time."""
    if isinstance(tree, One):
        return one_after_another([tree.allowed_V], SYMBOLS)
    if isinstance(tree, Repeat):
        return by_algebra(tree.part).repeat(tree.least, tree.most)
    whole = nothing(SYMBOLS) if isinstance(tree, Choice) else one_after_another([], SYMBOLS)
    for part in tree.parts:
        whole = whole | by_algebra(part) if isinstance(tree, Choice) else whole.then(by_algebra(part))
    return whole


@settings(max_examples=60)
@given(TREES)
def test_trees_are_what_the_algebra_says(tree):
    assert automaton_of(tree, SYMBOLS).same_language(by_algebra(tree))


def test_size_is_that_of_the_expression_written_out(monkeypatch):
    leaf = One(np.ones(SYMBOLS, bool))
    assert size(Row((leaf, Repeat(leaf, 2, 5), Choice((leaf, Repeat(leaf)))))) == 1 + 5 + 2
    monkeypatch.setattr(syntax, "MOST_POSITIONS", 99)
    assert automaton_of(Repeat(leaf), SYMBOLS).same_language(every(leaf.allowed_V))
    with pytest.raises(InputError, match="100 single symbols, of which 99 are the most"):
        automaton_of(Repeat(Repeat(leaf, 10), 10), SYMBOLS)
