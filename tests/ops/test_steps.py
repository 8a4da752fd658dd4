import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import steps
from trellis.ops.steps import outer, pull, push

from .measures import Operations, assert_near, drawn, in_threads

SIZES = [(1, 1, 1, 1), (5, 16, 16, 9), (4, 130, 33, 11), (3, 31, 65, 2), (3, 8, 8, 0), (2, 5, 4, 40)]  # P, K, J, B


def problem(P: int, K: int, J: int, B: int, dtype: torch.dtype = torch.float32) -> tuple[Tensor, ...]:
    """Matrices, the pair of each row, beliefs and messages."""
    make = torch.Generator().manual_seed(0)
    into, belief = torch.rand(P, J, K, generator=make), torch.rand(B, K, generator=make)
    message, pair = torch.randn(B, J, generator=make), torch.randint(P, (B,), generator=make)
    return into.to(dtype), pair, belief.to(dtype), message.to(dtype)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_steps_match_the_sums_they_are(way: str | None, sizes: tuple[int, ...], bf16: bool) -> None:
    into, pair, belief, message = problem(*sizes)
    picked = into.double()[pair]
    counts = torch.einsum("bj,bk->bjk", message.double(), belief.double())
    wanted = [
        torch.einsum("bjk,bk->bj", picked, belief.double()),
        torch.einsum("bjk,bj->bk", picked, message.double()),
        torch.zeros_like(into, dtype=torch.float64).index_add_(0, pair, counts),
    ]
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):  # which changes nothing
        found = [push(into, pair, belief), pull(into, pair, message), outer(len(into), pair, belief, message)]
    assert all(tensor.dtype == torch.float32 for tensor in found)
    assert_near(found, wanted)


@pytest.mark.parametrize("chunk", [1, 40, 500])
def test_chunks_of_memory_change_nothing(chunk: int, monkeypatch: pytest.MonkeyPatch) -> None:
    into, pair, belief, message = problem(4, 3, 5, 30, torch.float64)
    wanted = push(into, pair, belief), pull(into, pair, message), outer(4, pair, belief, message)
    monkeypatch.setattr(steps, "CHUNK", chunk)
    found = push(into, pair, belief), pull(into, pair, message), outer(4, pair, belief, message)
    torch.testing.assert_close(found, wanted, rtol=1e-13, atol=1e-13)


@given(st.integers(1, 5), st.integers(0, 9), st.integers(1, 4), st.integers(1, 4))
def test_pull_is_the_transpose_of_push_and_outer_the_gradient(P: int, B: int, K: int, J: int) -> None:
    into, pair, belief, message = problem(P, K, J, B, torch.float64)
    there, back = push(into, pair, belief), pull(into, pair, message)
    torch.testing.assert_close((there * message).sum(-1), (belief * back).sum(-1))
    matrix = into.clone().requires_grad_()
    (truth,) = torch.autograd.grad((push(matrix, pair, belief) * message).sum(), matrix)
    torch.testing.assert_close(outer(P, pair, belief, message), truth)


def test_the_twins_of_push_and_pull_are_differentiable() -> None:
    into, pair, belief, message = problem(3, 4, 2, 5, torch.float64)
    assert torch.autograd.gradcheck(lambda *x: push(x[0], pair, x[1]), [into.requires_grad_(), belief.requires_grad_()])
    assert torch.autograd.gradcheck(lambda *x: pull(x[0], pair, x[1]), [into, message.requires_grad_()])


def test_threads_change_nothing(level: str) -> None:
    into, belief = torch.rand(30, 24, 20, generator=torch.Generator().manual_seed(0)), drawn(90, 20)
    pair = torch.arange(90) % 30

    def everything() -> list[Tensor]:
        moved = push(into, pair, belief)
        return [moved, pull(into, pair, moved), outer(30, pair, belief, moved)]

    alone, together = in_threads(1, everything), in_threads(3, everything)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


def test_every_number_of_the_answer_is_written(way: str | None, hostile_memory: None) -> None:
    into, belief, message = drawn(3, 17, 33), drawn(2, 33), drawn(2, 17)
    pair = torch.tensor([2, 0])
    found = [push(into, pair, belief), pull(into, pair, message), outer(3, pair, belief, message)]
    assert not any(bool(tensor.isnan().any()) for tensor in found)
    assert not found[2][1].any()  # crossed by no row


def test_no_pair_has_no_gradient_though_padding_names_one(way: str | None) -> None:
    for pair in (torch.zeros(8, dtype=torch.int64), torch.full((8,), -1000)):
        assert outer(0, pair, torch.zeros(8, 2), torch.zeros(8, 3)).shape == (0, 3, 2)


def test_what_does_not_fit_is_refused(way: str | None) -> None:
    into, pair = torch.rand(3, 4, 5), torch.tensor([1, 2])
    with pytest.raises(IndexError):
        push(into, torch.tensor([3]), torch.rand(1, 5))
    for number in (3, -1):
        with pytest.raises(IndexError):
            outer(3, torch.tensor([0, number]), torch.rand(2, 5), torch.rand(2, 4))
    with pytest.raises(TrellisError, match=r"belief_BK has shape \(2, 4\), not \(2, 5\)"):
        push(into, pair, torch.rand(2, 4))
    with pytest.raises(TrellisError, match=r"message_BJ has shape \(1, 4\), not \(2, 4\)"):
        pull(into, pair, torch.rand(1, 4))
    with pytest.raises(TrellisError, match=r"belief_NK has shape \(3, 5\), not \(2, 5\)"):
        outer(3, pair, torch.rand(3, 5), torch.rand(2, 4))


def test_operations_do_not_grow_with_the_number_of_pairs() -> None:
    def asked(pairs: int) -> dict[str, int]:
        into, pair, belief, message = problem(pairs, 6, 5, 80)
        with ops.using(None), Operations() as mode:
            push(into, pair, belief), pull(into, pair, message), outer(pairs, pair, belief, message)
        return mode.names

    few, many = asked(2), asked(60)
    assert few == many
    assert not few["_local_scalar_dense"]  # nothing waits for the device
