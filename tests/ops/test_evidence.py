"""Sums of rows against masks and plain indexing, values and gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.ops.evidence import Evidence, SummedEvidence, row_dots, row_sums, scaled


@given(seed=st.integers(0, 99), tables=st.integers(1, 3), tokens=st.integers(0, 30), states=st.integers(1, 4))
def test_rows_are_added_where_there_are_any(seed, tables, tokens, states):
    generator = torch.Generator().manual_seed(seed)
    made = [torch.randn(3 + n, states, generator=generator, dtype=torch.float64) for n in range(tables)]
    places = [torch.randint(-1, 3 + n, (tokens,), generator=generator) for n in range(tables)]
    ours = [table.clone().requires_grad_() for table in made]
    theirs = [table.clone().requires_grad_() for table in made]
    found = row_sums(*zip(ours, places, strict=True))
    wanted = sum(
        (table[place.clamp_min(0)] * (place >= 0)[:, None] for table, place in zip(theirs, places, strict=True)),
        start=torch.zeros(tokens, states, dtype=torch.float64),
    )
    assert_close(found, wanted)
    weight = torch.randn(tokens, states, generator=generator, dtype=torch.float64)
    (found * weight).sum().backward()
    (wanted * weight).sum().backward()
    for one, other in zip(ours, theirs, strict=True):
        assert_close(one.grad, other.grad)


def test_minus_infinity_stays_where_it_belongs():
    table = torch.tensor([[0.0, -torch.inf], [1.0, 2.0]])
    assert row_sums((table, torch.tensor([0, 1, -1]))).tolist() == [[0.0, -torch.inf], [1.0, 2.0], [0.0, 0.0]]


@given(seed=st.integers(0, 99), rows=st.integers(0, 7), table=st.integers(1, 4))
def test_dot_products_with_the_rows_named(seed, rows, table):
    generator = torch.Generator().manual_seed(seed)
    left, right = torch.randn(rows, 3, generator=generator), torch.randn(table, 3, generator=generator)
    places = torch.randint(table, (rows,), generator=generator)
    assert_close(row_dots(left, right, places), (left * right[places]).sum(1))


@given(seed=st.integers(0, 99), rows=st.integers(0, 4))
def test_sums_of_two_tables_are_the_evidence_of_one_of_all_sums(seed, rows):
    generator = torch.Generator().manual_seed(seed)
    log_columns_NS, log_enter_KS = torch.randn(4, 3, generator=generator), torch.randn(3, 3, generator=generator)
    log_columns_NS[1], log_enter_KS[0, 1], log_enter_KS[2] = -torch.inf, -torch.inf, -500.0
    index_TB = torch.randint(4, (2, 5), generator=generator)
    enter_TB = torch.randint(-1, 3, (2, 5), generator=generator)
    found = SummedEvidence(log_columns_NS, index_TB, log_enter_KS, enter_TB)
    log_more_TBS = torch.where(enter_TB[..., None] < 0, 0.0, log_enter_KS[enter_TB])
    log_sums_NS = (log_columns_NS[index_TB] + log_more_TBS).flatten(0, 1)
    wanted = Evidence(*scaled(log_sums_NS), torch.arange(10).view(2, 5))
    some_N = torch.tensor([3, 0, 4])
    for one, other in ((found, wanted), (found.of_rows(some_N), wanted.of_rows(some_N))):
        for mine, theirs in zip(one.at(1, min(rows, 3)), other.at(1, min(rows, 3)), strict=True):
            assert_close(mine, theirs)
