import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from trellis.ops.segments import Segments, log_sums

sizes_of = st.lists(st.integers(0, 30), min_size=1, max_size=12)


def start_of(sizes: list[int]) -> torch.Tensor:
    return torch.tensor([0, *sizes]).cumsum(0)


@given(sizes_of, st.sampled_from([None, 1, 3, 100]))
def test_every_entry_stands_in_one_segment_of_its_run(sizes: list[int], longest: int | None) -> None:
    segments = Segments.of(start_of(sizes), sum(sizes), longest)
    entries = segments.entry_Ln[segments.there_Ln]
    assert entries.tolist() == list(range(sum(sizes)))
    owners = segments.owner_L.unsqueeze(1).expand_as(segments.entry_Ln)[segments.there_Ln]
    assert owners.tolist() == [run for run, size in enumerate(sizes) for _ in range(size)]


@given(sizes_of)
def test_segments_of_short_runs_are_at_most_twice_as_many_as_runs_and_their_places_as_entries(sizes: list[int]) -> None:
    segments = Segments.of(start_of(sizes), sum(sizes))
    assert len(segments.owner_L) <= 2 * len(sizes)
    assert segments.entry_Ln.numel() <= 2 * sum(sizes)


@given(st.lists(st.integers(129, 1000), min_size=1, max_size=12))
def test_long_runs_are_cut_finer_and_leave_few_places_empty(sizes: list[int]) -> None:
    segments = Segments.of(start_of(sizes), sum(sizes))
    assert len(segments.owner_L) <= 5 * len(sizes)
    assert segments.entry_Ln.numel() <= 1.25 * sum(sizes) + 4 * len(sizes)
    assert segments.entry_Ln.shape[1] >= 32


@given(sizes_of)
def test_positions_are_where_entries_stand(sizes: list[int]) -> None:
    segments = Segments.of(start_of(sizes), sum(sizes))
    assert torch.equal(segments.positions(sum(sizes)), segments.there_Ln.flatten().nonzero().squeeze(-1))


@given(sizes_of.filter(any))
def test_places_past_the_end_repeat_the_last_entry_of_the_run(sizes: list[int]) -> None:
    segments = Segments.of(start_of(sizes), sum(sizes))
    for owner, entry_n, there_n in zip(segments.owner_L.tolist(), *segments[1:], strict=True):
        if sizes[owner]:
            assert set(entry_n[~there_n].tolist()) <= {sum(sizes[: owner + 1]) - 1}
    assert bool((segments.entry_Ln < sum(sizes)).all())


@given(sizes_of, st.integers(1, 40))
def test_chunks_are_all_segments_in_order(sizes: list[int], step: int) -> None:
    segments = Segments.of(start_of(sizes), sum(sizes))
    chunks = list(segments.chunks(step))
    assert all(len(chunk.owner_L) <= step for chunk in chunks)
    whole = [torch.cat([chunk[i] for chunk in chunks]) if chunks else segments[i] for i in range(3)]
    assert all(torch.equal(a, b) for a, b in zip(whole, segments, strict=True))


def test_rows_are_taken_to_their_places() -> None:
    segments = Segments.of(torch.tensor([0, 3, 3, 4]), 4)
    assert segments.owner_L.tolist() == [0, 0, 2]
    assert segments.take(torch.tensor([5, 6, 7, 8])).tolist() == [[5, 6], [7, 7], [8, 8]]
    assert segments.there_Ln.tolist() == [[True, True], [True, False], [True, False]]
    assert segments.take(torch.ones(4, 3)).shape == (3, 2, 3)


def test_no_runs_and_no_entries_make_no_segments() -> None:
    assert len(Segments.of(torch.tensor([0]), 0).owner_L) == 0
    assert len(Segments.of(torch.tensor([0, 0, 0]), 0).owner_L) == 0


@pytest.mark.parametrize("scale", [1.0, 500.0])
def test_log_sums_are_logsumexp_by_owner(scale: float) -> None:
    log_LK = scale * torch.randn(6, 4, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    log_LK[4, 2] = log_LK[0, 1] = -torch.inf
    owner_L = torch.tensor([0, 0, 3, 0, 1, 3])
    wanted = torch.stack([log_LK[owner_L == owner].logsumexp(0) for owner in range(4)])
    torch.testing.assert_close(log_sums(log_LK, owner_L, 4), wanted)
    assert log_sums(log_LK, owner_L, 4)[2].tolist() == [-torch.inf] * 4
