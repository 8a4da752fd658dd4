import pytest
import torch
from torch import Tensor

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import log_totals as module
from trellis.ops.log_totals import log_totals, totals_backward, totals_forward

from .measures import assert_near, drawn, in_threads, with_gradients

# rows, columns, width
SIZES = [
    (1, 1, 1),
    (5, 200, 7),
    (130, 97, 32),
    (33, 300, 64),
    (300, 64, 33),
    (70, 193, 40),
    (0, 5, 3),
    (4, 5, 0),
    (3, 2100, 4),
]


def plain(rows: Tensor, columns: Tensor, bias: Tensor | None = None) -> Tensor:
    return torch.logsumexp(rows @ columns.T + (0.0 if bias is None else bias), 1)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("N", "V", "R"), SIZES)
def test_totals_and_gradients_are_those_of_float64(
    way: str | None, N: int, V: int, R: int, biased: bool, bf16: bool
) -> None:
    given = [drawn(N, R), drawn(V, R, seed=1), drawn(V, seed=2)][: 3 if biased else 2]
    if bf16:
        given[:2] = [tensor.bfloat16().float() for tensor in given[:2]]
    wanted = with_gradients(plain, [tensor.double() for tensor in given])
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = with_gradients(log_totals, given)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=1e-5)
    assert_near(found[1:], wanted[1:], 1e-2 if bf16 else 1e-5)


@pytest.mark.parametrize("biased", [False, True])
def test_native_totals_are_those_of_the_twin(level: str, biased: bool) -> None:
    given = [drawn(70, 40), drawn(193, 40, seed=1), drawn(193, seed=2)][: 3 if biased else 2]
    native = with_gradients(log_totals, given)
    with ops.using(None):
        assert_near(native, with_gradients(log_totals, given))


@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("columns", "rows"), [(1, 1), (3, 2), (7, 5), (1024, 4096)])
def test_gradients_of_the_twin_are_those_of_small_steps_in_slices_of_any_size(
    biased: bool, columns: int, rows: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "COLUMNS", columns)
    monkeypatch.setattr(module, "ROWS", rows)
    given = [drawn(5, 3), drawn(7, 3, seed=1), drawn(7, seed=2)][: 3 if biased else 2]
    exact = [tensor.double().requires_grad_() for tensor in given]
    assert torch.autograd.gradcheck(log_totals, exact)
    torch.testing.assert_close(log_totals(*exact), plain(*exact))


def test_impossible_columns_and_rows(way: str | None) -> None:
    rows, columns = drawn(20, 9), drawn(110, 9, seed=1)
    bias = torch.where(torch.arange(110) % 3 == 0, -torch.inf, 0.0)
    ours = [x.clone().requires_grad_() for x in (rows, columns, bias)]
    found = log_totals(*ours)
    torch.testing.assert_close(found, torch.logsumexp(rows @ columns.T + bias, 1))
    found.sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in ours)
    assert not ours[1].grad[::3].any()
    assert ours[1].grad[1].all()
    nothing = [x.clone().requires_grad_() for x in (rows, columns, torch.full_like(bias, -torch.inf))]
    found = log_totals(*nothing)
    assert found.tolist() == [-torch.inf] * 20
    found.sum().backward()
    assert not any(bool(x.grad.any()) for x in nothing)


def test_huge_logits(way: str | None) -> None:
    rows, columns = 100 * drawn(20, 9), 100 * drawn(110, 9, seed=1)
    torch.testing.assert_close(log_totals(rows, columns), torch.logsumexp(rows @ columns.T, 1))


@pytest.mark.parametrize("bf16", [False, True])
def test_threads_change_rounding_alone(level: str, bf16: bool) -> None:
    given = [drawn(150, 32), drawn(500, 32, seed=1)]

    def everything() -> list[Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return with_gradients(log_totals, given)

    alone, together, again = (in_threads(threads, everything) for threads in (1, 3, 3))
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(together, again, strict=True))


@pytest.mark.parametrize("biased", [False, True])
def test_new_memory_may_hold_anything(way: str | None, biased: bool, hostile_memory: None) -> None:
    given = [drawn(33, 9), drawn(150, 9, seed=1), drawn(150, seed=2)][: 3 if biased else 2]
    with_gradients(log_totals, [torch.full_like(tensor, torch.nan) for tensor in given])  # and the scratch memory
    assert not any(bool(tensor.isnan().any()) for tensor in with_gradients(log_totals, given))


def test_the_plain_functions_are_those_of_the_operation(way: str | None) -> None:
    rows, columns, bias, weight = drawn(6, 3), drawn(8, 3, seed=1), drawn(8, seed=2), drawn(6, seed=3)
    log_total = totals_forward(rows, columns, bias)
    assert torch.equal(log_total, log_totals(rows, columns, bias))
    leaves = [tensor.clone().requires_grad_() for tensor in (rows, columns, bias)]
    log_totals(*leaves).backward(weight)
    found = totals_backward(rows, columns, bias, log_total, weight)
    assert all(torch.equal(mine, leaf.grad) for mine, leaf in zip(found, leaves, strict=True))
    assert totals_backward(rows, columns, None, log_total, weight)[2] is None


def test_what_does_not_fit_is_refused(way: str | None) -> None:
    with pytest.raises(TrellisError, match="columns_VR has shape"):
        log_totals(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(TrellisError, match="bias_V has shape"):
        log_totals(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3))


def test_what_does_not_fit_is_refused_on_the_way_back_too(way: str | None) -> None:
    rows, columns, bias, number = torch.zeros(2, 3), torch.zeros(4, 3), torch.zeros(4), torch.zeros(2)
    with pytest.raises(TrellisError, match="columns_VR has shape"):
        totals_backward(rows, columns[:, :2], bias, number, number)
    with pytest.raises(TrellisError, match="bias_V has shape"):
        totals_backward(rows, columns, bias[:3], number, number)
    for numbers in ((number[:1], number), (number, number[:1]), (number, torch.zeros(2, 1))):
        with pytest.raises(TrellisError, match=r"(log_total|grad)_N has shape"):
            totals_backward(rows, columns, bias, *numbers)
