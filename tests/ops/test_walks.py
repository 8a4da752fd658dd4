"""The native recursion, in both precisions, against the step-by-step one of PyTorch in float64."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from trellis import ops
from trellis.ops.evidence import Evidence, SummedEvidence, scaled
from trellis.ops.products import counts
from trellis.ops.walks import walk, walk_back

from .measures import in_threads

# (states, rows, longest, distinct words)
SIZES = [(1, 1, 1, 1), (3, 5, 4, 3), (16, 30, 6, 9), (33, 7, 9, 5), (70, 14, 5, 20), (400, 13, 3, 6)]
KINDS = [torch.float32, torch.float64, torch.bfloat16]
# Of values, and of gradients relative to the largest.
TOLERANCE = {torch.bfloat16: (1e-2, 1e-2), torch.float32: (1e-5, 1e-5), torch.float64: (1e-13, 1e-13)}


class Dense(NamedTuple):
    """One matrix [from, to] for all steps."""

    matrix_SS: Tensor

    def push(self, belief_BS: Tensor, step: int) -> Tensor:
        return belief_BS @ self.matrix_SS

    def pull(self, message_BS: Tensor, step: int) -> Tensor:
        return message_BS @ self.matrix_SS.T


class Problem(NamedTuple):
    first: Tensor
    matrix: Tensor
    evidence: Evidence | SummedEvidence
    running: list[int]

    @property
    def index(self) -> Tensor:
        """The column of each token."""
        return self.evidence.index_TB

    def given(self, dtype: torch.dtype) -> Evidence | SummedEvidence:
        """The evidence in another precision."""
        return self.evidence._replace(
            **{name: table.to(dtype) for name, table in self.evidence._asdict().items() if table.is_floating_point()}
        )

    def walked(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Beliefs, scales, log-probabilities and final beliefs."""
        first, matrix = self.first.to(dtype), self.matrix.to(dtype)
        return walk(Dense(matrix), matrix, first, self.given(dtype), self.running)

    def walked_back(self, belief: Tensor, scale: Tensor, grad: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by log-emissions and predicted beliefs, in the precision of the beliefs."""
        matrix, grad, grad_final = (x.to(belief) for x in (self.matrix, grad, grad_final))
        given = (self.given(belief.dtype), self.running, belief, scale, grad, grad_final)
        return walk_back(Dense(matrix), matrix, *given)


@pytest.fixture(params=[False, True], ids=["columns", "sums"])
def summed(request: pytest.FixtureRequest) -> bool:
    """Whether the evidence of a token is the sum of rows of two tables."""
    return bool(request.param)


def problem(S: int, B: int, T: int, N: int, zeros: float = 0.0, *, summed: bool = False) -> Problem:
    """Rows longest first, some perhaps without tokens; in float64."""
    make = torch.Generator().manual_seed(S)
    first, matrix = torch.rand(B, S, generator=make), torch.rand(S, S, generator=make) ** 3
    log_columns = 3 * torch.randn(N, S, generator=make)
    first, matrix, log_columns = first.double(), matrix.double(), log_columns.double()
    log_columns[torch.rand(N, S, generator=make) < zeros] = -torch.inf
    lengths = torch.randint(0, T + 1, (B,), generator=make).sort(descending=True).values
    lengths[0] = T
    index = torch.randint(N, (T, B), generator=make)
    index[torch.arange(T)[:, None] >= lengths] = -7  # past the end: never to be looked at
    evidence: Evidence | SummedEvidence = Evidence(*scaled(log_columns), index)
    if summed:
        log_enter = 3 * torch.randn(N + 1, S, generator=make, dtype=torch.float64)
        log_enter[0] -= 200.0  # which float32 cannot hold as a probability
        enter = torch.randint(-1, N + 1, (T, B), generator=make)
        evidence = SummedEvidence(log_columns, index, log_enter, enter.masked_fill(index < 0, -7))
    return Problem(
        first / first.sum(1, keepdim=True),
        matrix / matrix.sum(1, keepdim=True),
        evidence,
        (lengths > torch.arange(T)[:, None]).sum(1).tolist(),
    )


def true_answers(asked: Problem, grad: Tensor, grad_final: Tensor) -> tuple[tuple[Tensor, ...], tuple[Tensor, Tensor]]:
    """What PyTorch finds in float64, there and back."""
    with ops.using(None):
        true = asked.walked(torch.float64)
        return true, asked.walked_back(true[0], true[1], grad, grad_final)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("sizes", SIZES)
def test_the_walks_match_the_twin(level: str, sizes: tuple[int, ...], kind: torch.dtype, summed: bool) -> None:
    asked = problem(*sizes, summed=summed)
    make = torch.Generator().manual_seed(1)
    grad, grad_final = (torch.randn(x.shape, generator=make) for x in (asked.index, asked.first))
    true, true_back = true_answers(asked, grad, grad_final)
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        found = asked.walked(torch.float64 if kind == torch.float64 else torch.float32)
        found_back = asked.walked_back(found[0], found[1], grad, grad_final)
        found_counts = counts(found[0][:-1].flatten(0, 1), found_back[1][1:].flatten(0, 1))
    tolerance, near = TOLERANCE[kind]
    for mine, wanted in zip(found, true, strict=True):
        torch.testing.assert_close(mine.double(), wanted, rtol=tolerance, atol=tolerance)
    for mine, wanted in zip(found_back, true_back, strict=True):
        assert float((mine - wanted).abs().max() / wanted.abs().max()) < near
    true_counts = true[0][:-1].flatten(0, 1).T @ true_back[1][1:].flatten(0, 1)
    assert float((found_counts - true_counts).abs().max()) <= near * float(true_counts.abs().max())


def test_gradients_are_those_of_autograd(way: str | None, summed: bool) -> None:
    asked = problem(5, 4, 3, 6, summed=summed)
    first, matrix = asked.first.clone().requires_grad_(), asked.matrix.clone().requires_grad_()
    make = torch.Generator().manual_seed(1)
    grad = torch.randn(asked.index.shape, generator=make, dtype=torch.float64)
    grad_final = torch.randn(asked.first.shape, generator=make, dtype=torch.float64)
    total, belief = torch.zeros((), dtype=torch.float64), first
    for t, running in enumerate(asked.running):
        before = asked.running[t - 1] if t else len(first)
        if t:
            total = total + (belief[running:before] * grad_final[running:before]).sum()
        predicted = belief[:running] @ matrix if t else first[:running]
        reached = predicted * asked.evidence.at(t, running)[0]
        total = total + (reached.sum(1).log() * grad[t, :running]).sum()
        belief = reached / reached.sum(1, keepdim=True)
    total = total + (belief * grad_final[: asked.running[-1]]).sum()
    by_first, by_matrix = torch.autograd.grad(total, (first, matrix))
    walked = asked.walked(torch.float64)
    _, message = asked.walked_back(walked[0], walked[1], grad, grad_final)
    torch.testing.assert_close(message[0], by_first)
    torch.testing.assert_close(counts(walked[0][:-1].flatten(0, 1), message[1:].flatten(0, 1)), by_matrix)


def test_bf16_is_not_float32(level: str) -> None:
    asked = problem(*SIZES[3])
    with torch.autocast("cpu", torch.bfloat16):
        half = asked.walked()
    assert not torch.equal(half[0], asked.walked()[0])


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_impossible_tokens_are_minus_infinity_and_never_nan(level: str, dtype: torch.dtype, summed: bool) -> None:
    asked = problem(20, 12, 8, 10, zeros=0.95, summed=summed)
    found = asked.walked(dtype)
    grads = torch.ones_like(found[2]), torch.zeros_like(found[3])
    true, true_back = true_answers(asked, *grads)
    assert true[2].isinf().any()
    assert torch.equal(found[2].isinf(), true[2].isinf())
    torch.testing.assert_close(found[0].double(), true[0], rtol=1e-5, atol=1e-6)
    for mine, wanted in zip(asked.walked_back(*found[:2], *grads), true_back, strict=True):
        assert float((mine - wanted).abs().max() / wanted.abs().max()) < 1e-5


@pytest.mark.parametrize("scale", [1e-100, 1e-280])
def test_float64_holds_what_float32_would_have_to_do_again(way: str | None, scale: float) -> None:
    """Two states that hardly change, and tokens that only one of them emits: posteriors are certain."""
    matrix = torch.tensor([[1.0, scale], [scale, 1.0]], dtype=torch.float64)
    asked = Problem(
        torch.tensor([[1.0, scale]], dtype=torch.float64),
        matrix,
        Evidence(*scaled(torch.eye(2, dtype=torch.float64).log()), torch.tensor([[0], [1], [1], [0]])),
        [1] * 4,
    )
    belief, scales, log_prob, _ = asked.walked(torch.float64)
    posterior, message = asked.walked_back(belief, scales, torch.ones_like(scales), torch.zeros(1, 2))
    torch.testing.assert_close(log_prob[:, 0].exp(), torch.tensor([1.0, scale, 1.0, scale], dtype=torch.float64))
    torch.testing.assert_close(posterior[:, 0], torch.eye(2, dtype=torch.float64)[[0, 1, 1, 0]])
    crossed = counts(belief[:-1].flatten(0, 1), message[1:].flatten(0, 1)) * matrix
    torch.testing.assert_close(crossed, torch.tensor([[0.0, 1.0], [1.0, 1.0]], dtype=torch.float64))


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_every_number_of_the_answer_is_written(
    way: str | None, hostile_memory: None, dtype: torch.dtype, summed: bool
) -> None:
    asked = problem(16, 30, 6, 9, summed=summed)
    found = asked.walked(dtype)
    back = asked.walked_back(found[0], found[1], torch.ones_like(found[1]), torch.ones_like(found[3]))
    assert not any(bool(tensor.isnan().any()) for tensor in (*found, *back))


@pytest.mark.parametrize("kind", KINDS)
def test_threads_change_no_walk(level: str, kind: torch.dtype, summed: bool) -> None:
    asked, dtype = problem(24, 50, 6, 9, summed=summed), torch.float64 if kind == torch.float64 else torch.float32
    with torch.autocast("cpu", torch.bfloat16, enabled=kind == torch.bfloat16):
        alone, together = (in_threads(threads, lambda: list(asked.walked(dtype))) for threads in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_an_index_out_of_reach_is_refused(way: str | None) -> None:
    asked = problem(4, 3, 2, 3)
    asked.index[0, 0] = 3
    with pytest.raises(IndexError):
        asked.walked()
