import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trellis.estimator import expectation, windows
from trellis.estimator.checking import Distributions
from trellis.estimator.expectation import Data, Numbers, best_paths, expected, walk
from trellis.estimator.windows import Sequences, cut
from trellis.ops.sequences import best_paths as best_paths_of
from trellis.ops.sequences import expect

from .peers import tables


@pytest.fixture(autouse=True)
def paths_are_cut_whatever_the_number_of_states(monkeypatch):
    monkeypatch.setattr(expectation, "WHOLE_PATHS", 0)


LENGTHS = st.lists(st.integers(1, 3000), min_size=1, max_size=6)


@given(LENGTHS, st.sampled_from([None, 1, 32, 128]), st.integers(1, 3))
def test_every_symbol_is_counted_once_and_windows_meet(lengths, overlap, threads):
    made = cut(np.array(lengths), 3, overlap, threads)
    begin, length, which, from_, to, group = (given.numpy() for given in made.rows)
    counted = np.zeros(sum(lengths))
    for row in range(len(begin)):
        counted[begin[row] + from_[row] : begin[row] + to[row]] += 1
    assert (counted == 1).all()
    first = np.cumsum(lengths) - lengths
    assert (begin >= first[made.sequence_B]).all()
    assert (begin + length <= (first + lengths)[made.sequence_B]).all()
    left, right = made.left_C.numpy(), made.right_C.numpy()
    assert ((begin + to)[left] == (begin + from_)[right]).all()
    assert (made.sequence_B[left] == made.sequence_B[right]).all()
    assert len(left) == len(begin) - len(lengths)
    assert (which == (from_ > 0)).all()
    assert overlap is not None or len(begin) == len(lengths)
    assert (from_[right] == overlap).all()
    assert group[-1] == len(begin)


def sticky(stay, states=4, symbols=6):
    start, _, emission = tables(0, states, symbols)
    return start, stay * np.eye(states) + (1 - stay) / states, 0.9 / symbols + 0.1 * emission


def cyclic(states=4):
    """A state leads to the next, whatever is seen: nothing is ever forgotten."""
    start, _, emission = tables(0, states, 6)
    return start, np.roll(np.eye(states), 1, 1), emission


def forward_only():
    start, emission = np.array([1.0, 0, 0]), tables(0, 3, 6)[2]
    return start, np.array([[0.999, 0.001, 0], [0, 0.999, 0.001], [0, 0, 1.0]]), emission


MODELS = {
    "mixing": lambda: tables(0, 5, 6),
    "sticky": lambda: sticky(0.95),
    "very sticky": lambda: sticky(0.9999),
    "cyclic": cyclic,
    "forward only": forward_only,
}


@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
@pytest.mark.parametrize("name", MODELS)
def test_cut_sequences_are_counted_as_whole_ones_are(name, dtype):
    three, lengths = Distributions(*MODELS[name]()), np.array([20_000, 700])
    symbols = np.random.RandomState(0).randint(6, size=20_700)
    made, whole = (Data(symbols, Sequences(symbols, lengths, len(three.startprob))) for _ in range(2))
    whole.sequences.leave_whole()
    assert len(made.sequences.cut().rows.begin_B) > 2
    near = 1e-9 if dtype == torch.float64 else 1e-3
    found, true = expected(three, made, dtype), expected(three, whole, dtype)
    assert found.log_prob == pytest.approx(true.log_prob, rel=near)
    for mine, wanted in zip(found.counts, true.counts, strict=True):
        np.testing.assert_allclose(mine, wanted, rtol=near, atol=near)
    if dtype == torch.float64:
        numbers = Numbers.of(three, dtype)
        paths, best = best_paths(numbers, made.sequences), best_paths(numbers, whole.sequences)
        assert float(paths.log_prob_B.sum()) == pytest.approx(float(best.log_prob_B.sum()), rel=1e-12)
        assert torch.equal(paths.state_N, best.state_N)


def test_windows_widen_as_they_must_and_stay_so():
    symbols = np.random.RandomState(0).randint(6, size=40_000)
    needed = []
    for name in MODELS:
        sequences = Sequences(symbols, np.array([40_000]), len(MODELS[name]()[0]))
        walk(Numbers.of(Distributions(*MODELS[name]()), torch.float64), sequences, counts=True)
        needed.append(sequences.overlap)
    mixing, sticky_, very_sticky, circle, forward = needed
    assert mixing == windows.FIRST_OVERLAP
    assert mixing < sticky_ <= windows.LARGEST_OVERLAP
    assert very_sticky is circle is forward is None


