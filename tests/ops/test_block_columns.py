import pytest
import torch
from torch import Tensor

from trellis import ops
from trellis.errors import TrellisError
from trellis.ops import block_columns as module
from trellis.ops import library
from trellis.ops.block_columns import Spans, block_columns

from .measures import drawn, in_threads, operations, with_gradients

# Blocks of so many words, states in each, width, words of no block.
SHAPES = [
    ([1], 1, 1, 0),
    ([3, 1], 5, 7, 2),
    ([97, 200, 1], 17, 16, 0),
    ([5, 96, 300], 130, 33, 40),
    ([40] * 9, 48, 64, 3),
    ([0, 4, 0, 0, 7, 0], 3, 5, 1),
    ([1] * 20, 6, 4, 0),
]


@pytest.fixture(autouse=True)
def _native_for_few(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "FEW", 0)


def inputs(sizes: list[int], states: int, width: int, others: int) -> tuple[list[Tensor], Spans]:
    """Vectors of states and words, a bias, and the spans of about half of the words, all shuffled in the vocabulary."""
    generator = torch.Generator().manual_seed(sum(sizes) * states)
    words = sum(sizes)
    which_W = torch.randperm(words + others, generator=generator)[:words]
    wanted_W = torch.rand(words, generator=generator) < 0.5
    wanted_W[:1] = True
    shapes = [(len(sizes), states, width), (words + others, width), (words + others,)]
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    start, asked_N = torch.tensor([0, *sizes]).cumsum(0), wanted_W.nonzero().squeeze(-1)
    return given, Spans(which_W, start, asked_N, torch.searchsorted(asked_N, start))


def plain(states_MKR: Tensor, words_VR: Tensor, bias_V: Tensor | None, spans: Spans) -> Tensor:
    """Block by block, all of each."""
    found, bias_V = [], words_VR.new_zeros(len(words_VR)) if bias_V is None else bias_V
    for states_KR, words in zip(states_MKR, spans.words_W.split(spans.start.diff().tolist()), strict=True):
        found.append((words_VR[words] @ states_KR.T + bias_V[words, None]).log_softmax(0))
    return torch.cat(found)[spans.asked_N]


def answers(function: object, given: list[Tensor], spans: Spans) -> list[Tensor]:
    def asked(states: Tensor, words: Tensor, *bias: Tensor) -> Tensor:
        return function(states, words, *(bias or (None,)), spans)  # type: ignore[operator]

    return with_gradients(asked, given)


def near(found: Tensor, wanted: Tensor) -> None:
    assert (found.double() - wanted.double()).norm() <= 1e-5 * wanted.norm() + 1e-6


@pytest.mark.parametrize("bf16", [False, True])
@pytest.mark.parametrize("biased", [False, True])
@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_float64(
    way: str | None, shape: tuple[list[int], int, int, int], biased: bool, bf16: bool
) -> None:
    given, spans = inputs(*shape)
    given = given[: 3 if biased else 2]
    wanted = answers(plain, [tensor.double() for tensor in given], spans)
    with torch.autocast("cpu", torch.bfloat16, enabled=bf16):  # which changes nothing
        found = answers(block_columns, given, spans)
    assert len(found) == len(wanted) == (4 if biased else 3)
    for mine, true in zip(found, wanted, strict=True):
        assert mine.dtype == torch.float32
        near(mine, true)


def test_native_columns_are_those_of_the_twin(level: str) -> None:
    given, spans = inputs([5, 96, 300], 130, 33, 40)
    native = answers(block_columns, given, spans)
    with ops.using(None):
        twin = answers(block_columns, given, spans)
    for mine, other in zip(native, twin, strict=True):
        near(mine, other)


