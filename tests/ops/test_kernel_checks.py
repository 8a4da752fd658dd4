"""Kernels look themselves at the tables of indices that they are given: what leads outside is never followed."""

import pytest
import torch
from torch import Tensor

from trellis import ops
from trellis.ops import library, pairs, steps, walks

pytestmark = pytest.mark.skipif(not ops.usable(), reason="there are no native kernels")

FAR = 10**12


def numbers(*values: int) -> Tensor:
    return torch.tensor(values, dtype=torch.int64)


# Two lists of states each way, three pairs: 0→1, 1→0, 1→1.
PAIRS = {
    "from_P": numbers(0, 1, 1), "to_P": numbers(1, 0, 1), "from_start": numbers(0, 1, 3), "to_start": numbers(0, 1, 3),
    "by_to_P": numbers(1, 0, 2),
}  # fmt: skip
BAD_PAIRS = {
    "from far": {"from_P": numbers(0, 1, FAR)},
    "from below": {"from_P": numbers(-1, 1, 1)},
    "to far": {"to_P": numbers(1, 2, 1)},
    "starts that begin late": {"from_start": numbers(1, 1, 3)},
    "starts that end far": {"from_start": numbers(0, 1, FAR)},
    "starts that go back": {"from_start": numbers(0, 4, 3)},
    "starts by to-list far": {"to_start": numbers(0, FAR, 3)},
    "starts by to-list below": {"to_start": numbers(0, -5, 3)},
    "an order far": {"by_to_P": numbers(1, 0, FAR)},
    "an order below": {"by_to_P": numbers(-1, 0, 2)},
}


def pair_call(**changes: Tensor) -> library.Arguments:
    vectors = {"from_FKR": torch.rand(2, 4, 3), "to_GJR": torch.rand(2, 5, 3), "scale_PK": torch.rand(3, 4)}
    made = {"into_PJK": torch.rand(3, 5, 4), "grad_PJK": torch.rand(3, 5, 4)}
    return pairs._PairCall(normalise=True, bf16=False, **vectors, **made, **(PAIRS | changes))


@pytest.mark.parametrize("change", BAD_PAIRS.values(), ids=BAD_PAIRS)
def test_pairs(change: dict[str, Tensor]) -> None:
    results = ("grad_FKR", "grad_GJR", "total_PK")
    library.run("pair_backward", pair_call(), *results)
    with pytest.raises(IndexError):
        library.run("pair_backward", pair_call(**change), *results)
    with pytest.raises(IndexError):
        library.run("pair_forward", pair_call(**change))


ROWS = {"pair_B": numbers(1, 0, 1), "order_B": numbers(1, 0, 2), "start": numbers(0, 1, 3)}
BAD_ROWS = {
    "a pair far": {"pair_B": numbers(1, FAR, 1)},
    "a pair below": {"pair_B": numbers(1, -1, 1)},
    "an order far": {"order_B": numbers(1, 0, 3)},
    "an order below": {"order_B": numbers(1, -1, 2)},
    "starts that begin late": {"start": numbers(1, 1, 3)},
    "starts that end far": {"start": numbers(0, 1, FAR)},
    "starts that go back": {"start": numbers(0, 4, 3)},
}


def push_call(**changes: Tensor) -> library.Arguments:
    return steps._PushCall(P=2, belief_BK=torch.rand(3, 4), message_BJ=torch.rand(3, 5), **(ROWS | changes))


@pytest.mark.parametrize("change", BAD_ROWS.values(), ids=BAD_ROWS)
def test_rows_of_pairs(change: dict[str, Tensor]) -> None:
    library.run("outer", push_call(), "grad_PJK")
    with pytest.raises(IndexError):
        library.run("outer", push_call(**change), "grad_PJK")


BAD_WALKS = {
    "more rows than there are": {"running_T": numbers(3, 2)},
    "fewer than none": {"running_T": numbers(2, -1)},
    "rows that come back": {"running_T": numbers(1, 2)},
    "a token far": {"index_TB": numbers(0, 1, FAR, 0).view(2, 2)},
    "a token below": {"index_TB": numbers(0, -1, 1, 0).view(2, 2)},
}
BAD_SUMS = BAD_WALKS | {
    "what is added far": {"enter_TB": numbers(0, 1, FAR, 0).view(2, 2)},
    "what is added below": {"enter_TB": numbers(0, -2, 1, 0).view(2, 2)},
}


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64], ids=str)
@pytest.mark.parametrize(
    ("change", "summed"),
    [*((change, False) for change in BAD_WALKS.values()), *((change, True) for change in BAD_SUMS.values())],
    ids=[*BAD_WALKS, *(f"{name}, of sums" for name in BAD_SUMS)],
)
def test_walks(change: dict[str, Tensor], summed: bool, dtype: torch.dtype) -> None:
    results = ("belief_TBS", "scale_TB", "log_prob_TB")

    def asked(**changes: Tensor) -> library.Arguments:
        shapes = {"first_BS": (2, 3), "matrix_SS": (3, 3), "likelihood_NS": (2, 3), "log_peak_N": (2,)}
        given = {name: torch.rand(shape, dtype=dtype) for name, shape in shapes.items()}
        given |= {"final_BS": torch.zeros(2, 3, dtype=dtype)}
        if summed:
            given |= {"log_columns_NS": given.pop("likelihood_NS").log(), "log_enter_KS": torch.rand(2, 3, dtype=dtype)}
            changes = {"enter_TB": numbers(0, -1, 1, 0).view(2, 2)} | changes
        tables = {"index_TB": numbers(0, 1, 1, 0).view(2, 2), "running_T": numbers(2, 1)}
        return walks._WALKS[dtype](bf16=False, **given, **(tables | changes))

    library.run(library.named("walk", dtype), asked(), *results)
    with pytest.raises(IndexError):
        library.run(library.named("walk", dtype), asked(**change), *results)
