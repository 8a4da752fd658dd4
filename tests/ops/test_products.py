import pytest
import torch

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops.products import counts

from .measures import assert_near, drawn, in_threads

SIZES = [(1, 1), (0, 5), (20, 3), (150, 16), (63, 33), (70, 70), (39, 400)]  # rows, states


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize(("N", "S"), SIZES)
def test_counts_are_those_of_float64(way: str | None, N: int, S: int, bf16: bool) -> None:
    before, after = drawn(N, S), drawn(N, S, seed=1)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
        found = counts(before, after)
    assert found.dtype == torch.float32
    assert_near([found], [before.double().T @ after.double()], 1e-2 if bf16 else 1e-5)


def test_float64_is_counted_in_float64() -> None:
    before, after = drawn(9, 4, dtype=torch.float64), drawn(9, 4, seed=1, dtype=torch.float64)
    torch.testing.assert_close(counts(before, after), torch.einsum("ni,nj->ij", before, after), rtol=1e-14, atol=1e-14)


@pytest.mark.parametrize("bf16", [False, True])
def test_the_same_threads_count_the_same(level: str, bf16: bool) -> None:
    table = torch.rand(1000, 24, generator=torch.Generator().manual_seed(0))

    def everything() -> list[torch.Tensor]:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return [counts(table, table) for _ in range(2)]

    found = in_threads(3, everything)
    assert torch.equal(*found)
    torch.testing.assert_close(found[0], table.T @ table, rtol=1e-2 if bf16 else 1e-5, atol=0)


def test_new_memory_may_hold_anything(level: str, hostile_memory: None) -> None:
    assert not counts(drawn(0, 5), drawn(0, 5)).any()
    assert counts(drawn(3, 5), drawn(3, 5)).isfinite().all()


def test_what_does_not_fit_is_refused(level: str) -> None:
    with pytest.raises(TrellisError, match="after_NS has shape"):
        counts(drawn(3, 5), drawn(4, 5))
    with ops.using(None), pytest.raises(RuntimeError):
        counts(drawn(3, 5), drawn(4, 5))
