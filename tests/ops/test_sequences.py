"""Expected counts and best paths of many sequences: native against PyTorch, and both against every path there is."""

import itertools

import numpy as np
import pytest
import torch
from torch import Tensor

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops.sequences import BestPaths, Expected, Rows, best_paths, expect, side_by_side

from .measures import in_threads

DTYPES = [torch.float32, torch.float64]
# (states, symbols, lengths)
SIZES = [
    (1, 1, [1]),
    (3, 4, [5, 4, 4, 1]),
    (8, 3, [7]),
    (16, 9, [6] * 30),
    (33, 5, [9, 8, 7, 7, 7, 7, 1, 1]),
    (70, 20, [5] * 13),
    (200, 6, [12, 3, 3]),
]
NEAR = {torch.float32: 1e-5, torch.float64: 1e-12}


class Problem:
    """Tables in float64, some of whose numbers are zero, and sequences one after the other."""

    def __init__(self, states: int, symbols: int, lengths: list[int], zeros: float = 0.0, junk: int = 3) -> None:
        make = torch.Generator().manual_seed(states)

        def table(*shape: int) -> Tensor:
            drawn = torch.rand(shape, generator=make, dtype=torch.float64) ** 3 + 1e-3
            drawn[torch.rand(shape, generator=make) < zeros] = 0.0
            return drawn

        self.first, self.matrix, self.likelihood = table(2, states), table(states, states), table(symbols, states)
        self.first /= self.first.sum(1, keepdim=True).clamp_min(1e-3)
        self.matrix /= self.matrix.sum(1, keepdim=True).clamp_min(1e-3)
        self.log_peak = torch.randn(symbols, generator=make, dtype=torch.float64)
        self.symbol = torch.randint(symbols, (sum(lengths) + junk,), generator=make)
        self.symbol[sum(lengths) :] = -7  # of no row: never to be looked at
        begin = np.cumsum(lengths) - lengths
        length = torch.tensor(lengths)
        self.rows = Rows(
            torch.from_numpy(begin), length, torch.arange(len(lengths)) % 2, torch.zeros_like(length), length.clone(),
            side_by_side(lengths, states, 1),
        )  # fmt: skip

    def expect(self, dtype: torch.dtype = torch.float64, counts: bool = True, rows: Rows | None = None) -> Expected:
        tables = (x.to(dtype) for x in (self.first, self.matrix, self.likelihood, self.log_peak))
        return expect(*tables, self.symbol, rows or self.rows, counts=counts)

    def logarithms(self) -> tuple[Tensor, Tensor, Tensor]:
        return self.first.log(), self.matrix.log(), self.likelihood.log() + self.log_peak[:, None]

    def best_paths(self, dtype: torch.dtype = torch.float64, rows: Rows | None = None) -> BestPaths:
        return best_paths(*(x.to(dtype) for x in self.logarithms()), self.symbol, rows or self.rows)


def assert_close(found: Expected, true: Expected, near: float) -> None:
    for name in ("log_prob_B", "start_S", "crossed_SS", "emission_VS"):
        mine, wanted = getattr(found, name).double(), getattr(true, name).double()
        torch.testing.assert_close(mine, wanted, rtol=near, atol=near * (1.0 + float(wanted.abs().max())), msg=name)
    assert torch.equal(found.lost_B, true.lost_B)


def directions(edge_EBS: Tensor) -> Tensor:
    """Beliefs and messages without their factors."""
    return edge_EBS.double() / edge_EBS.double().sum(-1, keepdim=True).clamp_min(1e-300)


def every_path(problem: Problem, row: int) -> tuple[list[tuple[int, ...]], Tensor]:
    """All state paths of a row and log p(path, symbols) of each."""
    log_first, log_matrix, log_likelihood = problem.logarithms()
    begin, length, which = (int(given[row]) for given in problem.rows[:3])
    symbols = problem.symbol[begin : begin + length].tolist()
    paths = list(itertools.product(range(len(log_matrix)), repeat=length))
    log_joint = [
        log_first[which, path[0]]
        + sum((log_matrix[pair] for pair in itertools.pairwise(path)), torch.zeros(()))
        + sum(log_likelihood[symbol, state] for symbol, state in zip(symbols, path, strict=True))
        for path in paths
    ]
    return paths, torch.stack(log_joint)


