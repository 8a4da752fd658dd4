import pytest
import torch
from torch import Tensor

from trellis.ops.log_pulls import log_pull, log_pull_shared

from .measures import assert_near, drawn, with_gradients

# pairs, to, from, messages
SIZES = [(1, 1, 1, 1), (4, 3, 5, 9), (3, 64, 64, 40), (5, 70, 33, 2), (2, 4, 3, 0)]


def plain(into: Tensor, message: Tensor, pair: Tensor) -> Tensor:
    return torch.logsumexp(into[pair].log() + message[:, :, None], 1)


def given(P: int, J: int, K: int, Q: int) -> tuple[list[Tensor], Tensor]:
    return [drawn(P, J, K).sigmoid(), drawn(Q, J, seed=1)], torch.arange(Q) * 7 % P


@pytest.mark.parametrize("size", SIZES, ids=str)
def test_values_and_gradients_are_those_of_float64(way: str | None, size: tuple[int, int, int, int]) -> None:
    tensors, pair = given(*size)
    wanted = with_gradients(lambda into, message: plain(into, message, pair), [one.double() for one in tensors])
    found = with_gradients(lambda into, message: log_pull(into, pair, message), tensors)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=1e-5)
    assert_near(found[1:], wanted[1:], 1e-5)


def test_gradients_are_those_of_small_steps() -> None:
    tensors, pair = given(3, 4, 2, 6)
    exact = [one.double().requires_grad_() for one in tensors]
    assert torch.autograd.gradcheck(lambda into, message: log_pull(into, pair, message), exact)


def test_messages_of_any_size_and_sums_of_nothing(way: str | None) -> None:
    """A large message is no overflow; what no state leads to is as small as can be held, with a finite gradient."""
    (into, message), pair = given(3, 4, 5, 6)
    torch.testing.assert_close(log_pull(into, pair, message + 1000), log_pull(into, pair, message) + 1000)
    into[:, :, 2] = 0.0
    leaves = [into.requires_grad_(), message.requires_grad_()]
    found = log_pull(leaves[0], pair, leaves[1])
    assert bool(found.isfinite().all())
    assert bool((found[:, 2] < -80).all())
    found[:, [0, 1, 3, 4]].sum().backward()
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves)


def test_new_memory_may_hold_anything(way: str | None, hostile_memory: None) -> None:
    tensors, pair = given(4, 3, 5, 9)
    found = with_gradients(lambda into, message: log_pull(into, pair, message), tensors)
    assert not any(bool(one.isnan().any()) for one in found)


@pytest.mark.parametrize("bf16", [False, True])
def test_one_matrix_for_all_messages(bf16: bool) -> None:
    matrix, message = drawn(30, 30).softmax(1), drawn(17, 30, seed=1)

    def simple(matrix: Tensor, message: Tensor) -> Tensor:
        return torch.logsumexp(matrix.log() + message[:, None], 2)

    wanted = with_gradients(simple, [matrix.double(), message.double()])
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = with_gradients(log_pull_shared, [matrix, message])
    assert all(one.dtype == torch.float32 for one in found)
    assert_near(found, wanted, 2e-2 if bf16 else 1e-5)


def test_gradients_of_one_matrix_are_those_of_small_steps() -> None:
    exact = [drawn(4, 4).softmax(1).double().requires_grad_(), drawn(6, 4, seed=1).double().requires_grad_()]
    assert torch.autograd.gradcheck(log_pull_shared, exact)
