"""Every operation on a device that is not the processor: the same answers, and no tensor left behind."""

from collections.abc import Callable

import pytest
import torch
from torch import Tensor

from trellis.ops.adamw import AdamSteps, adamw_
from trellis.ops.block_columns import Spans, block_columns
from trellis.ops.cells import Cells, scalar_pairs
from trellis.ops.columns import low_rank_columns, scalar_columns
from trellis.ops.distinct import Distinct
from trellis.ops.log_pulls import log_pull
from trellis.ops.log_totals import log_totals
from trellis.ops.moved_totals import moved_log_totals
from trellis.ops.overlapping_columns import (
    Entries,
    normalise_by_state,
    overlapping_log_totals,
    overlapping_logits,
)
from trellis.ops.pairs import Pairs, bilinear_pairs
from trellis.ops.products import counts
from trellis.ops.steps import outer, pull, push

from ..pretend_device import pretend_device
from .measures import assert_near, drawn, with_gradients

IDS = torch.tensor([0, 8, 2, 2])
LISTS_VK = torch.tensor([[0, 3], [1, 3], [4, 2], [3, 4]])
BLOCK_V = torch.tensor([1, 0, 2, 1, 1, 0, 1])


def columns_of_blocks(states: Tensor, words: Tensor, bias: Tensor, block_V: Tensor, words_N: Tensor) -> Tensor:
    spans, column_N = Spans.of(block_V, torch.arange(3, device=block_V.device), words_N)
    return block_columns(states, words, bias, spans).index_select(0, column_N)


def pairs_of_cells(table: Tensor, scale: Tensor, from_FK: Tensor, to_GJ: Tensor, pairs: Tensor, kept: Tensor) -> Tensor:
    return scalar_pairs(table, scale, Cells(Distinct.of(from_FK), to_GJ, Pairs(*pairs), kept, True))


def totals_of_some(words: Tensor, states: Tensor, bias: Tensor, lists_VK: Tensor, some_U: Tensor) -> Tensor:
    return overlapping_log_totals(words, states, bias, Entries.among(lists_VK, some_U, 5))


PAIRS = torch.tensor([[0, 0, 1], [0, 1, 1]])
SOME = torch.tensor([3, 0])
# Of each operation: the function, the tensors it is differentiable by, and its indices.
DIFFERENTIABLE: dict[str, tuple[Callable[..., Tensor], list[Tensor], list[Tensor]]] = {
    "scalar_columns": (scalar_columns, [drawn(9, 3)], [IDS]),
    "low_rank_columns": (low_rank_columns, [drawn(9, 2), drawn(3, 2), drawn(9)], [IDS]),
    "log_totals": (log_totals, [drawn(4, 3), drawn(5, 3), drawn(5)], []),
    "block_columns": (columns_of_blocks, [drawn(3, 4, 2), drawn(7, 2), drawn(7)], [BLOCK_V, torch.tensor([6, 1, 0])]),
    "bilinear_pairs": (
        lambda a, b, c, d, pairs: bilinear_pairs(a, b, c, d, Pairs(*pairs)),
        [drawn(2, 3, 4), drawn(2, 5, 4), drawn(3, 3).abs(), drawn(2, 3)],
        [PAIRS],
    ),
    "bilinear_pairs, normalised": (
        lambda a, b, c, pairs: bilinear_pairs(a, b, c, None, Pairs(*pairs)),
        [drawn(2, 3, 4), drawn(2, 5, 4), drawn(3, 3).abs()],
        [PAIRS],
    ),
    "scalar_pairs": (
        pairs_of_cells,
        [drawn(5, 5), drawn(3, 2).abs()],
        [torch.tensor([[0, 1], [1, 3]]), torch.tensor([[1, 4], [0, 2]]), PAIRS, torch.tensor([0, 1, 2, 4])],
    ),
    "normalise_by_state": (lambda x, lists_VK: normalise_by_state(x, lists_VK, 5), [drawn(4, 2)], [LISTS_VK]),
    "overlapping_logits": (overlapping_logits, [drawn(4, 3), drawn(5, 3), drawn(4)], [LISTS_VK]),
    "overlapping_log_totals": (totals_of_some, [drawn(4, 3), drawn(2, 3), drawn(4)], [LISTS_VK, SOME]),
    "log_pull": (lambda a, b, pair: log_pull(a, pair, b), [drawn(3, 2, 4).abs(), drawn(5, 2)], [torch.arange(5) % 3]),
    "moved_log_totals": (
        moved_log_totals,
        [drawn(2, 3, 4), drawn(6, 4), drawn(5, 4)],
        [torch.tensor([0, 1, 1, 0, 1])],
    ),
    "push": (lambda a, b, pair: push(a, pair, b), [drawn(3, 2, 4), drawn(5, 4)], [torch.tensor([0, 2, 2, 1, 0])]),
    "pull": (lambda a, b, pair: pull(a, pair, b), [drawn(3, 2, 4), drawn(5, 2)], [torch.tensor([0, 2, 2, 1, 0])]),
}


@pytest.mark.parametrize("name", DIFFERENTIABLE)
def test_values_and_gradients_are_those_of_the_processor(name: str) -> None:
    function, inputs, indices = DIFFERENTIABLE[name]
    wanted = with_gradients(lambda *x: function(*x, *indices), [tensor.double() for tensor in inputs])
    with pretend_device() as device:
        there = [index.to(device) for index in indices]
        leaves = [tensor.to(device).requires_grad_() for tensor in inputs]
        value = function(*leaves, *there)
        assert value.device == device
        weight = drawn(*value.shape, seed=1).to(device)
        found = [value, *torch.autograd.grad((value * weight).sum(), leaves)]
        assert_near([tensor.detach().cpu() for tensor in found], wanted)


def test_sums_of_outer_products_are_those_of_the_processor() -> None:
    pair_N, belief, message = torch.tensor([0, 2, 2, 1, 0]), drawn(5, 4), drawn(5, 3)
    wanted = outer(3, pair_N, belief, message), counts(belief, belief)
    with pretend_device() as device:
        there = outer(3, *(tensor.to(device) for tensor in (pair_N, belief, message)))
        both = belief.to(device)
        assert_near([there.cpu(), counts(both, both).cpu()], wanted)


def test_steps_of_adamw_are_those_of_the_processor() -> None:
    tensors = [drawn(4, 3, seed=seed).abs() for seed in range(4)]
    steps = AdamSteps((0.9, 0.95), 0.1, taken=3)
    with pretend_device() as device:
        there = [tensor.to(device) for tensor in tensors]
        before = there[0]._version
        adamw_(*there, steps, 0.1, scale=0.5)
        assert there[0]._version > before
        found = [tensor.cpu() for tensor in there]
    adamw_(*tensors, steps, 0.1, scale=0.5)
    assert_near(found, tensors)
