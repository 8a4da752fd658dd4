"""Start, transition and emission counted from a text's labels: the optimum of the joint likelihood, in closed form.

Counts go straight into a model's own tables, a piece of the text at a time; nothing larger is ever made.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.models.emissions import ScalarEmission
from trellis.models.starts import ScalarStart
from trellis.models.transitions import HierarchicalScalarTransition, ScalarTransition

PIECE = 1 << 17  # tokens that are counted together


class Labelled(NamedTuple):
    """A text with labels, one state a token and −1 where none is given, cut into windows of so many tokens.

    Or into the documents that end at `ends`, each from its start: then nothing is counted across their ends.
    """

    ids: NDArray[Any]
    labels: NDArray[Any]
    length: int
    ends: NDArray[Any] | None = None

    def begins(self, begin: int, stop: int) -> NDArray[np.int64]:
        """Where in this part of the text a window, or a document, begins."""
        if self.ends is None:
            return np.arange(-(-begin // self.length) * self.length, stop, self.length)
        place_D = np.concatenate([[0], self.ends[:-1]]).astype(np.int64)
        return np.unique(place_D[(place_D >= begin) & (place_D < stop)])  # an empty document begins where the next does


@torch.no_grad()
def begin_with_counts(model: HMM, text: Labelled, smoothing: float) -> None:
    """Set a model of free logits to relative counts, to each of which `smoothing` is added.

    Starts are the labels of first tokens of windows or documents, transitions those of neighbours that both have one,
    emissions those of tokens. A state that was never seen and not smoothed knows nothing: all its outcomes are equal.
    """
    start, transition, emission = model.start, model.transition, model.emission
    if not (
        isinstance(start, ScalarStart)
        and isinstance(transition, ScalarTransition)
        and isinstance(emission, ScalarEmission)
    ):
        raise TrellisError(
            "counting labels sets probabilities one by one: make model.start, model.transition and model.emission "
            "scalar, or leave the counts out."
        )
    tables = start.table, transition.table, emission.table
    for table in tables:
        table.zero_()
    for counted in _cells(model, text):
        for table, cell_N in zip(tables, counted, strict=True):
            _add(table, cell_N)
    for table in tables:
        table.add_(smoothing)
    if isinstance(transition, HierarchicalScalarTransition):
        _to_logits(transition.blocks.copy_(transition.table.view(*transition.blocks.shape, -1).sum(2)))
    _to_logits(start.table)
    _to_logits(transition.table)
    _normalise_emission(model, emission.table)


def _cells(model: HMM, text: Labelled) -> Iterator[tuple[NDArray[Any], ...]]:
    """Pieces of the text, each as places in the flattened tables of start, transition and emission."""
    for begin in range(0, len(text.ids), PIECE):
        label_N = np.asarray(text.labels[begin : begin + PIECE + 1], dtype=np.int64)  # and the neighbour of the last
        if (label_N < 0).all():
            continue
        from_N, to_N = label_N[:-1], label_N[1:]
        both_N, label_N = (from_N >= 0) & (to_N >= 0), label_N[:PIECE]
        if text.ends is not None:
            both_N[text.begins(begin + 1, begin + 1 + len(both_N)) - begin - 1] = False
        first_N = label_N[text.begins(begin, begin + len(label_N)) - begin]
        word_N = np.asarray(text.ids[begin : begin + PIECE], dtype=np.int64)[label_N >= 0]
        yield (
            first_N[first_N >= 0],
            from_N[both_N] * model.config.states + to_N[both_N],
            word_N * model.block_size + _places(model, word_N, label_N[label_N >= 0]),
        )


def _places(model: HMM, word_N: NDArray[Any], label_N: NDArray[Any]) -> NDArray[Any]:
    """Where each label stands among the states that may emit its word."""
    if model.support is None:
        return label_N
    lists_NK = model.support.lists()[torch.from_numpy(word_N)]
    label_N1 = torch.from_numpy(label_N)[:, None]
    place_N1 = torch.searchsorted(lists_NK, label_N1).clamp_max(lists_NK.shape[1] - 1)
    wrong_N = (lists_NK.gather(1, place_N1) != label_N1).squeeze(1)
    if bool(wrong_N.any()):
        word, label = (int(torch.from_numpy(array)[wrong_N][0]) for array in (word_N, label_N))
        raise TrellisError(f"state {label} cannot emit word {word}: label a token with a state of its word's block.")
    return place_N1.squeeze(1).numpy()


def _add(table: Tensor, cell_N: NDArray[Any]) -> None:
    """Count each of these places of the flattened table once."""
    cells_M, counts_M = np.unique(cell_N, return_counts=True)
    table.view(-1)[torch.from_numpy(cells_M)] += torch.from_numpy(counts_M).to(table)


def _to_logits(counts: Tensor) -> None:
    """Make counts the logarithms of their shares in the last dimension, in place."""
    total = counts.sum(-1, keepdim=True)
    counts.div_(total).log_().masked_fill_(total == 0, 0.0)


def _normalise_emission(model: HMM, counts_VK: Tensor) -> None:
    """The same for words of a state, whose places lie in the rows of its words."""
    if model.support is None:
        total_VK = counts_VK.sum(0, keepdim=True)
    else:
        lists_VK = model.support.lists()
        total_S = counts_VK.new_zeros(model.config.states).index_add_(0, lists_VK.flatten(), counts_VK.flatten())
        total_VK = total_S[lists_VK]
    counts_VK.div_(total_VK).log_().masked_fill_(total_VK == 0, 0.0)
