"""The native recursion against the step-by-step one, which float64 makes the truth."""

import pytest
import torch
from torch import Tensor

from trellis import kernels
from trellis.inference.recursion import Evidence, Rows, Walk, walk, walk_back
from trellis.inference.transitions import Shared

# (states, rows, longest, distinct words)
SIZES = [(1, 1, 1, 1), (3, 5, 4, 3), (16, 30, 6, 9), (33, 7, 9, 5), (70, 14, 5, 20), (400, 13, 3, 6)]


def problem(S: int, B: int, T: int, N: int, zeros: float = 0.0) -> tuple[Tensor, Tensor, Tensor, Tensor, Tensor]:
    """First beliefs, transition, log-columns, their index, and lengths of which some are zero."""
    make = torch.Generator().manual_seed(S)
    first, transition = torch.rand(B, S, generator=make), torch.rand(S, S, generator=make) ** 3
    log_columns = 3 * torch.randn(N, S, generator=make)
    log_columns[torch.rand(N, S, generator=make) < zeros] = -torch.inf
    lengths = torch.randint(0, T + 1, (B,), generator=make).sort(descending=True).values
    lengths[0] = T
    index = torch.randint(N, (T, B), generator=make)
    index[torch.arange(T)[:, None] >= lengths] = -7  # past the end: never to be looked at
    return first / first.sum(1, keepdim=True), transition / transition.sum(1, keepdim=True), log_columns, index, lengths


def twin(first: Tensor, transition: Tensor, log_columns: Tensor, index: Tensor, lengths: Tensor) -> Walk[Shared]:
    evidence = Evidence.of(log_columns.double(), index)
    rows = Rows.of(lengths, index.shape[1], index.shape[0])
    return walk(first.double(), Shared(transition.double()), evidence, rows, first.double())


def native(first: Tensor, transition: Tensor, done: Walk[Shared], bf16: bool) -> tuple[Tensor, ...]:
    evidence = done.evidence
    return kernels.walk(first, transition, evidence.likelihood_NS.float(), evidence.log_peak_N.float(),
                        evidence.index_TB, done.rows.running, first, bf16=bf16)  # fmt: skip


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("sizes", SIZES)
def test_the_walks_match_the_twin(level: str, sizes: tuple[int, ...], bf16: bool) -> None:
    asked = problem(*sizes)
    first, transition, _, index, _ = asked
    done = twin(*asked)
    assert done.rows.order is None or done.rows.order.tolist() == list(range(len(first)))
    belief, scale, log_prob, final = native(first, transition, done, bf16)
    tolerance = {"rtol": 1e-2, "atol": 1e-2} if bf16 else {"rtol": 1e-5, "atol": 2e-6}
    torch.testing.assert_close(belief.double(), done.belief_TBS, **tolerance)
    torch.testing.assert_close(scale.double(), done.scale_TB, **tolerance)
    torch.testing.assert_close(log_prob.double(), done.log_prob_TB, **tolerance)
    torch.testing.assert_close(final.double(), done.final_BS, **tolerance)
    make = torch.Generator().manual_seed(1)
    grad, grad_final = torch.randn(index.shape, generator=make), torch.randn(first.shape, generator=make)
    wanted = walk_back(done, grad.double(), grad_final.double())
    found = kernels.walk_back(transition, done.evidence.likelihood_NS.float(), index, done.rows.running, belief, scale,
                              grad, grad_final, bf16=bf16)  # fmt: skip
    for mine, true in zip(found, wanted, strict=True):
        assert float((mine - true).abs().max() / true.abs().max()) < (1e-2 if bf16 else 1e-5)
    counts = kernels.counts(belief[:-1].flatten(0, 1), found[1][1:].flatten(0, 1), bf16=bf16)
    true_counts = done.belief_TBS[:-1].flatten(0, 1).T @ wanted[1][1:].flatten(0, 1)
    assert float((counts - true_counts).abs().max()) <= (1e-2 if bf16 else 1e-5) * float(true_counts.abs().max())


def test_bf16_is_not_float32(level: str) -> None:
    asked = problem(*SIZES[3])
    done = twin(*asked)
    assert not torch.equal(native(*asked[:2], done, True)[0], native(*asked[:2], done, False)[0])


def test_impossible_tokens_are_minus_infinity_and_never_nan(level: str) -> None:
    asked = problem(20, 12, 8, 10, zeros=0.95)
    done = twin(*asked)
    assert done.log_prob_TB.isinf().any()
    belief, scale, log_prob, final = native(*asked[:2], done, False)
    assert torch.equal(log_prob.isinf(), done.log_prob_TB.isinf())
    torch.testing.assert_close(belief.double(), done.belief_TBS, rtol=1e-5, atol=1e-6)
    weight = torch.ones_like(log_prob)
    found = kernels.walk_back(asked[1], done.evidence.likelihood_NS.float(), asked[3], done.rows.running, belief, scale,
                              weight, torch.zeros_like(final))  # fmt: skip
    wanted = walk_back(done, weight.double())
    for mine, true in zip(found, wanted, strict=True):
        assert float((mine - true).abs().max() / true.abs().max()) < 1e-5


@pytest.mark.parametrize("bf16", [False, True])
def test_threads_change_no_walk(level: str, bf16: bool) -> None:
    asked = problem(24, 50, 6, 9)
    done = twin(*asked)
    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = native(*asked[:2], done, bf16)
        torch.set_num_threads(3)
        together = native(*asked[:2], done, bf16)
        table = torch.rand(1000, 24, generator=torch.Generator().manual_seed(0))
        counts = [kernels.counts(table, table, bf16=bf16) for _ in range(2)]
    finally:
        torch.set_num_threads(before)
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))
    assert torch.equal(*counts)
    torch.testing.assert_close(counts[0], table.T @ table, rtol=1e-2 if bf16 else 1e-5, atol=0)


def test_an_index_out_of_reach_is_refused(level: str) -> None:
    asked = problem(4, 3, 2, 3)
    done = twin(*asked)
    asked[3][0, 0] = 3
    with pytest.raises(IndexError):
        native(*asked[:2], done, False)
