"""What a run makes probable: a function of model, batch and carried state, entered in `OBJECTIVES` by its name.

It gives the log-probability of each token, whose mean is to rise, and the state to carry on from.
"""

from __future__ import annotations

from collections.abc import Callable

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
    if not isinstance(model, HMM):
        raise TrellisError(
            f"the joint likelihood is for models with hidden states, not {model.config.kind}: set "
            "training.objective=marginal."
        )
    return model.score(batch.ids, state, batch.lengths, labels_BT=batch.labels)


OBJECTIVES: dict[str, Objective] = {"marginal": marginal, "joint": joint}
