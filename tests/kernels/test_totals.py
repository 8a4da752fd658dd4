import pytest
import torch

from trellis import kernels
from trellis.errors import TrellisError

SIZES = [(1, 1, 1), (5, 200, 7), (130, 97, 32), (33, 300, 64), (300, 64, 33), (70, 193, 40)]  # rows, columns, width


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize(("N", "V", "R"), SIZES)
def test_totals_and_gradients_match_the_twin(level: str, N: int, V: int, R: int, biased: bool, bf16: bool) -> None:
    make = torch.Generator().manual_seed(0)
    rows, columns = torch.randn(N, R, generator=make), torch.randn(V, R, generator=make)
    bias, weight = torch.randn(V, generator=make), torch.randn(N, generator=make)
    if bf16:
        rows, columns = rows.bfloat16().float(), columns.bfloat16().float()
    exact = [x.double().requires_grad_() for x in (rows, columns, bias)]
    wanted = torch.logsumexp(exact[0] @ exact[1].T + (exact[2] if biased else 0.0), 1)
    wanted.backward(weight.double())
    ours = [x.clone().requires_grad_() for x in (rows, columns, bias)]
    found = kernels.log_totals(ours[0], ours[1], ours[2] if biased else None, bf16=bf16)
    found.backward(weight)
    torch.testing.assert_close(found.double(), wanted, rtol=1e-5, atol=1e-5)
    for mine, true in list(zip(ours, exact, strict=True))[: 3 if biased else 2]:
        error = (mine.grad.double() - true.grad).abs().max() / true.grad.abs().max()
        assert float(error) < (1e-2 if bf16 else 1e-5)


def test_impossible_columns_and_rows(level: str) -> None:
    make = torch.Generator().manual_seed(0)
    rows, columns = torch.randn(20, 9, generator=make), torch.randn(110, 9, generator=make)
    bias = torch.where(torch.arange(110) % 3 == 0, -torch.inf, 0.0)
    ours = [x.clone().requires_grad_() for x in (rows, columns, bias)]
    found = kernels.log_totals(*ours)
    torch.testing.assert_close(found, torch.logsumexp(rows @ columns.T + bias, 1))
    found.sum().backward()
    assert all(bool(x.grad.isfinite().all()) for x in ours)
    assert not ours[1].grad[::3].any()
    assert ours[1].grad[1].all()
    nothing = [x.clone().requires_grad_() for x in (rows, columns, torch.full_like(bias, -torch.inf))]
    found = kernels.log_totals(*nothing)
    assert found.tolist() == [-torch.inf] * 20
    found.sum().backward()
    assert not any(bool(x.grad.any()) for x in nothing)


def test_huge_logits(level: str) -> None:
    make = torch.Generator().manual_seed(0)
    rows, columns = 100 * torch.randn(20, 9, generator=make), 100 * torch.randn(110, 9, generator=make)
    torch.testing.assert_close(kernels.log_totals(rows, columns), torch.logsumexp(rows @ columns.T, 1))


@pytest.mark.parametrize("bf16", [False, True])
def test_threads_change_rounding_alone(level: str, bf16: bool) -> None:
    make = torch.Generator().manual_seed(0)
    rows, columns = torch.randn(150, 32, generator=make), torch.randn(500, 32, generator=make)

    def everything(threads: int) -> list[torch.Tensor]:
        torch.set_num_threads(threads)
        ours = [rows.clone().requires_grad_(), columns.clone().requires_grad_()]
        found = kernels.log_totals(*ours, bf16=bf16)
        found.sum().backward()
        return [found.detach(), ours[0].grad, ours[1].grad]

    before = torch.get_num_threads()
    try:
        alone, together, again = everything(1), everything(3), everything(3)
    finally:
        torch.set_num_threads(before)
    torch.testing.assert_close(alone, together, rtol=1e-5, atol=1e-5)
    assert all(torch.equal(a, b) for a, b in zip(together, again, strict=True))


def test_what_does_not_fit_is_refused(level: str) -> None:
    with pytest.raises(TrellisError, match="share their width"):
        kernels.log_totals(torch.zeros(2, 3), torch.zeros(2, 4))
    with pytest.raises(TrellisError, match="a bias has one number a column"):
        kernels.log_totals(torch.zeros(2, 3), torch.zeros(2, 3), torch.zeros(3))
