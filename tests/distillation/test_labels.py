"""What is said of labels: how evenly states are used."""

import numpy as np
import pytest

from trellis.distillation.labels import usage


def test_usage_counts_states_and_the_entropy_of_their_use():
    found = usage(np.array([0, 0, 1, 3, -1, -1], np.int32), 8)
    assert found["used_states"] == 3
    assert found["entropy_bits"] == pytest.approx(0.5 * 1 + 2 * 0.25 * 2)
    assert found["most_bits"] == 3


def test_one_state_alone_and_none_at_all():
    assert usage(np.array([2, 2], np.int32), 4)["entropy_bits"] == 0
    assert usage(np.array([-1], np.int32), 4) == {"used_states": 0, "entropy_bits": 0, "most_bits": 2}
