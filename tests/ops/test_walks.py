"""The native recursion against the step-by-step one, which float64 makes the truth."""

from typing import NamedTuple

import pytest
import torch
from torch import Tensor

from trellis.ops.products import counts
from trellis.ops.walks import walk, walk_back

from .measures import in_threads

# (states, rows, longest, distinct words)
SIZES = [(1, 1, 1, 1), (3, 5, 4, 3), (16, 30, 6, 9), (33, 7, 9, 5), (70, 14, 5, 20), (400, 13, 3, 6)]
UNDERFLOW = 1e-20


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
    likelihood: Tensor
    log_peak: Tensor
    index: Tensor
    running: list[int]

    def walked(self, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
        """Beliefs, scales, log-probabilities and final beliefs."""
        first, matrix, likelihood, log_peak = (tensor.to(dtype) for tensor in self[:4])
        return walk(Dense(matrix), matrix, first, likelihood, log_peak, self.index, self.running)

    def walked_back(self, belief: Tensor, scale: Tensor, grad: Tensor, grad_final: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by log-emissions and predicted beliefs, in the precision of the beliefs."""
        matrix, likelihood, grad, grad_final = (x.to(belief) for x in (self.matrix, self.likelihood, grad, grad_final))
        given = (likelihood, self.index, self.running, belief, scale, grad, grad_final)
        return walk_back(Dense(matrix), matrix, *given, UNDERFLOW)


def problem(S: int, B: int, T: int, N: int, zeros: float = 0.0) -> Problem:
    """Rows longest first, some perhaps without tokens."""
    make = torch.Generator().manual_seed(S)
    first, matrix = torch.rand(B, S, generator=make), torch.rand(S, S, generator=make) ** 3
    log_columns = 3 * torch.randn(N, S, generator=make)
    log_columns[torch.rand(N, S, generator=make) < zeros] = -torch.inf
    lengths = torch.randint(0, T + 1, (B,), generator=make).sort(descending=True).values
    lengths[0] = T
    index = torch.randint(N, (T, B), generator=make)
    index[torch.arange(T)[:, None] >= lengths] = -7  # past the end: never to be looked at
    log_peak = log_columns.amax(1).clamp_min(-1e30)
    return Problem(
        first / first.sum(1, keepdim=True),
        matrix / matrix.sum(1, keepdim=True),
        (log_columns - log_peak[:, None]).exp(),
        log_peak,
        index,
        (lengths > torch.arange(T)[:, None]).sum(1).tolist(),
    )


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_walks_match_the_twin(level: str, sizes: tuple[int, ...], bf16: bool) -> None:
    asked = problem(*sizes)
    make = torch.Generator().manual_seed(1)
    grad, grad_final = (torch.randn(x.shape, generator=make) for x in (asked.index, asked.first))
    true = asked.walked(torch.float64)
    true_back = asked.walked_back(true[0], true[1], grad, grad_final)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = asked.walked()
        found_back = asked.walked_back(found[0], found[1], grad, grad_final)
        found_counts = counts(found[0][:-1].flatten(0, 1), found_back[1][1:].flatten(0, 1))
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if bf16 else {"rtol": 1e-5, "atol": 2e-6}
    for mine, wanted in zip(found, true, strict=True):
        torch.testing.assert_close(mine.double(), wanted, **tolerance)
    near = 1e-2 if bf16 else 1e-5
    for mine, wanted in zip(found_back, true_back, strict=True):
        assert float((mine - wanted).abs().max() / wanted.abs().max()) < near
    true_counts = true[0][:-1].flatten(0, 1).T @ true_back[1][1:].flatten(0, 1)
    assert float((found_counts - true_counts).abs().max()) <= near * float(true_counts.abs().max())


def test_gradients_of_the_twin_are_those_of_autograd() -> None:
    asked = problem(5, 4, 3, 6)
    first, matrix, likelihood = (x.double().requires_grad_() for x in asked[:3])
    make = torch.Generator().manual_seed(1)
    grad = torch.randn(asked.index.shape, generator=make, dtype=torch.float64)
    grad_final = torch.randn(asked.first.shape, generator=make, dtype=torch.float64)
    total, belief = torch.zeros((), dtype=torch.float64), first
    for t, running in enumerate(asked.running):
        before = asked.running[t - 1] if t else len(first)
        if t:
            total = total + (belief[running:before] * grad_final[running:before]).sum()
        predicted = belief[:running] @ matrix if t else first[:running]
        reached = predicted * likelihood[asked.index[t, :running]]
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


def test_impossible_tokens_are_minus_infinity_and_never_nan(level: str) -> None:
    asked = problem(20, 12, 8, 10, zeros=0.95)
    true, found = asked.walked(torch.float64), asked.walked()
    assert true[2].isinf().any()
    assert torch.equal(found[2].isinf(), true[2].isinf())
    torch.testing.assert_close(found[0].double(), true[0], rtol=1e-5, atol=1e-6)
    grads = torch.ones_like(found[2]), torch.zeros_like(found[3])
    pairs = zip(asked.walked_back(*found[:2], *grads), asked.walked_back(*true[:2], *grads), strict=True)
    for mine, wanted in pairs:
        assert float((mine - wanted).abs().max() / wanted.abs().max()) < 1e-5


def test_every_number_of_the_answer_is_written(way: str | None, hostile_memory: None) -> None:
    asked = problem(16, 30, 6, 9)
    found = asked.walked()
    back = asked.walked_back(found[0], found[1], torch.ones_like(found[1]), torch.ones_like(found[3]))
    assert not any(bool(tensor.isnan().any()) for tensor in (*found, *back))


@pytest.mark.parametrize("bf16", [False, True])
def test_threads_change_no_walk(level: str, bf16: bool) -> None:
    asked = problem(24, 50, 6, 9)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        alone, together = (in_threads(threads, lambda: list(asked.walked())) for threads in (1, 3))
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_an_index_out_of_reach_is_refused(way: str | None) -> None:
    asked = problem(4, 3, 2, 3)
    asked.index[0, 0] = 3
    with pytest.raises(IndexError):
        asked.walked()
