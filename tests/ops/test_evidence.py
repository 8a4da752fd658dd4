"""Sums of rows against masks and plain indexing, values and gradients."""

import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.testing import assert_close

from trellis.ops.evidence import row_dots, row_sums


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