def test_rows_disagree_if_beliefs_messages_or_zeros_differ_or_one_is_lost():
    symbols = np.random.RandomState(0).randint(6, size=4_000)
    sequences = Sequences(symbols, np.array([4_000]), 5)
    rows, found = walk(Numbers.of(Distributions(*tables(0, 5, 6)), torch.float64), sequences, counts=True)
    right = int(rows.right_C[0])
    assert rows.apart(found) < 1e-12
    for which in (0, 3):
        for factor in (1 + 1e-9, 0.0):
            edge = found.edge_EBS.clone()
            edge[which, right, 2] *= factor
            assert rows.apart(found._replace(edge_EBS=edge)) > 0.9e-9
        scaled = found.edge_EBS.clone()
        scaled[which, right] *= 3.0
        assert rows.apart(found._replace(edge_EBS=scaled)) < 1e-12
    lost = found.lost_B.clone()
    lost[right] = 1
    assert rows.apart(found._replace(lost_B=lost)) == np.inf


def test_paths_disagree_if_scores_differ_or_they_do_not_meet():
    symbols = np.random.RandomState(0).randint(6, size=4_000)
    sequences = Sequences(symbols, np.array([4_000]), 5)
    found = best_paths(Numbers.of(Distributions(*tables(0, 5, 6)), torch.float64), sequences)
    rows = sequences.cut()
    assert rows.paths_apart(found) < 1e-9
    left = int(rows.left_C[0])
    met = found.met_B.clone()
    met[left] += 1
    assert rows.paths_apart(found._replace(met_B=met)) == np.inf
    edge = found.edge_EBS.clone()
    edge[1, left, 0] += 1e-6
    assert rows.paths_apart(found._replace(edge_EBS=edge)) == pytest.approx(1e-6)


def test_an_impossible_part_makes_the_whole_sequence_impossible():
    start, transition, emission = tables(0, 3, 4)
    emission[:, 3] = 0.0
    emission /= emission.sum(1, keepdims=True)
    symbols = np.random.RandomState(0).randint(3, size=4_000)
    symbols[2_000] = 3
    sequences = Sequences(symbols, np.array([3_000, 1_000]), 3)
    rows, found = walk(Numbers.of(Distributions(start, transition, emission), torch.float64), sequences, counts=False)
    assert rows.sequence_B[found.lost_B.numpy() > 0].tolist() == [0]
    paths = best_paths(Numbers.of(Distributions(start, transition, emission), torch.float64), sequences)
    assert (paths.state_N[:3_000] == -1).all()
    assert (paths.state_N[3_000:] >= 0).all()


def test_many_sequences_are_cut_only_for_memory(monkeypatch):
    monkeypatch.setattr(windows, "LARGEST_PIECE", 5_000)
    assert len(cut(np.array([4_000] * 30), 3, 32, 1).left_C) == 0
    assert len(cut(np.array([12_000] + [4_000] * 30), 3, 32, 1).left_C) == 1


def test_a_few_short_rows_tell_how_far_apart_all_are():
    symbols, lengths = np.random.RandomState(0).randint(6, size=40_000), np.array([30_000, 10_000])
    for model in (tables(0, 5, 6), sticky(0.9)):
        numbers = Numbers.of(Distributions(*model), torch.float64)
        made, ids = cut(lengths, len(model[0]), 48, 1), torch.from_numpy(symbols)
        some = made.some(48)
        assert int(some.rows.length_B.sum()) <= 2 * windows.PROBED * 3 * 48
        distances = [rows.apart(expect(*numbers, ids, rows.rows)) for rows in (some, made)]
        assert max(distances) < 1e-12 or 0.5 < np.log(distances[0]) / np.log(distances[1]) < 2.0
        paths = best_paths_of(*numbers.logarithms(), ids, some.rows)
        assert some.paths_apart(paths) < 1e-9 or model[1][0, 0] > 0.8


def test_paths_of_few_states_are_left_whole(monkeypatch):
    monkeypatch.undo()
    sequences = Sequences(np.random.RandomState(0).randint(6, size=4_000), np.array([4_000]), 5)
    with_threads = torch.get_num_threads()
    torch.set_num_threads(1)
    best_paths(Numbers.of(Distributions(*tables(0, 5, 6)), torch.float64), sequences)
    torch.set_num_threads(with_threads)
    assert sequences.overlap is None
