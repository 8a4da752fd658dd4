import numpy as np
import pytest
from hypothesis import given, settings

from trellis.automata import combining, every, one_after_another
from trellis.errors import InputError

from .languages import SYMBOLS, automata


@settings(max_examples=50)
@given(automata(), automata())
def test_products_by_search_are_those_by_tables(one, other):
    by_table = one & other
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(combining, "_LARGEST_FLAGS", 0)
        by_search = one & other
    np.testing.assert_array_equal(by_table.next_QC, by_search.next_QC)
    np.testing.assert_array_equal(by_table.accepting_Q, by_search.accepting_Q)


def test_what_grows_out_of_hand_is_refused(monkeypatch):
    symbols = np.ones(SYMBOLS, bool)
    chain = one_after_another([symbols] * 30, SYMBOLS)
    monkeypatch.setattr(combining, "LARGEST_TABLE", 20)
    with pytest.raises(InputError, match="combine fewer or simpler"):
        chain & ~chain
    with pytest.raises(InputError, match="smaller counts or parts"):
        chain.repeat(5)
    assert every(symbols).repeat(2).same_language(every(symbols))
