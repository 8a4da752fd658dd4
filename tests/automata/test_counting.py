import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from trellis.automata import counting

from .languages import SYMBOLS, accepted, automata, language, sequences


@settings(max_examples=60)
@given(
    automata(4),
    st.lists(st.booleans(), min_size=SYMBOLS, max_size=SYMBOLS),
    st.integers(0, 3),
    st.one_of(st.none(), st.integers(0, 2)),
)
def test_beginnings_are_counted(seen, confirming, least, more):
    most = None if more is None else least + more
    expected = set()
    for word in sequences(5):
        ends = [end for end in range(len(word) + 1) if accepted(seen, word[:end])]
        count = sum(1 for end in ends if end == len(word) or confirming[word[end]])
        if count >= least and (most is None or count <= most):
            expected.add(word)
    assert language(counting(seen, np.array(confirming), least, most)) == expected
