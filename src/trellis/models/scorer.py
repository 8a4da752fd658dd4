"""The contract every language model here keeps: ids and a state in, log-probabilities and the next state out."""

from __future__ import annotations

from typing import Protocol

import torch
from torch import Tensor

from trellis.errors import InputError, TrellisError
from trellis.inference.chain import check_lengths

MaybeTensor = Tensor | None


class Scorer(Protocol):
    """A language model; its state is a tensor whose first dimension is the batch."""

    def score(self, ids_BT: Tensor, state: MaybeTensor = None, lengths_B: MaybeTensor = None) -> tuple[Tensor, Tensor]:
        """log p(token | tokens before it), B×T, zero past a row's end; and the state to carry on from."""


def carry(state: Tensor | None, carried: bool, rows: int) -> Tensor | None:
    """The state a batch starts from: that of the rows it goes on with, cut off from their history, or none."""
    return state[:rows].detach() if carried and state is not None else None


def check_ids(ids: Tensor, vocab_size: int) -> None:
    """Refuse ids outside the vocabulary before they index something else."""
    if ids.numel() and (int(ids.min()) < 0 or int(ids.max()) >= vocab_size):
        bad = int(ids[(ids < 0) | (ids >= vocab_size)][0])
        raise InputError(
            f"token id {bad} is outside the model's vocabulary of {vocab_size}: use the tokenizer saved with the model."
        )


def check_answer(log_prob_BT: Tensor) -> None:
    """Refuse an answer that is no number: finite weights may be so large that their products are none."""
    if bool(log_prob_BT.isnan().any()):
        raise TrellisError(
            "a log-probability of this model is not a number, so its weights are damaged: use an older checkpoint, or "
            "train it again at a lower training.lr."
        )


def without_padding(ids_BT: Tensor, lengths_B: Tensor | None) -> Tensor:
    """The ids with zeros past each row's end, where anything may stand."""
    check_lengths(lengths_B, ids_BT.shape[1])
    if lengths_B is None:
        return ids_BT
    return ids_BT.masked_fill(torch.arange(ids_BT.shape[1], device=ids_BT.device) >= lengths_B[:, None], 0)
