"""What a run makes probable: a function of model, batch and carried state, entered in `OBJECTIVES` by its name.

It gives the log-probability of each token, whose mean is to rise, and the state to carry on from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.models.model import Model
from trellis.text import Batch, IdFile

CHUNK = 1 << 14  # labels looked at together: 32 MB of the states that 256 a word may have

Objective = Callable[[Model, Batch, Tensor | None], tuple[Tensor, Tensor]]


def marginal(model: Model, batch: Batch, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The likelihood of the tokens, summed over all hidden states: log p(o)."""
    return model.score(batch.ids, state, batch.lengths)


def joint(model: Model, batch: Batch, state: Tensor | None) -> tuple[Tensor, Tensor]:
    """The likelihood of the tokens and of the states given for some or all, summed over the others: log p(o, z)."""
    if batch.labels is None:
        raise TrellisError(
            "the joint likelihood needs states: give the text's labels, or set training.objective=marginal."
        )
    return _with_states(model).score(batch.ids, state, batch.lengths, labels_BT=batch.labels)


def check_labels(model: Model, text: IdFile, labels: NDArray[Any]) -> None:
    """Refuse states that this model does not have, or not for that word, before a run begins to meet them."""
    hmm = _with_states(model)
    states, support = hmm.config.states, hmm.support
    for begin in range(0, len(labels), CHUNK):
        label_N, word_N = (
            torch.from_numpy(np.asarray(part[begin : begin + CHUNK], dtype=np.int64)).to(hmm.device)
            for part in (labels, text.ids)
        )
        outside_N = (label_N < -1) | (label_N >= states)
        if bool(outside_N.any()):
            at = int(outside_N.nonzero()[0])
            raise TrellisError(
                f"the label of token {begin + at:,}, {int(label_N[at])}, is none of the {states:,} states: give 0 to "
                f"{states - 1:,}, or −1 where it is unknown."
            )
        if support is None:
            continue
        foreign_N = (label_N >= 0) & ~support.may_emit(label_N, word_N)
        if bool(foreign_N.any()):
            at = int(foreign_N.nonzero()[0])
            raise TrellisError(
                f"state {int(label_N[at])} cannot emit token {begin + at:,}: label a word by states of its own block."
            )


def _with_states(model: Model) -> HMM:
    if not isinstance(model, HMM):
        raise TrellisError(
            f"the joint likelihood is for models with hidden states, not {model.config.kind}: set "
            "training.objective=marginal."
        )
    return model


OBJECTIVES: dict[str, Objective] = {"marginal": marginal, "joint": joint}
