"""Native pairs and the PyTorch twin, each against the obvious form in float64."""

import pytest
import torch
from torch import Tensor

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import pairs as module
from trellis.ops.pairs import Pairs, bilinear_pairs

from .measures import assert_near, drawn, in_threads, operations, with_gradients

# (from-lists, to-lists, from-states, to-states, width, pairs)
SIZES = [(1, 1, 1, 1, 1, 1), (3, 2, 16, 16, 32, 5), (4, 5, 33, 17, 30, 9), (2, 3, 12, 64, 65, 6), (3, 3, 64, 48, 96, 7)]
EMPTY = (2, 3, 4, 5, 6, 0)


def problem(F: int, G: int, K: int, J: int, R: int, P: int) -> tuple[list[Tensor], Pairs]:
    """Vectors at both ends, scales and a shift; and pairs, perhaps none of some list."""
    make = torch.Generator().manual_seed(0)
    left, right = torch.randn(F, K, R, generator=make) / R**0.25, torch.randn(G, J, R, generator=make) / R**0.25
    code = torch.randperm(F * G, generator=make)[:P].sort().values
    scale = torch.rand(len(code), K, generator=make) + 0.1
    return [left, right, scale, torch.randn(F, K, generator=make)], Pairs(code // G, code % G)


def plain(left: Tensor, right: Tensor, scale: Tensor, shift: Tensor | None, pairs: Pairs) -> Tensor:
    logits = right[pairs.to_P] @ left[pairs.from_P].transpose(1, 2)
    shares = logits.softmax(1) if shift is None else (logits - shift[pairs.from_P].unsqueeze(1)).exp()
    return shares * scale.unsqueeze(1)


def answers(function: object, given: list[Tensor], pairs: Pairs, normalise: bool, bf16: bool = False) -> list[Tensor]:
    def asked(left: Tensor, right: Tensor, scale: Tensor, *shift: Tensor) -> Tensor:
        with torch.autocast("cpu", torch.bfloat16, enabled=bf16):
            return function(left, right, scale, *(shift or (None,)), pairs)  # type: ignore[operator]

    return with_gradients(asked, given[:3] if normalise else given)


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("normalise", [True, False])
@pytest.mark.parametrize("sizes", [*SIZES, EMPTY])
def test_probabilities_and_gradients_are_those_of_float64(
    way: str | None, sizes: tuple[int, ...], normalise: bool, bf16: bool
) -> None:
    given, pairs = problem(*sizes)
    # Rounded beforehand, what is left is how products are summed: both see the very same numbers.
    if bf16:
        given[:2] = [tensor.bfloat16().float() for tensor in given[:2]]
    wanted = answers(plain, [tensor.double() for tensor in given], pairs, normalise)
    found = answers(bilinear_pairs, given, pairs, normalise, bf16)
    assert len(found) == len(wanted) == (4 if normalise else 5)
    assert all(tensor.dtype == torch.float32 for tensor in found)
    torch.testing.assert_close(found[0].double(), wanted[0], rtol=1e-5, atol=1e-12)
    assert_near(found[1:3], wanted[1:3], 1e-2 if bf16 else 1e-5)
    assert_near(found[3:], wanted[3:])


@pytest.mark.parametrize("normalise", [True, False])
def test_native_pairs_are_those_of_the_twin(level: str, normalise: bool) -> None:
    given, pairs = problem(4, 5, 33, 17, 30, 9)
    native = answers(bilinear_pairs, given, pairs, normalise)
    with ops.using(None):
        assert_near(native, answers(bilinear_pairs, given, pairs, normalise))


@pytest.mark.parametrize("chunk", [1, 100, 1 << 22])
@pytest.mark.parametrize("normalise", [True, False])
def test_gradients_of_the_twin_are_those_of_small_steps(
    normalise: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    given, pairs = problem(3, 2, 3, 4, 5, 5)
    leaves = [tensor.double().requires_grad_() for tensor in (given[:3] if normalise else given)]
    assert torch.autograd.gradcheck(lambda *x: bilinear_pairs(*x, *([None] if normalise else []), pairs), leaves)


def test_bf16_of_any_numbers_is_within_a_hundredth(level: str) -> None:
    given, pairs = problem(3, 3, 32, 32, 64, 6)
    wanted = answers(plain, [tensor.double() for tensor in given], pairs, True)
    found = answers(bilinear_pairs, given, pairs, True, bf16=True)
    assert_near(found, wanted, 1e-2)
    assert not torch.equal(found[0], answers(bilinear_pairs, given, pairs, True)[0])


def test_the_twin_is_in_full_under_bf16_but_for_the_gradient_that_it_adds_up_in_full() -> None:
    given, pairs = problem(3, 3, 32, 32, 64, 6)
    with ops.using(None), torch.autocast("cpu", torch.bfloat16):
        half = answers(bilinear_pairs, given, pairs, True)
    with ops.using(None):
        full = answers(bilinear_pairs, given, pairs, True)
    assert [torch.equal(a, b) for a, b in zip(half, full, strict=True)] == [True, True, False, True]
    assert half[2].dtype == torch.float32
    assert_near(half, full, 1e-2)


def test_impossible_states_are_zero_and_never_nan(way: str | None) -> None:
    (left, right, scale, _), pairs = problem(2, 2, 18, 20, 8, 4)
    left[..., -1], right[..., -1] = 1.0, 0.0
    right[0, 3, -1] = right[1, :, -1] = -torch.inf  # one to-state of the first list, all of the second
    scale[:, 5] = 0.0
    into = bilinear_pairs(left, right, scale, None, pairs)
    wanted = plain(left.double(), right.double(), scale.double(), None, pairs).nan_to_num()
    torch.testing.assert_close(into.double(), wanted, rtol=1e-5, atol=1e-12)
    assert not into[pairs.to_P == 0, 3].any()
    assert not into[pairs.to_P == 1].any()
    assert into[pairs.to_P == 0].any()
    right[..., -1] = 0.0
    found = answers(bilinear_pairs, [left, right, scale], pairs, True)
    assert all(bool(tensor.isfinite().all()) for tensor in found)
    assert not found[1][:, 5].any()


def test_huge_logits_neither_overflow_nor_vanish(way: str | None) -> None:
    (left, right, scale, _), pairs = problem(2, 2, 20, 20, 16, 4)
    into = bilinear_pairs(100 * left, 100 * right, scale, None, pairs)
    wanted = plain(100 * left.double(), 100 * right.double(), scale.double(), None, pairs)
    torch.testing.assert_close(into.double(), wanted, rtol=1e-2, atol=1e-6)  # logits of thousands have 4 decimals
    torch.testing.assert_close(into.sum(1), scale)


def test_nan_shows(way: str | None) -> None:
    (left, right, scale, _), pairs = problem(2, 2, 20, 20, 16, 4)
    left[0, 7, 3] = torch.nan
    into = bilinear_pairs(left, right, scale, None, pairs)
    assert into.isnan().any(1).nonzero().tolist() == [[p, 7] for p in (pairs.from_P == 0).nonzero().flatten().tolist()]


@pytest.mark.parametrize("bf16", [False, True])
def test_threads_change_nothing(level: str, bf16: bool) -> None:
    given, pairs = problem(7, 6, 20, 24, 40, 30)
    alone, together = (
        in_threads(threads, lambda: answers(bilinear_pairs, given, pairs, True, bf16)) for threads in (1, 3)
    )
    assert all(torch.equal(a, b) for a, b in zip(alone, together, strict=True))


@pytest.mark.parametrize("normalise", [True, False])
def test_every_number_of_the_answer_is_written(way: str | None, normalise: bool, hostile_memory: None) -> None:
    given, pairs = problem(4, 5, 33, 17, 30, 3)  # some lists are in no pair
    assert not any(bool(tensor.isnan().any()) for tensor in answers(bilinear_pairs, given, pairs, normalise))


def test_what_does_not_fit_is_refused(way: str | None) -> None:
    (left, right, scale, shift), pairs = problem(2, 2, 4, 4, 4, 3)
    with pytest.raises(TrellisError, match="scale_PK has shape"):
        bilinear_pairs(left, right, scale[:2], None, pairs)
    with pytest.raises(TrellisError, match="shift_FK has shape"):
        bilinear_pairs(left, right, scale, shift[:1], pairs)
    with pytest.raises(TrellisError, match="to_GJR has shape"):
        bilinear_pairs(left, right[..., :3], scale, None, pairs)
    with pytest.raises(TrellisError, match="to_P has shape"):
        bilinear_pairs(left, right, scale, None, pairs._replace(to_P=pairs.to_P[:2]))
    with pytest.raises(IndexError):
        bilinear_pairs(left[:1], right, scale, None, pairs)
    with pytest.raises(RuntimeError):
        bilinear_pairs(left.double(), right, scale, None, pairs)


def test_pairs_in_disorder_are_refused(level: str) -> None:
    pairs = Pairs(torch.tensor([1, 0]), torch.tensor([0, 0]))
    with pytest.raises(TrellisError, match="sort them"):
        bilinear_pairs(drawn(2, 3, 4), drawn(2, 3, 4), torch.ones(2, 3), None, pairs)


@pytest.mark.parametrize("normalise", [True, False])
def test_operations_do_not_grow_with_the_number_of_pairs(normalise: bool) -> None:
    def asked(lists: int, count: int) -> dict[str, int]:
        given, pairs = problem(lists, lists, 6, 5, 4, count)
        function = lambda *x: bilinear_pairs(*x, *([None] if normalise else []), pairs)  # noqa: E731
        with ops.using(None):
            return operations(function, given[:3] if normalise else given)

    few, many = asked(2, 3), asked(12, 100)
    assert few == many
    assert not few["_local_scalar_dense"]  # nothing waits for the device
