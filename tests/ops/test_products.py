import pytest
import torch

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops.products import counts, inner, product, product_with_transpose

from .measures import assert_near, drawn, in_threads, with_gradients

SIZES = [(1, 1), (0, 5), (20, 3), (150, 16), (63, 33), (70, 70), (39, 400)]  # rows, states


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("N", "S"), SIZES)
@pytest.mark.parametrize("more", [0, 19])
def test_counts_are_those_of_float64(way: str | None, N: int, S: int, more: int, bf16: bool) -> None:
    before, after = drawn(N, S), drawn(N, S + more, seed=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = counts(before, after)
    assert found.dtype == torch.float32
    assert_near([found], [before.double().T @ after.double()], 1e-2 if bf16 else 1e-5)


# rows, depth, columns
SHAPES = [
    (1, 1, 1),
    (0, 5, 3),
    (4, 0, 3),
    (4, 3, 0),
    (20, 3, 70),
    (1, 63, 33),
    (193, 33, 16),
    (500, 70, 65),
    (39, 400, 5),
]


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("shape", SHAPES, ids=str)
def test_products_are_those_of_float64(way: str | None, shape: tuple[int, int, int], bf16: bool) -> None:
    N, D, C = shape
    rows, matrix = drawn(N, D), drawn(D, C, seed=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = [product(rows, matrix), product_with_transpose(rows, matrix.T.contiguous())]
    assert all(one.dtype == torch.float32 and one.shape == (N, C) for one in found)
    assert_near(found, [rows.double() @ matrix.double()] * 2, 1e-2 if bf16 else 1e-5)


def test_products_of_float64_are_in_float64() -> None:
    rows, matrix = drawn(9, 4, dtype=torch.float64), drawn(4, 7, seed=1, dtype=torch.float64)
    for found in (product(rows, matrix), product_with_transpose(rows, matrix.T)):
        torch.testing.assert_close(found, torch.einsum("nd,dc->nc", rows, matrix), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bf16", [False, True])
def test_inner_products_and_their_gradients_are_those_of_float64(way: str | None, bf16: bool) -> None:
    tables = [drawn(40, 9), drawn(30, 9, seed=1)]
    wanted = with_gradients(lambda rows, columns: rows @ columns.T, [one.double() for one in tables])
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = with_gradients(inner, tables)
    assert all(one.dtype == torch.float32 for one in found)
    assert_near(found, wanted, 2e-2 if bf16 else 1e-5)


def test_gradients_of_inner_products_are_those_of_small_steps() -> None:
    exact = [drawn(4, 3).double().requires_grad_(), drawn(6, 3, seed=1).double().requires_grad_()]
    assert torch.autograd.gradcheck(inner, exact)


def test_rows_do_not_meet_in_a_product(level: str) -> None:
    """A row without a number leaves the others as they are, and other rows leave a row as it is, to the bit."""
    rows, matrix = drawn(40, 30), drawn(30, 50, seed=1)
    whole = product(rows, matrix)
    rows[7] = torch.nan
    found = product(rows, matrix)
    assert found[7].isnan().all()
    assert torch.equal(found[:7], whole[:7])
    assert torch.equal(found[8:], whole[8:])


def test_float64_is_counted_in_float64() -> None:
    before, after = drawn(9, 4, dtype=torch.float64), drawn(9, 4, seed=1, dtype=torch.float64)
    torch.testing.assert_close(counts(before, after), torch.einsum("ni,nj->ij", before, after), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_same_threads_count_the_same(level: str, bf16: bool) -> None:
    table = torch.rand(1000, 24, generator=torch.Generator().manual_seed(0))

    def everything() -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return [counts(table, table) for _ in range(2)] + [product(table, table[:24]) for _ in range(2)]

    found = in_threads(3, everything)
    assert torch.equal(*found[:2])
    assert torch.equal(*found[2:])
    torch.testing.assert_close(found[0], table.T @ table, rtol=1e-2 if bf16 else 1e-5, atol=0)
    torch.testing.assert_close(found[2], table @ table[:24], rtol=2e-2 if bf16 else 1e-5, atol=0)


def test_new_memory_may_hold_anything(level: str, hostile_memory: None) -> None:
    assert not counts(drawn(0, 5), drawn(0, 5)).any()
    assert counts(drawn(3, 5), drawn(3, 5)).isfinite().all()
    assert not product(drawn(3, 0), drawn(0, 5)).any()
    for bf16 in (False, True):
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            assert product(drawn(3, 5), drawn(5, 7)).isfinite().all()
            assert product_with_transpose(drawn(3, 5), drawn(7, 5)).isfinite().all()


def test_what_does_not_fit_is_refused(level: str) -> None:
    with pytest.raises(TrellisError, match="after_NC has shape"):
        counts(drawn(3, 5), drawn(4, 5))
    with pytest.raises(TrellisError, match="matrix_DC has shape"):
        product(drawn(3, 5), drawn(4, 5))
    with pytest.raises(TrellisError, match="transposed_CD has shape"):
        product_with_transpose(drawn(3, 5), drawn(5, 4))
    with ops.using(None), pytest.raises(RuntimeError):
        counts(drawn(3, 5), drawn(4, 5))