@pytest.mark.parametrize("zeros", [0.0, 0.4])
def test_counts_are_those_of_every_path(way: str | None, zeros: float) -> None:
    asked = Problem(3, 4, [5, 4, 4, 1], zeros)
    found = asked.expect()
    start, crossed, emission = torch.zeros(3), torch.zeros(3, 3), torch.zeros(4, 3)
    for row in range(4):
        paths, log_joint = every_path(asked, row)
        total = log_joint.logsumexp(0)
        assert bool(found.lost_B[row]) == bool(total == -torch.inf)
        if total == -torch.inf:
            continue
        torch.testing.assert_close(found.log_prob_B[row], total)
        begin = int(asked.rows.begin_B[row])
        for path, weight in zip(paths, (log_joint - total).exp().tolist(), strict=True):
            start[path[0]] += weight * (row % 2 == 0)
            for pair in itertools.pairwise(path):
                crossed[pair] += weight
            for t, state in enumerate(path):
                emission[asked.symbol[begin + t], state] += weight
    assert not found.lost_B.all()
    for mine, wanted in zip(
        (found.start_S, found.crossed_SS * asked.matrix, found.emission_VS), (start, crossed, emission), strict=True
    ):
        torch.testing.assert_close(mine.float(), wanted, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_counts_are_those_of_pytorch(level: str, sizes: tuple[int, int, list[int]], dtype: torch.dtype) -> None:
    asked = Problem(*sizes)
    found = asked.expect(dtype)
    with ops.using(None):
        true = asked.expect()
    assert_close(found, true, NEAR[dtype])
    torch.testing.assert_close(directions(found.edge_EBS), directions(true.edge_EBS), rtol=0, atol=NEAR[dtype])
    alone = asked.expect(dtype, counts=False)
    torch.testing.assert_close(alone.log_prob_B, found.log_prob_B)
    assert not alone.start_S.any()
    assert not alone.crossed_SS.any()


def windows(asked: Problem, overlap: int, piece: int) -> Rows:
    """The one sequence of a problem in windows, without a word of how the estimator cuts."""
    length, columns = int(asked.rows.length_B[0]), []
    for low in range(0, length, piece):
        begin, high = max(0, low - overlap), min(low + piece, length)
        end = min(length, high + overlap)
        columns.append((begin, end - begin, int(low > 0), low - begin, high - begin))
    columns.sort(key=lambda row: -row[1])
    rows = torch.tensor(columns)
    return Rows(*rows.T.contiguous(), side_by_side(rows[:, 1].tolist(), 5, 1))


@pytest.mark.parametrize("dtype", DTYPES)
def test_windows_that_overlap_enough_count_what_the_whole_sequence_counts(way: str | None, dtype: torch.dtype) -> None:
    asked = Problem(5, 6, [200])
    cut = windows(asked, 60, 40)
    whole, parts = asked.expect(dtype), asked.expect(dtype, rows=cut)
    near = 20 * NEAR[dtype]
    torch.testing.assert_close(parts.log_prob_B.sum(), whole.log_prob_B.sum(), rtol=near, atol=near)
    assert_close(parts._replace(log_prob_B=whole.log_prob_B, lost_B=whole.lost_B), whole, near)
    # With too little overlap it must show: neighbours disagree about the belief in the middle.
    rough = asked.expect(rows=windows(asked, 2, 40))
    assert abs(float(rough.log_prob_B.sum() - whole.log_prob_B.sum())) > 1e-6


@pytest.mark.parametrize("dtype", DTYPES)
def test_a_row_that_underflows_is_counted_nowhere(way: str | None, dtype: torch.dtype) -> None:
    asked = Problem(4, 4, [6, 5, 5])
    asked.likelihood[3] = 0.0
    asked.symbol[:16] = asked.symbol[:16] % 3
    asked.symbol[8] = 3
    found = asked.expect(dtype)
    assert found.lost_B.tolist() == [0, 1, 0]
    assert not any(bool(tensor.isnan().any()) for tensor in found)
    chosen = torch.tensor([0, 2])
    others = asked.expect(dtype, rows=Rows(*(given[chosen] for given in asked.rows[:5]), torch.tensor([0, 2])))
    torch.testing.assert_close(found.log_prob_B[chosen], others.log_prob_B)
    for name in ("start_S", "crossed_SS", "emission_VS"):
        torch.testing.assert_close(getattr(found, name), getattr(others, name))


def test_steps_that_float64_can_hold_are_not_lost(way: str | None) -> None:
    asked = Problem(2, 2, [4])
    asked.first[0] = torch.tensor([1.0, 0.0])
    asked.matrix = torch.tensor([[1.0, 1e-280], [1e-280, 1.0]], dtype=torch.float64)
    asked.likelihood, asked.log_peak = torch.eye(2, dtype=torch.float64), torch.zeros(2, dtype=torch.float64)
    asked.symbol[:4] = torch.tensor([0, 1, 1, 0])
    found = asked.expect()
    assert not found.lost_B.any()
    assert float(found.log_prob_B) == pytest.approx(2 * np.log(1e-280))
    torch.testing.assert_close(found.emission_VS, 2 * torch.eye(2, dtype=torch.float64))
    wanted = torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64)
    torch.testing.assert_close(found.crossed_SS * asked.matrix, wanted)


