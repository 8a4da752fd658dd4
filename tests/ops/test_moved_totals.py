import pytest
import torch
from torch import Tensor

from trellis.ops.moved_totals import moved_log_totals

from .measures import assert_near, drawn, with_gradients

# groups, rows of each, columns, width, movers
SIZES = [(1, 1, 1, 1, 1), (4, 3, 50, 7, 9), (3, 16, 130, 32, 2), (2, 3, 5, 4, 0)]


def plain(rows: Tensor, columns: Tensor, moved: Tensor, group: Tensor) -> Tensor:
    return torch.logsumexp((rows[group] + moved[:, None]) @ columns.T, 2)


def given(G: int, K: int, V: int, R: int, C: int) -> tuple[list[Tensor], Tensor]:
    return [drawn(G, K, R), drawn(V, R, seed=1), drawn(C, R, seed=2)], torch.arange(C) * 5 % G


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients_are_those_of_float64(size: tuple[int, int, int, int, int]) -> None:
    tensors, group = given(*size)
    wanted = with_gradients(lambda *some: plain(*some, group), [one.double() for one in tensors])
    found = with_gradients(lambda *some: moved_log_totals(*some, group), tensors)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=1e-5)
    assert_near(found[1:], wanted[1:], 1e-5)


def test_gradients_are_those_of_small_steps() -> None:
    tensors, group = given(3, 2, 5, 3, 4)
    exact = [one.double().requires_grad_() for one in tensors]
    assert torch.autograd.gradcheck(lambda *some: moved_log_totals(*some, group), exact)


def test_large_logits_that_agree() -> None:
    """What is largest for a row is so for its movers: nothing overflows, and nothing is lost."""
    (rows, columns, moved), group = given(2, 3, 40, 6, 5)
    rows, moved = 30 * rows.abs(), 30 * moved.abs()
    columns[0] = 10.0
    torch.testing.assert_close(moved_log_totals(rows, columns, moved, group), plain(rows, columns, moved, group))


def test_sums_that_float32_cannot_hold_are_finite() -> None:
    rows, columns, moved = torch.tensor([[[100.0]]]), torch.tensor([[1.0], [-1.0]]), torch.tensor([[-100.0]])
    leaves = [one.requires_grad_() for one in (rows, columns, moved)]
    found = moved_log_totals(*leaves, torch.zeros(1, dtype=torch.int64))
    assert bool(found.isfinite().all())
    found.sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves)


def test_new_memory_may_hold_anything(hostile_memory: None) -> None:
    tensors, group = given(4, 3, 50, 7, 9)
    found = with_gradients(lambda *some: moved_log_totals(*some, group), tensors)
    assert not any(bool(one.isnan().any()) for one in found)
