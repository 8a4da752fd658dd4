"""What a run makes probable: a function of model, batch and carried state, entered in `OBJECTIVES` by its name.

It gives the log-probability of each token, whose mean is to rise, and the state to carry on from.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.models.model import Model
from trellis.text import Batch

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


def check_labels(model: Model, labels: NDArray[Any]) -> None:
    """Refuse states that this model does not have, before a run begins."""
    states = _with_states(model).config.states
    outside = np.flatnonzero((labels < -1) | (labels >= states))
    if len(outside):
        raise TrellisError(
            f"the label of token {outside[0]:,}, {labels[outside[0]]}, is none of the {states:,} states: give 0 to "
            f"{states - 1:,}, or −1 where it is unknown."
        )


def _with_states(model: Model) -> HMM:
    if not isinstance(model, HMM):
        raise TrellisError(
            f"the joint likelihood is for models with hidden states, not {model.config.kind}: set "
            "training.objective=marginal."
        )
    return model


OBJECTIVES: dict[str, Objective] = {"marginal": marginal, "joint": joint}