@pytest.mark.parametrize("zeros", [0.0, 0.5])
def test_best_paths_are_the_best_of_every_path(way: str | None, zeros: float) -> None:
    asked = Problem(3, 4, [5, 4, 4, 1], zeros)
    found = asked.best_paths()
    impossible = 0
    for row in range(4):
        paths, log_joint = every_path(asked, row)
        torch.testing.assert_close(found.log_prob_B[row], log_joint.max().double())
        begin, length = int(asked.rows.begin_B[row]), int(asked.rows.length_B[row])
        path = tuple(found.state_N[begin : begin + length].tolist())
        if log_joint.max() == -torch.inf:
            impossible += 1
            assert path == (-1,) * length
        else:
            assert float(log_joint[paths.index(path)]) == pytest.approx(float(log_joint.max()))
    assert (zeros == 0.0) == (impossible == 0)
    assert (found.state_N[14:] == -1).all()


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("sizes", SIZES)
def test_best_paths_are_pytorchs_to_the_bit(level: str, sizes: tuple[int, int, list[int]], dtype: torch.dtype) -> None:
    asked = Problem(*sizes)
    found = asked.best_paths(dtype)
    with ops.using(None):
        true = asked.best_paths(dtype)
    for name in ("state_N", "met_B", "log_prob_B", "edge_EBS"):
        assert torch.equal(getattr(found, name), getattr(true, name)), name


# Tables in which bounds are hard to guess: what a panel of states can hope for is far from what it gets.
HARD = {
    "sharp": lambda table: (table * 400).log_softmax(-1),
    "nearly alike": lambda table: (table * 1e-9).log_softmax(-1),
    "many alike": lambda table: (table * 3).round().log_softmax(-1),
    "sparse": lambda table: table.masked_fill(table < 0.8, 0.0).log(),
    "two scales": lambda table: torch.where(table < 0.5, table - 1e3, table),
    "far from zero": lambda table: table * 10 - 1e6,
    "not even numbers of float32": lambda table: torch.where(table < 0.3, -1e39 * table - 1e39, table),
}


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kind", HARD)
@pytest.mark.parametrize("states", [17, 40, 130])
def test_from_states_that_are_passed_over_could_not_have_won(
    level: str, kind: str, states: int, dtype: torch.dtype
) -> None:
    make = torch.Generator().manual_seed(states)
    tables = [torch.rand(shape, generator=make, dtype=torch.float64) for shape in ((2, states), (states, states))]
    first, matrix = (HARD[kind](table).to(dtype) for table in tables)
    likelihood = HARD[kind](torch.rand(7, states, generator=make, dtype=torch.float64)).to(dtype)
    likelihood[3] = 0.0  # tells nothing
    matrix[:, 5] = -torch.inf  # never entered
    asked = Problem(states, 7, [60, 33, 2])
    found = best_paths(first, matrix, likelihood, asked.symbol, asked.rows)
    with ops.using(None):
        true = best_paths(first, matrix, likelihood, asked.symbol, asked.rows)
    for name in ("state_N", "met_B", "log_prob_B", "edge_EBS"):
        assert torch.equal(getattr(found, name), getattr(true, name)), name


def test_best_paths_with_weights_that_are_no_probabilities(way: str | None) -> None:
    asked = Problem(3, 4, [5, 4, 4, 1])
    asked.matrix *= 7.0
    for row, log_prob in enumerate(asked.best_paths().log_prob_B):
        torch.testing.assert_close(log_prob, every_path(asked, row)[1].max().double())


def test_of_paths_alike_the_lower_states_are_taken(way: str | None) -> None:
    asked = Problem(40, 2, [6])
    asked.first[:], asked.matrix[:], asked.likelihood[:] = 0.5, 0.5, 0.5
    assert not asked.best_paths().state_N[:6].any()


def test_paths_of_windows_meet(way: str | None) -> None:
    asked = Problem(5, 6, [200])
    cut = windows(asked, 40, 40)
    whole, parts = asked.best_paths(), asked.best_paths(rows=cut)
    assert torch.equal(parts.state_N, whole.state_N)
    assert float(parts.log_prob_B.sum()) == pytest.approx(float(whole.log_prob_B), rel=1e-12)
    at = cut.begin_B + cut.to_B
    goes_on = at < 200
    assert torch.equal(parts.met_B[goes_on], whole.state_N[at[goes_on]])
    assert (parts.met_B[~goes_on] == -1).all()


