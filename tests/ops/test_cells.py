"""Pairs out of a table of logits, against softmaxes of the whole table: values, gradients, whole and by rows."""

import pytest
import torch
from torch.testing import assert_close

from trellis.errors import TrellisError
from trellis.ops import cells as module
from trellis.ops.cells import Cells, scalar_pairs
from trellis.ops.distinct import Distinct
from trellis.ops.pairs import Pairs

from .measures import operations

STATES = 23
CASES = {  # from-lists, to-lists, pairs
    "disjoint": ([[0, 4, 7], [9, 3, 12]], [[1, 2, 5], [8, 22, 0]], [(0, 0), (0, 1), (1, 1)]),
    "overlapping": ([[0, 4, 7], [4, 7, 9], [7, 4, 1]], [[0, 4, 7], [4, 7, 9]], [(0, 0), (0, 1), (1, 1), (2, 1)]),
    "one pair": ([[5, 6]], [[20, 21, 22, 4, 3]], [(0, 0)]),
    "the same cell twice": ([[5, 6], [6, 5]], [[1, 2]], [(0, 0), (1, 0)]),
    "no pair": ([[5, 6]], [[1, 2]], []),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("chunk", [1, 50, 1 << 20])
def test_pairs_and_gradients_are_those_of_the_whole_table(case, flat, whole, chunk, monkeypatch):
    monkeypatch.setattr(module, "CHUNK", chunk)
    generator = torch.Generator().manual_seed(0)
    from_FK, to_GJ = (torch.tensor(lists) for lists in case[0:2])
    pairs = Pairs(*torch.tensor(case[2], dtype=torch.int64).view(-1, 2).T)
    kept_S = torch.cat([to_GJ.flatten(), torch.tensor([10, 17])]).unique() if flat else None
    table_SS = torch.randn(STATES, STATES, generator=generator, dtype=torch.float64).mul_(3).requires_grad_()
    shape = (len(pairs.from_P), from_FK.shape[1])
    scale_PK = torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()
    weight_PJK = torch.randn(shape[0], to_GJ.shape[1], shape[1], generator=generator, dtype=torch.float64)

    slow = []
    for f, g in case[2]:
        rows_KS, scale_K1 = table_SS[from_FK[f]], scale_PK[len(slow)].unsqueeze(1)
        if kept_S is None:
            probability_KJ = rows_KS[:, to_GJ[g]].softmax(1)
        else:
            dropped_S = torch.ones(STATES, dtype=torch.bool).index_fill(0, kept_S, False)
            probability_KJ = rows_KS.masked_fill(dropped_S, -torch.inf).softmax(1)[:, to_GJ[g]]
        slow.append((probability_KJ * scale_K1).T)
    slow_PJK = torch.stack(slow) if slow else weight_PJK + 0 * table_SS.sum() + 0 * scale_PK.sum()

    fast_PJK = scalar_pairs(table_SS, scale_PK, Cells(Distinct.of(from_FK), to_GJ, pairs, kept_S, whole))
    assert_close(fast_PJK, slow_PJK)
    want_table, want_scale = torch.autograd.grad((slow_PJK * weight_PJK).sum(), (table_SS, scale_PK))
    table, scale = torch.autograd.grad((fast_PJK * weight_PJK).sum(), (table_SS, scale_PK))
    assert table.is_sparse is not whole
    assert_close(table.to_dense(), want_table)
    assert_close(scale, want_scale)


def test_a_scale_of_nothing_passes_nothing_on():
    cells = Cells(
        Distinct.of(torch.tensor([[0, 1]])), torch.tensor([[2, 3]]), Pairs(*torch.zeros(2, 1).long()), None, True
    )
    table_SS, scale_PK = torch.randn(4, 4).requires_grad_(), torch.tensor([[0.0, 1.0]], requires_grad=True)
    into_PJK = scalar_pairs(table_SS, scale_PK, cells)
    assert torch.equal(into_PJK[0, :, 0], torch.zeros(2))
    into_PJK[0, 0].sum().backward()
    assert torch.equal(table_SS.grad[0], torch.zeros(4))
    assert table_SS.grad[1].any()
    assert torch.isfinite(scale_PK.grad).all()


@pytest.mark.parametrize("flat", [False, True])
def test_gradients_are_those_of_small_steps(flat):
    generator = torch.Generator().manual_seed(0)
    table_SS = torch.randn(5, 5, generator=generator, dtype=torch.float64).requires_grad_()
    scale_PK = torch.rand(2, 2, generator=generator, dtype=torch.float64).add_(0.1).requires_grad_()
    pairs, kept_S = Pairs(torch.tensor([0, 1]), torch.tensor([0, 0])), torch.tensor([0, 1, 4]) if flat else None
    cells = Cells(Distinct.of(torch.tensor([[0, 1], [1, 3]])), torch.tensor([[1, 4]]), pairs, kept_S, True)
    assert torch.autograd.gradcheck(lambda *x: scalar_pairs(*x, cells), (table_SS, scale_PK))


@pytest.mark.parametrize("flat", [False, True])
@pytest.mark.parametrize("whole", [False, True])
def test_new_memory_may_hold_anything(flat, whole, hostile_memory):
    pairs, kept_S = Pairs(torch.tensor([0, 1]), torch.tensor([0, 0])), torch.tensor([0, 1, 4]) if flat else None
    cells = Cells(Distinct.of(torch.tensor([[0, 1], [1, 3]])), torch.tensor([[1, 4]]), pairs, kept_S, whole)
    table_SS, scale_PK = torch.randn(5, 5).requires_grad_(), torch.ones(2, 2).requires_grad_()
    into_PJK = scalar_pairs(table_SS, scale_PK, cells)
    found = [into_PJK, *torch.autograd.grad(into_PJK.sum(), (table_SS, scale_PK))]
    assert not any(bool(tensor.to_dense().isnan().any()) for tensor in found)


@pytest.mark.parametrize("flat", [False, True])
def test_operations_do_not_grow_with_the_number_of_pairs(flat):
    def asked(lists):
        from_FK = torch.arange(STATES).repeat(6)[: lists * 6].view(lists, 6)
        pairs = Pairs(*torch.cartesian_prod(torch.arange(lists), torch.arange(lists)).T)
        kept_S = torch.arange(STATES) if flat else None
        cells = Cells(Distinct.of(from_FK), from_FK, pairs, kept_S, True)
        return operations(lambda *x: scalar_pairs(*x, cells), [torch.randn(STATES, STATES), torch.ones(lists**2, 6)])

    few, many = asked(5), asked(15)
    assert few == many
    assert not few["_local_scalar_dense"]  # nothing waits for the device


@pytest.mark.parametrize("shape", [(3, 2), (2, 3), (1, 2), (2,)])
def test_scales_of_other_pairs_are_refused(shape):
    pairs = Pairs(torch.tensor([0, 1]), torch.tensor([0, 0]))
    cells = Cells(Distinct.of(torch.tensor([[0, 1], [1, 3]])), torch.tensor([[1, 4]]), pairs, None, True)
    with pytest.raises(TrellisError, match="scale_PK has shape"):
        scalar_pairs(torch.randn(5, 5), torch.ones(shape), cells)
    with pytest.raises(TrellisError, match=r"to_P has shape \(1,\), not \(2,\)"):
        scalar_pairs(torch.randn(5, 5), torch.ones(2, 2), cells._replace(pairs=pairs._replace(to_P=pairs.to_P[:1])))
