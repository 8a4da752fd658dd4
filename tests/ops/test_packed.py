"""Products with a table that is laid out for them are plain products."""

import pytest
import torch
from torch.testing import assert_close

from trellis.ops import packed
from trellis.ops.packed import Packed


def random(*shape, dtype=torch.float32):
    return torch.rand(shape, generator=torch.Generator().manual_seed(0), dtype=dtype)


@pytest.fixture(params=["laid out", "small", "not to be had"])
def way(request, monkeypatch):
    if request.param != "small":
        monkeypatch.setattr(packed, "SMALLEST", 0)
    if request.param == "not to be had":
        monkeypatch.setattr(packed, "_onednn", object)
    return request.param


@pytest.mark.parametrize("rows", [0, 1, 3, 16, 40])
@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_they_are_those_of_the_plain_form(way, rows, dtype):
    table_VS, rows_NS = random(137, 19, dtype=dtype), random(rows, 19, dtype=dtype)
    found = Packed(table_VS)
    if way == "laid out" and dtype == torch.float32 and torch.backends.mkldnn.is_available():
        assert found._packed is not None
    assert (found._packed is None) == (way != "laid out" or dtype == torch.float64)
    assert_close(found.products(rows_NS), rows_NS @ table_VS.T)


def test_rows_that_do_not_lie_in_a_row(way):
    rows_NS = random(19, 6).T
    assert_close(Packed(random(50, 19)).products(rows_NS), rows_NS @ random(50, 19).T)
    assert_close(Packed(random(19, 50).T).products(rows_NS), rows_NS @ random(19, 50))


def test_zeros_stay_zeros_and_small_numbers_small(way):
    table_VS = torch.tensor([[0.0, 1e-30, 1.0], [0.0, 0.0, 1e-20]]).repeat(40, 1)
    rows_NS = torch.tensor([[1.0, 1e-5, 0.0], [0.5, 0.0, 1e-10]])
    want = rows_NS.double() @ table_VS.double().T
    assert_close(Packed(table_VS).products(rows_NS).double(), want, rtol=1e-6, atol=0)


def test_nothing_has_a_gradient(way):
    found = Packed(random(50, 19).requires_grad_()).products(random(4, 19).requires_grad_())
    assert not found.requires_grad
