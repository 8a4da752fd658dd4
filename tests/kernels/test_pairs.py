"""Each kernel against its obvious PyTorch twin in float64."""

import pytest
import torch
from torch import Tensor

from trellis import kernels
from trellis.errors import TrellisError
from trellis.kernels.library import exponentials

# (from-lists, to-lists, from-states, to-states, width, pairs)
SIZES = [(1, 1, 1, 1, 1, 1), (3, 2, 16, 16, 32, 5), (4, 5, 33, 17, 30, 9), (2, 3, 12, 64, 65, 6), (3, 3, 64, 48, 96, 7)]


def problem(
    F: int, G: int, K: int, J: int, R: int, P: int, seed: int = 0
) -> tuple[Tensor, Tensor, kernels.Pairs, Tensor, Tensor]:
    """Lists, the pairs between them (some list perhaps in none), scales with zeros among them, and a shift."""
    make = torch.Generator().manual_seed(seed)
    left, right = torch.randn(F, K, R, generator=make) / R**0.25, torch.randn(G, J, R, generator=make) / R**0.25
    code = torch.randperm(F * G, generator=make)[:P].sort().values
    scale = torch.rand(len(code), K, generator=make) + 0.1
    return left, right, kernels.Pairs.of(code // G, code % G, F, G), scale, torch.randn(F, K, generator=make)


def twin(left: Tensor, right: Tensor, pairs: kernels.Pairs, scale: Tensor, shift: Tensor | None) -> Tensor:
    logits = right[pairs.to_P] @ left[pairs.from_P].transpose(1, 2)
    shares = logits.softmax(1) if shift is None else (logits - shift[pairs.from_P].unsqueeze(1)).exp()
    return shares * scale.unsqueeze(1)


def assert_close(found: Tensor, wanted: Tensor, bf16: bool) -> None:
    """Within 1e-5 (1e-2) of the largest entry, as a sum of products is."""
    assert found.dtype == torch.float32
    wanted = wanted.detach()
    torch.testing.assert_close(
        found.double(), wanted.double(), rtol=0, atol=(1e-2 if bf16 else 1e-5) * max(1e-30, float(wanted.abs().max()))
    )


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("sizes", SIZES)
def test_probabilities_and_gradients_match_the_twin(
    level: str, sizes: tuple[int, ...], normalise: bool, bf16: bool
) -> None:
    left, right, pairs, scale, shift = problem(*sizes)
    # Rounded beforehand, what is left is how the kernel sums: the twin sees the very same numbers.
    if bf16:
        left, right = left.bfloat16().float(), right.bfloat16().float()
    exact = [x.double().requires_grad_() for x in (left, right, scale, shift)]
    wanted = twin(exact[0], exact[1], pairs, exact[2], None if normalise else exact[3])
    into = kernels.pair_forward(left, right, pairs, scale, None if normalise else shift, bf16=bf16)
    torch.testing.assert_close(into.double(), wanted, rtol=1e-5, atol=1e-12)
    gradient = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    wanted.backward(gradient.double())
    grad_left, grad_right, sums = kernels.pair_backward(
        left, right, pairs, scale, into, gradient, normalised=normalise, bf16=bf16
    )
    assert_close(grad_left, exact[0].grad, bf16)
    assert_close(grad_right, exact[1].grad, bf16)
    assert_close(sums / scale, exact[2].grad, False)
    if not normalise:
        assert_close(torch.zeros_like(shift).index_add_(0, pairs.from_P, -sums), exact[3].grad, False)


def test_bf16_of_any_numbers_is_within_a_hundredth(level: str) -> None:
    left, right, pairs, scale, _ = problem(3, 3, 32, 32, 64, 6)
    exact = [x.double().requires_grad_() for x in (left, right)]
    wanted = twin(exact[0], exact[1], pairs, scale.double(), None)
    into = kernels.pair_forward(left, right, pairs, scale, bf16=True)
    assert_close(into, wanted, True)
    assert not torch.equal(into, kernels.pair_forward(left, right, pairs, scale))
    gradient = torch.randn(wanted.shape, generator=torch.Generator().manual_seed(1))
    wanted.backward(gradient.double())
    grad_left, grad_right, _ = kernels.pair_backward(left, right, pairs, scale, into, gradient, bf16=True)
    assert_close(grad_left, exact[0].grad, True)
    assert_close(grad_right, exact[1].grad, True)


def test_impossible_states_are_zero_and_never_nan(level: str) -> None:
    left, right, pairs, scale, _ = problem(2, 2, 18, 20, 8, 4)
    left[..., -1], right[..., -1] = 1.0, 0.0
    right[0, 3, -1] = right[1, :, -1] = -torch.inf  # one to-state of the first list, all of the second
    scale[:, 5] = 0.0
    into = kernels.pair_forward(left, right, pairs, scale)
    wanted = twin(left.double(), right.double(), pairs, scale.double(), None).nan_to_num()
    torch.testing.assert_close(into.double(), wanted, rtol=1e-5, atol=1e-12)
    assert not into[pairs.to_P == 0, 3].any()
    assert not into[pairs.to_P == 1].any()
    assert into[pairs.to_P == 0].any()
    right[..., -1] = 0.0
    gradient = torch.randn(into.shape, generator=torch.Generator().manual_seed(1))
    found = kernels.pair_backward(left, right, pairs, scale, into, gradient)
    assert all(bool(x.isfinite().all()) for x in found)
    assert not found[0][:, 5].any()


def test_huge_logits_neither_overflow_nor_vanish(level: str) -> None:
    left, right, pairs, scale, _ = problem(2, 2, 20, 20, 16, 4)
    into = kernels.pair_forward(100 * left, 100 * right, pairs, scale)
    wanted = twin(100 * left.double(), 100 * right.double(), pairs, scale.double(), None)
    torch.testing.assert_close(into.double(), wanted, rtol=1e-2, atol=1e-6)  # logits of thousands have 4 decimals
    torch.testing.assert_close(into.sum(1), scale)


def test_nan_shows(level: str) -> None:
    left, right, pairs, scale, _ = problem(2, 2, 20, 20, 16, 4)
    left[0, 7, 3] = torch.nan
    into = kernels.pair_forward(left, right, pairs, scale)
    assert into.isnan().any(1).nonzero().tolist() == [[p, 7] for p in (pairs.from_P == 0).nonzero().flatten().tolist()]


@pytest.mark.parametrize("bf16", [False, True])
def test_threads_change_nothing(level: str, bf16: bool) -> None:
    left, right, pairs, scale, _ = problem(7, 6, 20, 24, 40, 30)
    gradient = torch.randn(30, 24, 20, generator=torch.Generator().manual_seed(1))

    def everything() -> list[Tensor]:
        into = kernels.pair_forward(left, right, pairs, scale, bf16=bf16)
        pair_N = torch.arange(90) % 30
        moved = kernels.push(into, pair_N, left.flatten(0, 1)[:90, :20])
        return [
            into, *kernels.pair_backward(left, right, pairs, scale, into, gradient, bf16=bf16), moved,
            kernels.pull(into, pair_N, moved), kernels.outer(30, pair_N, left.flatten(0, 1)[:90, :20], moved),
        ]  # fmt: skip

    before = torch.get_num_threads()
    try:
        torch.set_num_threads(1)
        alone = everything()
        torch.set_num_threads(3)
        assert all(torch.equal(a, b) for a, b in zip(alone, everything(), strict=True))
    finally:
        torch.set_num_threads(before)


@pytest.mark.parametrize(("P", "K", "J", "B"), [(1, 1, 1, 1), (5, 16, 16, 9), (4, 130, 33, 11), (3, 31, 65, 2)])
def test_pushes_match_the_twin(level: str, P: int, K: int, J: int, B: int) -> None:
    make = torch.Generator().manual_seed(0)
    into, belief = torch.rand(P, J, K, generator=make), torch.rand(B, K, generator=make)
    message, pair = torch.randn(B, J, generator=make), torch.randint(P, (B,), generator=make)
    picked = into.double()[pair]
    assert_close(kernels.push(into, pair, belief), torch.einsum("bjk,bk->bj", picked, belief.double()), False)
    assert_close(kernels.pull(into, pair, message), torch.einsum("bjk,bj->bk", picked, message.double()), False)
    counts = torch.einsum("bj,bk->bjk", message.double(), belief.double())
    wanted = torch.zeros(P, J, K, dtype=torch.float64).index_add_(0, pair, counts)
    assert_close(kernels.outer(P, pair, belief, message), wanted, False)


def test_every_number_of_the_answer_is_written(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    left, right, pairs, scale, _ = problem(4, 5, 33, 17, 30, 3)  # some lists are in no pair

    def hostile(make: object) -> object:
        return lambda *args, **kwargs: make(*args, **kwargs).fill_(torch.nan)  # type: ignore[operator]

    monkeypatch.setattr(torch, "empty_like", hostile(torch.empty_like))
    monkeypatch.setattr(torch.Tensor, "new_empty", hostile(torch.Tensor.new_empty))
    into = kernels.pair_forward(left, right, pairs, scale)
    pair = torch.tensor([2, 0])
    found = [
        into, *kernels.pair_backward(left, right, pairs, scale, into, into),
        kernels.push(into, pair, scale[:2]), kernels.pull(into, pair, right[0, :2, :17]),
        kernels.outer(3, pair, scale[:2], right[0, :2, :17]),
    ]  # fmt: skip
    assert not any(bool(x.isnan().any()) for x in found)


def test_exponentials_are_within_two_units_in_the_last_place(level: str) -> None:
    x = torch.cat([torch.linspace(-87.3, 88.7, 200_001), torch.linspace(-1, 1, 200_000)])
    exact = x.double().exp()
    unit = torch.finfo(torch.float32).eps * 2 ** exact.log2().floor()
    assert float(((exponentials(x).double() - exact) / unit).abs().max()) < 2
    edges = exponentials(torch.tensor([-torch.inf, -1e30, -110.0, 0.0, 89.0, 1e30, torch.inf, torch.nan]))
    assert edges[:7].tolist() == [0.0, 0.0, 0.0, 1.0, torch.inf, torch.inf, torch.inf]
    assert edges[7].isnan()


def test_what_does_not_fit_is_refused(level: str) -> None:
    left, right, pairs, scale, _ = problem(2, 2, 4, 4, 4, 3)
    with pytest.raises(TrellisError, match="scale_PK has shape"):
        kernels.pair_forward(left, right, pairs, scale[:2])
    with pytest.raises(TrellisError, match="not of 1 and 2 lists"):
        kernels.pair_forward(left[:1], right, pairs, scale)
    with pytest.raises(TrellisError, match="float64"):
        kernels.pair_forward(left.double(), right, pairs, scale)
    with pytest.raises(IndexError):
        kernels.push(torch.rand(3, 4, 4), torch.tensor([3]), torch.rand(1, 4))
    with pytest.raises(TrellisError, match="sort them"):
        kernels.Pairs.of(torch.tensor([1, 0]), torch.tensor([0, 0]), 2, 2)
