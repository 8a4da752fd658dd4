import pytest
import torch
from torch import Tensor

from trellis import kernels
from trellis.kernels.columns import BlockWords, columns_backward, columns_forward
from trellis.models import block_columns
from trellis.models.block_columns import Spans

# Blocks of so many words, states in each, width, words of no block.
SHAPES = [
    ([1], 1, 1, 0),
    ([3, 1], 5, 7, 2),
    ([97, 200, 1], 17, 16, 0),
    ([5, 96, 300], 130, 33, 40),
    ([40] * 9, 48, 64, 3),
]


def inputs(sizes: list[int], states: int, width: int, others: int) -> tuple[list[Tensor], Spans]:
    """Vectors of states and words, a bias, and the spans of about half of the words, all shuffled in the vocabulary."""
    generator = torch.Generator().manual_seed(sum(sizes) * states)
    words = sum(sizes)
    which_W = torch.randperm(words + others, generator=generator)[:words]
    wanted_W = torch.rand(words, generator=generator) < 0.5
    wanted_W[0] = True
    wanted = [int(part.sum()) for part in wanted_W.split(sizes)]
    shapes = [(len(sizes), states, width), (words + others, width), (words + others,)]
    given = [torch.randn(shape, generator=generator) for shape in shapes]
    return given, Spans(which_W, sizes, wanted_W.nonzero().squeeze(-1), wanted)


def plain(states_GKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans) -> Tensor:
    """Block by block, all of each."""
    found = []
    for states_KR, words in zip(states_GKR, spans.words_W.split(spans.sizes), strict=True):
        found.append((words_VR[words] @ states_KR.T + bias_V[words, None]).log_softmax(0))
    return torch.cat(found)[spans.asked_N]


def near(found: Tensor, wanted: Tensor) -> None:
    assert (found.double() - wanted).norm() <= 1e-5 * wanted.norm() + 1e-6


@pytest.mark.parametrize("shape", SHAPES)
def test_values_and_gradients_are_those_of_float64(level: str, shape: tuple[list[int], int, int, int]) -> None:
    given, spans = inputs(*shape)
    exact = [tensor.double().requires_grad_() for tensor in given]
    wanted_NK = plain(*exact, spans)
    grad_NK = torch.randn(wanted_NK.shape, generator=torch.Generator().manual_seed(1))
    wanted_NK.backward(grad_NK.double())
    words = BlockWords.of(*spans)
    columns_NK, log_total_GK = columns_forward(*given, words)
    near(columns_NK, wanted_NK.detach())
    for found, tensor in zip(columns_backward(*given, words, log_total_GK, grad_NK), exact, strict=True):
        assert tensor.grad is not None
        near(found, tensor.grad)


def test_large_logits_neither_overflow_nor_vanish(level: str) -> None:
    given, spans = inputs([30, 50], 20, 8, 0)
    given[0] *= 60
    exact = [tensor.double() for tensor in given]
    columns_NK, log_total_GK = columns_forward(*given, BlockWords.of(*spans))
    assert plain(*exact, spans).min() < -500
    near(columns_NK, plain(*exact, spans))
    assert all(
        found.isfinite().all()
        for found in columns_backward(*given, BlockWords.of(*spans), log_total_GK, torch.ones_like(columns_NK))
    )


def test_a_word_that_is_impossible_takes_nothing_and_gets_nothing(level: str) -> None:
    given, spans = inputs([4, 6], 5, 3, 0)
    never = int(spans.words_W[spans.asked_N[0]])
    given[2][never] = -torch.inf
    words = BlockWords.of(*spans)
    columns_NK, log_total_GK = columns_forward(*given, words)
    assert columns_NK[0].tolist() == [-torch.inf] * 5
    near(columns_NK[1:], plain(*(tensor.double() for tensor in given), spans)[1:])
    grad_NK = torch.ones_like(columns_NK)
    grad_NK[0] = 0
    by_states, by_words, by_bias = columns_backward(*given, words, log_total_GK, grad_NK)
    assert all(found.isfinite().all() for found in (by_states, by_words, by_bias))
    assert not by_words[never].any()


def test_results_do_not_depend_on_threads(level: str) -> None:
    given, spans = inputs([40] * 9, 48, 64, 3)
    words, found = BlockWords.of(*spans), []
    before = torch.get_num_threads()
    for threads in (1, 3):
        torch.set_num_threads(threads)
        columns_NK, log_total_GK = columns_forward(*given, words)
        found.append([columns_NK, *columns_backward(*given, words, log_total_GK, columns_NK)])
    torch.set_num_threads(before)
    assert all(torch.equal(one, other) for one, other in zip(*found, strict=True))


def test_new_memory_may_hold_anything(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, spans = inputs([5, 96, 300], 17, 33, 40)
    words = BlockWords.of(*spans)
    columns_forward(
        *(torch.full_like(tensor, torch.nan) for tensor in given), words
    )  # leaves NaN in the scratch memory
    new_empty, empty_like = Tensor.new_empty, torch.empty_like
    monkeypatch.setattr(Tensor, "new_empty", lambda *args, **kwargs: new_empty(*args, **kwargs).fill_(torch.nan))
    monkeypatch.setattr(torch, "empty_like", lambda *args, **kwargs: empty_like(*args, **kwargs).fill_(torch.nan))
    columns_NK, log_total_GK = columns_forward(*given, words)
    found = [columns_NK, log_total_GK, *columns_backward(*given, words, log_total_GK, columns_NK)]
    assert not any(bool(tensor.isnan().any()) for tensor in found)


def test_places_outside_of_their_block_are_refused(level: str) -> None:
    given, spans = inputs([4, 6], 5, 3, 0)
    good = BlockWords.of(*spans)
    for bad in (
        good._replace(which_W=good.which_W + 1),
        good._replace(asked_N=good.asked_N + 9),
        good._replace(start=good.start.flip(0)),
        good._replace(asked_start=torch.zeros_like(good.asked_start)),
    ):
        with pytest.raises(IndexError):
            columns_forward(*given, bad)


def test_models_have_the_same_columns_both_ways(level: str, monkeypatch: pytest.MonkeyPatch) -> None:
    given, spans = inputs([5, 96, 300], 130, 33, 40)
    monkeypatch.setattr(block_columns, "FEW", 1)
    found = []
    for way in (None, level):
        leaves = [tensor.clone().requires_grad_() for tensor in given]
        with kernels.using(way):
            columns_NK = block_columns.block_columns(leaves[0], leaves[1], leaves[2], spans)
            columns_NK.sin().sum().backward()
        found.append([columns_NK.detach(), *(leaf.grad for leaf in leaves if leaf.grad is not None)])
    assert len(found[0]) == len(found[1]) == 4
    for twin, native in zip(*found, strict=True):
        near(native, twin.double())
