import itertools

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trellis.automata import Automaton, every, nothing, one_after_another
from trellis.errors import InputError

from .languages import SYMBOLS, language, sequences

FLAGS = st.lists(st.booleans(), min_size=SYMBOLS, max_size=SYMBOLS)


@given(FLAGS)
def test_every_sequence_of_what_is_allowed(allowed):
    expected = {word for word in sequences(5) if all(allowed[symbol] for symbol in word)}
    assert language(every(np.array(allowed))) == expected
    assert language(nothing(SYMBOLS)) == set()


@given(st.lists(FLAGS, max_size=4))
def test_one_after_another(sets):
    choices = [[symbol for symbol in range(SYMBOLS) if allowed[symbol]] for allowed in sets]
    made = one_after_another([np.array(allowed) for allowed in sets], SYMBOLS)
    assert language(made) == set(itertools.product(*choices))


@pytest.mark.parametrize(
    ("tables", "reason"),
    [
        (([[1]], [0], [True]), "none of 0 to 0"),
        (([[-1]], [0], [True]), "none of 0 to 0"),
        (([[0]], [1], [True]), "none of 0 to 0"),
        (([[0]], [0], [True, False]), "one flag a state"),
        (([[0]], [], [True]), "at least"),
        (([[]], [0], [True]), "at least"),
        (([0], [0], [True]), "at least"),
        (([[0]], [0], [True], 1), "from 0 to 0"),
        (([[0]], [0], [True], 0, 1), "from 0 to 0"),
    ],
)
def test_tables_that_do_not_fit_are_refused(tables, reason):
    with pytest.raises(InputError, match=reason):
        Automaton(*(np.array(table) if isinstance(table, list) else table for table in tables))
