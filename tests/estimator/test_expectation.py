import itertools

import numpy as np
import pytest
import torch

from trellis.errors import InputError
from trellis.estimator import ConvergenceMonitor
from trellis.estimator.checking import Distributions
from trellis.estimator.expectation import Data, Numbers, expected, maximised
from trellis.estimator.windows import Sequences

from .peers import tables

SYMBOLS, LABELS, LENGTHS = np.array([0, 2, 1, 1, 0, 2]), np.array([-1, 1, -1, -1, 0, -1]), [4, 2]


def data_of(symbols, lengths, states, labels=None):
    return Data(symbols, Sequences(symbols, np.array(lengths), states), labels)


def enumerated(start, transition, emission, all_labels):
    """Expected counts and log-likelihood by all paths that agree with the labels."""
    counts, log_prob, at = [np.zeros_like(table) for table in (start, transition, emission)], 0.0, 0
    for length in LENGTHS:
        symbols, labels = SYMBOLS[at : at + length], all_labels[at : at + length]
        paths = [
            path
            for path in itertools.product(range(len(start)), repeat=length)
            if all(label in (-1, state) for label, state in zip(labels, path, strict=True))
        ]
        weights = [
            start[path[0]]
            * np.prod([transition[pair] for pair in itertools.pairwise(path)])
            * np.prod(emission[list(path), symbols])
            for path in paths
        ]
        for path, weight in zip(paths, np.array(weights) / sum(weights), strict=True):
            counts[0][path[0]] += weight
            for pair in itertools.pairwise(path):
                counts[1][pair] += weight
            np.add.at(counts[2], (list(path), symbols), weight)
        log_prob, at = log_prob + np.log(sum(weights)), at + length
    return counts, log_prob


@pytest.mark.parametrize("labels", [None, LABELS])
def test_counts_are_those_of_all_paths_that_agree_with_the_states_given(labels):
    three = Distributions(*tables(0, 3, 3))
    found = expected(three, data_of(SYMBOLS, LENGTHS, 3, labels), torch.float64)
    counts, log_prob = enumerated(*three, np.full(6, -1) if labels is None else labels)
    assert found.log_prob == pytest.approx(log_prob)
    for ours, theirs in zip(found.counts, counts, strict=True):
        np.testing.assert_allclose(ours, theirs, atol=1e-12)


def test_a_sequence_that_float64_cannot_hold_is_counted_in_log_space():
    """Each state emits its own symbol, and a change of state is less probable than a scale may be."""
    tiny = 1e-300
    three = Distributions(np.array([1.0, 0.0]), np.array([[1.0, tiny], [tiny, 1.0]]), np.array([[1, 0], [0, 1.0]]))
    symbols = np.array([0, 0, 0, 1, 1, 0])
    found = expected(three, data_of(symbols, [2, 4], 2), torch.float64)
    assert found.log_prob == pytest.approx(2 * np.log(tiny))
    np.testing.assert_allclose(found.counts.startprob, [2, 0])
    np.testing.assert_allclose(found.counts.transmat, [[1, 1], [1, 1]])
    np.testing.assert_allclose(found.counts.emissionprob, [[4, 0], [0, 2]])


def test_an_impossible_sequence_is_named_by_its_number():
    start, transition, emission = np.array([1.0, 0.0]), np.eye(2), np.eye(2)
    for labels in (None, np.full(4, -1)):
        data = data_of(np.array([0, 0, 0, 1]), [2, 2], 2, labels)
        with pytest.raises(InputError, match="sequence 1 is impossible"):
            expected(Distributions(start, transition, emission), data, torch.float64)


def test_numbers_have_one_symbol_more_that_says_nothing_and_no_symbol_is_divided_by_zero():
    start, transition, emission = tables(3, 2, 3)
    emission[:, 1] = 0.0
    numbers = Numbers.of(Distributions(start, transition, emission), torch.float64)
    assert numbers.likelihood_VS[3].tolist() == [1.0, 1.0]
    assert numbers.likelihood_VS[1].tolist() == [0.0, 0.0]
    np.testing.assert_allclose(numbers.likelihood_VS[:3] * numbers.log_peak_V[:3, None].exp(), emission.T)
    assert numbers.log_peak_V[[1, 3]].tolist() == [0.0, 0.0]


def test_a_row_of_which_nothing_is_known_stays_as_it_was():
    old = Distributions(*tables(1, 2, 3))
    counts = Distributions(np.array([1.0, 3.0]), np.array([[0.0, 0.0], [1.0, 1.0]]), np.zeros((2, 3)))
    new = maximised(old, counts, Distributions(*(np.float64(1.0),) * 3), "ste")
    np.testing.assert_allclose(new.startprob, [0.25, 0.75])
    np.testing.assert_allclose(new.transmat, [old.transmat[0], [0.5, 0.5]])
    np.testing.assert_allclose(new.emissionprob, old.emissionprob)


def test_a_prior_below_one_takes_counts_away_down_to_zero():
    old = Distributions(*tables(1, 2, 3))
    counts = Distributions(np.array([0.2, 1.5]), np.ones((2, 2)), np.ones((2, 3)))
    new = maximised(old, counts, Distributions(*(np.float64(0.5),) * 3), "s")
    assert new.startprob.tolist() == [0.0, 1.0]
    assert new.transmat is old.transmat


def test_the_monitor_is_content_when_a_step_gains_less_than_tol_or_all_are_made(capsys):
    monitor = ConvergenceMonitor(tol=0.5, n_iter=4, verbose=True)
    seen = []
    for log_prob in (-10.0, -8.0, -7.75):
        monitor.report(log_prob)
        seen.append(monitor.converged)
    assert seen == [False, False, True]
    assert list(monitor.history) == [-10.0, -8.0, -7.75]
    assert monitor.iter == 3
    assert capsys.readouterr().err.split()[3:6] == ["2", "-8.00000000", "+2.00000000"]
    for log_prob in (0.0, 10.0):
        monitor.report(log_prob)
        seen.append(monitor.converged)
    assert seen[3:] == [True, False]
