"""Questions to an HMM about sequences of ids, asked in padded batches; the answers in the order of the sequences."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.fitting.checking import Integers
from trellis.models import HMM

AT_ONCE = 1 << 23  # numbers in the beliefs of a batch: 32 MB of float32, of which a question holds a few


class Batch(NamedTuple):
    """Some of the sequences: their numbers, their ids and how many each has; and where their belief begins."""

    numbers: list[int]
    ids_BT: Tensor
    lengths_B: Tensor
    begin: Tensor | None


def batches(model: HMM, sequences: Sequence[Integers], begin: Tensor | None) -> Iterator[Batch]:
    """All sequences, the longest first; in a batch none is shorter than half of the longest, to pad little."""
    order = sorted(range(len(sequences)), key=lambda number: -len(sequences[number]))
    while order:
        longest = len(sequences[order[0]])
        rows = max(1, AT_ONCE // (max(1, longest) * model.config.states))
        numbers = [number for number in order[:rows] if 2 * len(sequences[number]) >= longest]
        order = order[len(numbers) :]
        ids_BT = torch.zeros(len(numbers), longest, dtype=torch.int64)
        for row, number in enumerate(numbers):
            ids_BT[row, : len(sequences[number])] = torch.from_numpy(sequences[number])
        lengths_B = torch.tensor([len(sequences[number]) for number in numbers])
        yield Batch(numbers, ids_BT, lengths_B, None if begin is None else begin.expand(len(numbers), -1))


@torch.no_grad()
def log_likelihoods(model: HMM, sequences: Sequence[Integers], begin: Tensor | None) -> NDArray[np.float64]:
    """log p(sequence) of each; −inf of an impossible one."""
    found = np.zeros(len(sequences))
    for batch in batches(model, sequences, begin):
        found[batch.numbers] = _scored(model, batch)[0].numpy()
    return found


def _scored(model: HMM, batch: Batch) -> tuple[Tensor, Tensor | None]:
    """log p of each row, B, and the state after it; a long one is read piece by piece, so that memory is bounded."""
    rows, time = batch.ids_BT.shape
    piece = max(1, AT_ONCE // (rows * model.config.states))
    total_B, state = torch.zeros(rows, dtype=torch.float64), batch.begin
    for begin in range(0, time, piece):
        ids_BT = batch.ids_BT[:, begin : begin + piece]
        lengths_B = (batch.lengths_B - begin).clamp(0, ids_BT.shape[1])
        log_prob_BT, state = model.score(ids_BT, state, lengths_B)
        total_B += log_prob_BT.double().sum(1)
    return total_B, state


def paths(model: HMM, sequences: Sequence[Integers], begin: Tensor | None) -> list[Integers]:
    """The most probable state path of each; −1 at every place of an impossible one."""
    found: dict[int, Integers] = {}
    for batch in batches(model, sequences, begin):
        states_BT = model.viterbi(batch.ids_BT, batch.begin, batch.lengths_B).states_BT.numpy()
        for row, number in enumerate(batch.numbers):
            found[number] = states_BT[row, : len(sequences[number])]
    return [found[number] for number in range(len(sequences))]


def posteriors(model: HMM, sequences: Sequence[Integers], begin: Tensor | None) -> list[NDArray[Any]]:
    """p(state | whole sequence) at each place, T×S, of each."""
    found: dict[int, NDArray[Any]] = {}
    for batch in batches(model, sequences, begin):
        smoothed = model.smooth(batch.ids_BT, batch.begin, batch.lengths_B)
        posterior_BTS = smoothed.posterior_BTS
        if model.support is not None:  # what was found is about the states of the words' blocks
            everywhere_BTS = posterior_BTS.new_zeros(*posterior_BTS.shape[:2], model.config.states)
            posterior_BTS = everywhere_BTS.scatter_add_(2, smoothed.states_BTS, posterior_BTS)
        for row, number in enumerate(batch.numbers):
            found[number] = posterior_BTS[row, : len(sequences[number])].numpy()
    return [found[number] for number in range(len(sequences))]


@torch.no_grad()
def most_probable_next(
    model: HMM, sequences: Sequence[Integers], begin: Tensor | None, count: int
) -> list[list[tuple[int, float]]]:
    """The most probable next ids after each, with their probabilities."""
    found: dict[int, list[tuple[int, float]]] = {}
    for batch in batches(model, sequences, begin):
        _, state = _scored(model, batch)
        for number, row_V in zip(batch.numbers, model.next_token(state), strict=True):
            best = row_V.topk(min(count, len(row_V)))
            found[number] = list(zip(best.indices.tolist(), best.values.exp().tolist(), strict=True))
    return [found[number] for number in range(len(sequences))]
