"""Pairs out of a table of logits, against softmaxes of the whole table: values, gradients, whole and by rows."""

import pytest
import torch
from torch.testing import assert_close

from trellis.models import scalar_pairs as module
from trellis.models.pairs import Pairs
from trellis.models.scalar_pairs import Cells, scalar_pairs
from trellis.models.state_features import Distinct

STATES = 23
CASES = {  # lists left, lists entered, pairs
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
    leave_NK, enter_GJ = (torch.tensor(lists) for lists in case[0:2])
    pairs = Pairs(*torch.tensor(case[2], dtype=torch.int64).view(-1, 2).T)
    kept_S = torch.cat([enter_GJ.flatten(), torch.tensor([10, 17])]).unique() if flat else None
    table_SS = torch.randn(STATES, STATES, generator=generator, dtype=torch.float64).mul_(3).requires_grad_()
    shape = (len(pairs.leave_P), leave_NK.shape[1])
    scale_PK = torch.rand(shape, generator=generator, dtype=torch.float64).requires_grad_()
    weight_PJK = torch.randn(shape[0], enter_GJ.shape[1], shape[1], generator=generator, dtype=torch.float64)

    slow = []
    for n, g in case[2]:
        rows_KS, scale_K1 = table_SS[leave_NK[n]], scale_PK[len(slow)].unsqueeze(1)
        if kept_S is None:
            probability_KJ = rows_KS[:, enter_GJ[g]].softmax(1)
        else:
            dropped_S = torch.ones(STATES, dtype=torch.bool).index_fill(0, kept_S, False)
            probability_KJ = rows_KS.masked_fill(dropped_S, -torch.inf).softmax(1)[:, enter_GJ[g]]
        slow.append((probability_KJ * scale_K1).T)
    slow_PJK = torch.stack(slow) if slow else weight_PJK + 0 * table_SS.sum() + 0 * scale_PK.sum()

    fast_PJK = scalar_pairs(table_SS, scale_PK, Cells(Distinct.of(leave_NK), enter_GJ, pairs, kept_S, whole))
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
