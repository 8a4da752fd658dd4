"""Where a run begins: a function that makes the first model, entered in `INITIALISERS` by its name."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

from numpy.typing import NDArray

from trellis.distillation.settings import Distilled
from trellis.errors import TrellisError
from trellis.models import HMM
from trellis.models.model import Model
from trellis.training.counting import Labelled, begin_with_counts
from trellis.training.embeddings import begin_with_embeddings
from trellis.training.objectives import check_labels


class Taught(NamedTuple):
    """What a teacher says of a text, and how the run learns from it."""

    distilled: Distilled
    ids: NDArray[Any]  # the text's
    length: int  # training.length
    smoothing: float  # training.smoothing


class Beginning(NamedTuple):
    """What an initialiser may use."""

    make: Callable[[int], Model]  # a fresh model, its parameters drawn from a seed
    seed: int  # of the run
    restarts: int  # training.restarts
    trial: Callable[[int], float | None]  # validation perplexity after a short run from a seed
    taught: Taught | None = None  # what a teacher says of the text
    labelled: Labelled | None = None  # the text with the labels that were given, if any
    smoothing: float = 0.0  # training.smoothing


Initialiser = Callable[[Beginning], Model]


def random(beginning: Beginning) -> Model:
    """Parameters drawn from the run's seed."""
    return beginning.make(beginning.seed)


def restarts(beginning: Beginning) -> Model:
    """The best of several seeds on validation text after a short run each."""
    seeds = range(beginning.seed, beginning.seed + beginning.restarts)
    found = {seed: beginning.trial(seed) for seed in seeds}
    return beginning.make(min(seeds, key=lambda seed: found[seed] or float("inf")))


def distill(beginning: Beginning) -> Model:
    """Parameters drawn from the run's seed, or taken from the teacher, to learn from its labels first."""
    if beginning.taught is None:
        raise TrellisError("training.init=distill needs what a teacher says of the text: give distilled=distill(…).")
    model = beginning.make(beginning.seed)
    if not isinstance(model, HMM):
        raise TrellisError(
            f"distillation is for models with hidden states, not {model.config.kind}: set training.init=random."
        )
    distilled, ids, length, smoothing = beginning.taught
    check_labels(model, distilled.labels)
    if distilled.settings.counts:
        begin_with_counts(model, Labelled(ids, distilled.labels, length), smoothing)
    begin_with_embeddings(model, distilled)
    return model


def counts(beginning: Beginning) -> Model:
    """Start, transition and emission counted from the labels that were given: the optimum where all tokens have one."""
    assert beginning.labelled is not None  # a run without labels is refused
    model = beginning.make(beginning.seed)
    check_labels(model, beginning.labelled.labels)  # refuses models without states
    assert isinstance(model, HMM)
    begin_with_counts(model, beginning.labelled, beginning.smoothing)
    return model


INITIALISERS: dict[str, Initialiser] = {"random": random, "restarts": restarts, "distill": distill, "counts": counts}