@pytest.mark.parametrize("chunk", [1, 60, 1 << 22])
@pytest.mark.parametrize("biased", [False, True])
def test_gradients_of_the_twin_are_those_of_small_steps(
    biased: bool, chunk: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    given, spans = inputs([0, 7, 1, 3], 3, 2, 1)
    exact = [tensor.double().requires_grad_() for tensor in given[: 3 if biased else 2]]
    function = lambda *x: block_columns(*x, *([] if biased else [None]), spans)  # noqa: E731
    assert torch.autograd.gradcheck(function, exact)
    torch.testing.assert_close(function(*exact), plain(*exact, *([] if biased else [None]), spans))


@pytest.mark.parametrize("sizes", [[3, 5], [0, 0], []])
def test_nothing_asked_for_has_no_columns(way: str | None, sizes: list[int]) -> None:
    given, spans = inputs(sizes, 4, 3, 2)
    spans = spans._replace(asked_N=spans.asked_N[:0], asked_start=torch.zeros_like(spans.asked_start))
    found = answers(block_columns, given, spans)
    assert found[0].shape == (0, 4)
    assert not any(bool(tensor.any()) for tensor in found[1:])


def test_large_logits_neither_overflow_nor_vanish(way: str | None) -> None:
    given, spans = inputs([30, 50], 20, 8, 0)
    given[0] *= 60
    exact = plain(*(tensor.double() for tensor in given), spans)
    found = answers(block_columns, given, spans)
    assert exact.min() < -500
    near(found[0], exact)
    assert all(bool(tensor.isfinite().all()) for tensor in found)


def test_a_word_that_is_impossible_takes_nothing_and_gets_nothing(way: str | None) -> None:
    given, spans = inputs([4, 6], 5, 3, 0)
    never = int(spans.words_W[spans.asked_N[0]])
    given[2][never] = -torch.inf
    leaves = [tensor.requires_grad_() for tensor in given]
    columns_NK = block_columns(*leaves, spans)
    assert columns_NK[0].tolist() == [-torch.inf] * 5
    near(columns_NK[1:], plain(*(tensor.detach().double() for tensor in given), spans)[1:])
    grad_NK = torch.ones_like(columns_NK)
    grad_NK[0] = 0
    columns_NK.backward(grad_NK)
    assert all(bool(leaf.grad.isfinite().all()) for leaf in leaves)
    assert not leaves[1].grad[never].any()


def test_results_do_not_depend_on_threads(level: str) -> None:
    given, spans = inputs([40] * 9, 48, 64, 3)
    alone, together = (in_threads(threads, lambda: answers(block_columns, given, spans)) for threads in (1, 3))
    assert all(torch.equal(one, other) for one, other in zip(alone, together, strict=True))


@pytest.mark.parametrize("chunk", [500, 1 << 22])
def test_new_memory_may_hold_anything(
    way: str | None, chunk: int, hostile_memory: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "CHUNK", chunk)
    given, spans = inputs([5, 96, 0, 300], 17, 33, 40)
    answers(block_columns, [torch.full_like(tensor, torch.nan) for tensor in given], spans)  # and the scratch memory
    assert not any(bool(tensor.isnan().any()) for tensor in answers(block_columns, given, spans))


def test_places_outside_of_their_block_are_refused(level: str) -> None:
    given, good = inputs([4, 6], 5, 3, 0)
    for bad in (
        good._replace(words_W=good.words_W + 1),
        good._replace(asked_N=good.asked_N + 9),
        good._replace(start=good.start.flip(0)),
        good._replace(asked_start=torch.zeros_like(good.asked_start)),
    ):
        with pytest.raises(IndexError):
            block_columns(*given, bad)


def test_starts_that_are_too_few_are_refused(level: str) -> None:
    given, good = inputs([4, 6], 5, 3, 0)
    for bad in (good._replace(start=good.start[1:]), good._replace(asked_start=good.asked_start[1:])):
        with pytest.raises(TrellisError, match="2 blocks have one start more"):
            block_columns(*given, bad)


def test_words_that_do_not_exist_are_refused_by_the_twin() -> None:
    given, good = inputs([4, 6], 5, 3, 0)
    with ops.using(None):
        for bad in (good._replace(words_W=good.words_W + 1), good._replace(asked_N=good.asked_N + 9)):
            with pytest.raises(IndexError):
                block_columns(*given, bad)


def test_blocks_too_few_for_the_threads_are_left_to_pytorch(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    called: list[str] = []
    monkeypatch.setattr(library, "call", lambda name, _: called.append(name))
    monkeypatch.setattr(module, "FEW", 3)

    def native(blocks: int, threads: int) -> int:
        called.clear()
        given, spans = inputs([4] * blocks, 5, 3, 0)
        in_threads(threads, lambda: [block_columns(*given, spans)])
        return len(called)

    assert [native(blocks, threads=4) for blocks in (1, 2, 3)] == [0, 0, 1]
    assert [native(blocks, threads=2) for blocks in (1, 2, 3)] == [0, 1, 1]
    assert native(1, threads=1) == 1


def test_spans_are_the_words_of_blocks_and_where_a_batch_finds_its_own() -> None:
    block_V = torch.tensor([2, 0, 5, 2, 0, 3, 2])
    words_N = torch.tensor([6, 1, 0, 5])
    spans, column_N = Spans.of(block_V, torch.tensor([0, 2, 3]), words_N)
    assert spans.words_W.tolist() == [1, 4, 0, 3, 6, 5]
    assert spans.start.tolist() == [0, 2, 5, 6]
    assert spans.asked_N.tolist() == [0, 2, 4, 5]
    assert spans.asked_start.tolist() == [0, 1, 3, 4]
    assert spans.words_W[spans.asked_N][column_N].tolist() == words_N.tolist()


def test_spans_of_no_words() -> None:
    nothing = torch.empty(0, dtype=torch.int64)
    spans, column_N = Spans.of(torch.tensor([0, 1]), nothing, nothing)
    assert [len(tensor) for tensor in (*spans, column_N)] == [0, 1, 0, 1, 0]


def test_operations_do_not_grow_with_the_number_of_blocks() -> None:
    def asked(sizes: list[int]) -> dict[str, int]:
        given, spans = inputs(sizes, 6, 5, 3)
        with ops.using(None):
            return operations(lambda *x: block_columns(*x, spans), given)

    few, many = asked([10, 3]), asked([3, 1, 40, 7] * 20)
    assert few == many
    assert not few["_local_scalar_dense"]  # nothing waits for the device


def test_memory_stays_within_bounds_where_one_block_is_all() -> None:
    """All words and states in one block: their logits never exist at once."""
    words, states, width = 3000, 3000, 2
    spans, _ = Spans.of(torch.zeros(words, dtype=torch.int64), torch.tensor([0]), torch.arange(0, words, 500))
    largest = Largest()
    with ops.using(None), largest:
        block_columns(drawn(1, states, width), drawn(words, width), None, spans)
    assert largest.numbers <= module.CHUNK


class Largest(torch.utils._python_dispatch.TorchDispatchMode):
    """The size of the largest tensor that is made."""

    numbers = 0

    def __torch_dispatch__(self, func: object, types: object, args: tuple = (), kwargs: dict | None = None) -> object:
        out = func(*args, **(kwargs or {}))
        if isinstance(out, Tensor):
            self.numbers = max(self.numbers, out.numel())
        return out
