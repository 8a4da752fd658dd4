import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from trellis.automata import Automaton, tables
from trellis.automata.tables import breadth_first, distances, distinct_rows, heights

from .languages import automata, distinguishable, language


def plain_distinct(rows):
    """What `distinct_rows` says, by a dictionary."""
    numbers = {}
    kinds = [numbers.setdefault(tuple(row), len(numbers)) for row in rows.tolist()]
    return [kinds.index(kind) for kind in range(len(numbers))], kinds


@given(arrays(np.int64, st.tuples(st.integers(0, 12), st.integers(0, 3)), elements=st.integers(-2, 2)))
def test_distinct_rows_are_those_of_a_dictionary(table):
    first, kind = distinct_rows(table)
    assert (first.tolist(), kind.tolist()) == plain_distinct(table)


@given(st.lists(st.lists(st.integers(0, 63), min_size=1, max_size=2), min_size=1, max_size=60))
def test_sets_of_high_bits_are_told_apart(sets):
    table = np.array([[np.bitwise_or.reduce([np.uint64(1) << np.uint64(bit) for bit in bits])] for bits in sets])
    first, kind = distinct_rows(table)
    assert (first.tolist(), kind.tolist()) == plain_distinct(table)


def test_rows_that_share_a_hash_are_told_apart_by_the_next(monkeypatch):
    hashes = tables._hashes
    monkeypatch.setattr(
        tables, "_hashes", lambda table, seed: np.zeros(len(table), np.uint64) if seed < 3 else hashes(table, seed)
    )
    table = np.array([[1, 2], [2, 1], [1, 2]])
    first, kind = distinct_rows(table)
    assert (first.tolist(), kind.tolist()) == ([0, 1], [0, 1, 0])


@settings(max_examples=60)
@given(automata(6))
def test_a_walk_breadth_first_is_that_of_a_queue(automaton):
    order = [automaton.start]
    for state in order:
        order += dict.fromkeys(int(target) for target in automaton.next_QC[state] if target not in order)
    assert breadth_first(automaton.next_QC, automaton.start).tolist() == order


@settings(max_examples=40)
@given(automata(4))
def test_the_most_symbols_to_acceptance(automaton):
    next_QC = automaton.next_QC[:, np.unique(automaton.class_V)]
    alive_Q = distances(next_QC, automaton.accepting_Q) >= 0
    for state, height in enumerate(heights(next_QC, alive_Q)):
        # Who can take as many steps as there are states can go round in a circle, at most six steps later again.
        lengths = {len(word) for word in language(started(automaton, state), 6)}
        assert height == min(max(lengths, default=-1), automaton.states)


def started(automaton, state):
    return Automaton(automaton.next_QC, automaton.class_V, automaton.accepting_Q, state)


@settings(max_examples=60)
@given(automata(6))
def test_minimal_keeps_the_language_and_has_no_two_equivalent_states(automaton):
    minimal = automaton.minimal()
    assert language(minimal) == language(automaton)
    assert all(differ == (p != q) for (p, q), differ in distinguishable(minimal).items())
    assert sorted(breadth_first(minimal.next_QC, minimal.start)) == list(range(minimal.states))
    assert len({tuple(column) for column in minimal.next_QC.T}) == minimal.classes == len(set(minimal.class_V.tolist()))


@settings(max_examples=60)
@given(automata(6))
def test_minimal_has_a_state_for_every_difference_of_the_given_one(automaton):
    reached = breadth_first(automaton.next_QC[:, np.unique(automaton.class_V)], automaton.start).tolist()
    used = Automaton(automaton.next_QC[:, automaton.class_V], np.arange(automaton.symbols), automaton.accepting_Q)
    differ = distinguishable(used)
    kinds = {tuple(differ[state, other] for other in range(automaton.states)) for state in reached}
    assert automaton.minimal().states == len(kinds)


@settings(max_examples=60)
@given(automata(5), st.randoms(use_true_random=False), st.integers(0, 3))
def test_the_minimal_form_is_one_however_states_and_classes_are_named(automaton, random, more):
    """States renamed, doubled and left over, classes renamed: the same tables come out."""
    states, classes = automaton.next_QC.shape
    copies = [*range(states), *(random.randrange(states) for _ in range(more))]
    named = random.sample(range(len(copies)), len(copies))  # the new name of each copy
    next_QC, accepting_Q = np.zeros((len(copies), classes), int), np.zeros(len(copies), bool)
    for copy, state in enumerate(copies):
        accepting_Q[named[copy]] = automaton.accepting_Q[state]
        for number in range(classes):
            target = automaton.next_QC[state, number]
            equal = [other for other, its in enumerate(copies) if its == target]
            next_QC[named[copy], number] = named[random.choice(equal)]
    column = random.sample(range(classes), classes)
    place = np.argsort(column)
    other = Automaton(next_QC[:, column], place[automaton.class_V], accepting_Q, named[automaton.start])
    one, two = automaton.minimal(), other.minimal()
    for name in ("next_QC", "class_V", "accepting_Q"):
        np.testing.assert_array_equal(getattr(one, name), getattr(two, name))
    assert (one.start, two.start, one.end, two.end) == (0, 0, None, None)
    assert automaton.same_language(other)


@pytest.mark.parametrize("length", [1, 40])
def test_long_chains_stay_as_long_as_they_must(length):
    """Any number up to `length` of one symbol: no two counts are alike, though all accept."""
    states = np.arange(length + 2)
    next_QC = np.stack([np.minimum(states + 1, length + 1), np.full(length + 2, length + 1)], axis=1)
    assert Automaton(next_QC, np.array([0, 1]), states <= length).minimal().states == length + 2
