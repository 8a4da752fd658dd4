"""Checkpoints: a run's whole state at one update, as a folder that appears whole or not at all.

`checkpoint-N/` is a model like any other (`config.json`, `model.safetensors`, tokenizer) with the learner's tensors
and the loop's place beside it, so that any checkpoint can be scored, sampled from, or gone on with.
"""

from __future__ import annotations

import math
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from torch import Tensor

from trellis.errors import TrellisError
from trellis.folders import remove_folder, whole_folder
from trellis.json_files import write_json
from trellis.models import storage
from trellis.models.model import Model
from trellis.models.storage import Savable
from trellis.models.tensor_files import check_finite, read_tensors, write_tensors
from trellis.training.run_folder import refuse_links

FORMAT = 1
TRAINING = "training.safetensors"  # the learner's tensors and the carried state


@dataclass(frozen=True)
class Place:
    """Where a run stands between two updates."""

    step: int  # batches learnt from
    update: int  # updates made
    tokens: int  # tokens learnt from, in all processes
    seconds: float  # spent making the model and learning, over all sessions
    best: float | None  # lowest validation loss so far
    schedule: dict[str, float]  # what the schedule remembers
    run: str  # fingerprint of settings, corpus and vocabulary: a checkpoint of another run is refused
    validating: float = 0.0  # seconds spent on validation text, over all sessions
    processor: float = 0.0  # seconds of one processor spent learning: what others do on the machine does not count
    loss: float | None = None  # of the last update, in nats a token
    converged: bool = False  # whether an update gained less than was asked for


def save(
    runs: Path,
    model: Model,
    tokenizer: Savable,
    place: Place,
    learner: dict[str, Tensor],
    state: Tensor | None,
    keep: int,
) -> Path:
    """Write `checkpoint-N`, then delete all but the newest `keep`; before, those that a killed process left."""
    folder = runs / f"checkpoint-{place.update}"
    refuse_links(runs)
    _delete_old(runs, keep)
    with whole_folder(folder) as temporary:
        storage.write(model, temporary, tokenizer)
        tensors = {f"learner.{name}": tensor for name, tensor in learner.items()}
        if state is not None:
            tensors["state"] = state
        write_tensors(temporary / TRAINING, tensors)
        write_json(temporary / "place.json", {"format": FORMAT, **asdict(place)})
    _delete_old(runs, keep)
    return folder


def _delete_old(runs: Path, keep: int) -> None:
    for old in found(runs)[:-keep]:
        remove_folder(old)


def found(runs: Path) -> list[Path]:
    """A run's checkpoints, oldest first; links are none."""
    numbered = [(p.name.removeprefix("checkpoint-"), p) for p in runs.glob("checkpoint-*") if not p.is_symlink()]
    return [p for _, p in sorted((int(n), p) for n, p in numbered if n.isascii() and n.isdecimal() and len(n) < 20)]


def begun(runs: Path) -> bool:
    """Whether the folder holds a run already, be it only the trials of its restarts."""
    return bool(found(runs)) or (runs / "best").exists() or any(runs.glob("restart-*/checkpoint-*"))


def load(folder: Path, run: str) -> tuple[Place, dict[str, Tensor], dict[str, Tensor], Tensor | None]:
    """A checkpoint's place, the model's tensors, the learner's, and the carried state."""
    about: dict[str, Any] = storage.read_json(folder / "place.json", infinite=True)
    if about.pop("format", None) != FORMAT:
        raise TrellisError(f"{folder} was written by another version of Trellis: start a new run folder.")
    checksum = about.pop(storage.CHECKSUM, None)
    try:
        place = Place(**about)
        place = replace(place, schedule={name: float(place.schedule[name]) for name in ("level", "best", "waited")})
        sound = _sound(place)
    except (TypeError, KeyError, ValueError, OverflowError):
        sound = False
    if not sound:
        raise TrellisError(f"{folder / 'place.json'} is damaged: restore it or use an older checkpoint.")
    if place.run != run:
        raise TrellisError(
            f"{folder} belongs to a run with other settings, text or vocabulary: start a new run folder or "
            "restore the old settings."
        )
    training = read_tensors(folder / TRAINING, checksum)
    check_finite(training, folder / TRAINING)
    state = training.pop("state", None)
    learner = {name.removeprefix("learner."): tensor for name, tensor in training.items()}
    weights = read_tensors(folder / storage.WEIGHTS, storage.read_about(folder).get(storage.CHECKSUM))
    return place, weights, learner, state


def _sound(place: Place) -> bool:
    """Whether all that a checkpoint says of its place is of the type that it must be, and no number impossible."""
    whole = (place.step, place.update, place.tokens)
    seconds = (place.seconds, place.validating, place.processor)
    losses = [loss for loss in (place.best, place.loss) if loss is not None]
    return (
        all(type(number) is int and number >= 0 for number in whole)
        and all(type(number) in (int, float) and 0 <= number < math.inf for number in seconds)
        and all(type(loss) in (int, float) and not math.isnan(loss) for loss in losses)
        and not any(math.isnan(number) for number in place.schedule.values())
        and type(place.converged) is bool
    )
