"""The loss that transformers expects of a causal model, from the model's own score, so that it has exact gradients."""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from trellis.errors import InputError
from trellis.hf.prediction import Rows
from trellis.models import Model

IGNORED = -100  # the label of a token that does not count


def counted_labels(labels_BT: Tensor, ids_BT: Tensor, there_BT: Tensor) -> Tensor:
    """Which tokens the loss counts: those that are there and have labels, which must be the tokens themselves.

    The first place has no prediction, and its label is never looked at.
    """
    if labels_BT.shape != ids_BT.shape:
        raise InputError(
            f"labels of {tuple(labels_BT.shape)} do not fit {tuple(ids_BT.shape)} tokens: give one a token."
        )
    counts_BT = there_BT & (labels_BT != IGNORED)
    counts_BT[:, :1] = False
    if bool((labels_BT != ids_BT)[counts_BT].any()):
        raise InputError("labels other than the tokens themselves cannot be learnt: give input_ids, −100 where not.")
    return counts_BT


def causal_loss(model: Model, rows: Rows, state: Tensor, counts_BT: Tensor, number: Any = None) -> Tensor:
    """−log p(token | tokens before it) a token that counts, or their sum divided by another number."""
    log_prob_BT, _ = model.score(rows.ids_BT, state, rows.lengths_B)
    at_BT = (rows.read_BT - 1).clamp_min(0)  # of the token at each place, where it is in the rows without padding
    log_prob_BT = torch.where(counts_BT, log_prob_BT.gather(1, at_BT), 0.0)
    return -log_prob_BT.sum() / (counts_BT.sum() if number is None else number)
