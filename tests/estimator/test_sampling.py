import numpy as np
import pytest

from trellis.estimator.checking import Distributions
from trellis.estimator.sampling import sample

from .peers import both, tables


@pytest.mark.parametrize("currstate", [None, 2])
@pytest.mark.parametrize("states", [3, 40])
def test_a_seed_draws_what_it_draws_in_hmmlearn(states, currstate):
    mine, theirs = both(7, states, 5)
    for seed in range(5):
        drawn, wanted = (model.sample(200, random_state=seed, currstate=currstate) for model in (mine, theirs))
        for ours_, theirs_ in zip(drawn, wanted, strict=True):
            assert ours_.shape == theirs_.shape
            assert (ours_ == theirs_).all()


def test_one_sample_and_going_on_from_it():
    mine, theirs = both(7, 4, 5, random_state=3)
    one, theirs_one = mine.sample(), theirs.sample()
    assert one[0].shape == (1, 1)
    assert [part.tolist() for part in one] == [part.tolist() for part in theirs_one]
    _, states = mine.sample(10, currstate=one[1][-1])
    assert states[0] == one[1][-1]


class Highest:
    """The largest number a generator gives."""

    def random_sample(self, size):
        return np.full(size, 1.0 - 2.0**-53)


def test_what_is_impossible_is_never_drawn_whatever_rows_sum_to():
    start, transition, emission = tables(0, 3, 4)
    for table in (transition, emission):
        table[:, -1] = 0.0
        table /= table.sum(-1, keepdims=True) * (1 + 1e-9)  # a little less than one
    start[2] = 0.0
    symbols, states = sample(Distributions(start, transition, emission), 50, Highest())
    assert set(states) == {1}
    assert set(symbols) == {2}