@pytest.mark.parametrize("dtype", DTYPES)
def test_nothing_of_memory_as_it_was_shows(level: str, hostile_memory: None, dtype: torch.dtype) -> None:
    asked = Problem(9, 4, [70] * 30)
    asked.expect(dtype)  # leaves its numbers in the library's memory
    small = Problem(5, 4, [9, 7, 7])
    found, paths = small.expect(dtype), small.best_paths(dtype)
    for tensor in (*found, paths.log_prob_B, paths.edge_EBS):
        assert not tensor.isnan().any()


@pytest.mark.parametrize("dtype", DTYPES)
def test_threads_change_rounding_at_most(level: str, dtype: torch.dtype) -> None:
    asked = Problem(24, 9, [12, 12, *[9] * 60])
    rows = asked.rows._replace(group_J=side_by_side(asked.rows.length_B.tolist(), 24, 3))
    alone, together = (Expected(*in_threads(n, lambda: list(asked.expect(dtype, rows=rows)))) for n in (1, 3))
    assert_close(together, alone, NEAR[dtype])
    assert torch.equal(together.log_prob_B, alone.log_prob_B)
    one, three = (in_threads(n, lambda: list(asked.best_paths(dtype, rows=rows))) for n in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(one, three, strict=True))


@pytest.mark.parametrize(
    "broken",
    [
        {"begin_B": torch.tensor([0, 12])},
        {"length_B": torch.tensor([4, 5])},
        {"length_B": torch.tensor([5, 0])},
        {"which_B": torch.tensor([0, 2])},
        {"group_J": torch.tensor([0, 1])},
    ],
)
def test_rows_that_lead_out_of_reach_are_refused(level: str, broken: dict[str, Tensor]) -> None:
    asked = Problem(3, 4, [5, 4])
    with pytest.raises(IndexError):
        asked.expect(rows=asked.rows._replace(**broken))
    asked.symbol[2] = 4
    with pytest.raises(IndexError):
        asked.best_paths()


def test_groups_hold_rows_of_similar_length_and_no_more_than_memory_allows() -> None:
    assert side_by_side([8, 7, 6, 5, 1], 4, 1).tolist() == [0, 3, 4, 5]
    assert side_by_side([5] * 50, 4, 1).tolist() == [0, 24, 48, 50]
    assert side_by_side([5] * 50, 4, 3).tolist() == [0, 17, 34, 50]
    assert side_by_side([1 << 20] * 3, 8, 1).tolist() == [0, 1, 2, 3]
    assert side_by_side([], 4, 1).tolist() == [0]


def test_rows_in_no_group_are_refused() -> None:
    problem = Problem(3, 4, [5, 4])
    rows = problem.rows._replace(group_J=torch.empty(0, dtype=torch.int64))
    with pytest.raises(TrellisError, match="rows come in groups"):
        expect(problem.first, problem.matrix, problem.likelihood, problem.log_peak, problem.symbol, rows)
    with pytest.raises(TrellisError, match="rows come in groups"):
        best_paths(problem.first.log(), problem.matrix.log(), problem.likelihood.log(), problem.symbol, rows)


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("begin", [2**63 - 1, 2**62, -1, 6])
def test_rows_outside_of_the_symbols_are_refused(begin: int, dtype: torch.dtype) -> None:
    if not ops.levels():
        pytest.skip("the native kernels were not built")
    problem = Problem(3, 4, [4])
    rows = problem.rows._replace(begin_B=torch.tensor([begin]))
    tables = [table.to(dtype) for table in (problem.first, problem.matrix, problem.likelihood, problem.log_peak)]
    with pytest.raises(IndexError, match="an index is outside of what it counts"):
        expect(*tables, problem.symbol, rows)


@pytest.mark.parametrize("dtype", DTYPES)
def test_scores_that_are_no_numbers_lead_to_no_state_beyond_the_last(dtype: torch.dtype) -> None:
    problem = Problem(33, 4, [50])
    matrix = torch.full((33, 33), torch.nan, dtype=dtype)
    if not ops.levels():
        pytest.skip("the native kernels were not built")
    found = best_paths(
        problem.first.log().to(dtype), matrix, problem.likelihood.log().to(dtype), problem.symbol, problem.rows
    )
    assert int(found.state_N.max()) < 33
