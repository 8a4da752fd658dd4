"""The fingerprint of a run: what must be the same for a checkpoint to go on."""

from __future__ import annotations

import hashlib
import json
from dataclasses import asdict, replace
from typing import Any

import numpy as np
from numpy.typing import NDArray

from trellis.distillation.settings import Distilled
from trellis.models.model import Model
from trellis.text import IdFile
from trellis.training.settings import CompleteSettings

PIECE = 1 << 20  # numbers that are hashed together: labels may be larger than memory


def fingerprint(
    settings: CompleteSettings,
    model: Model,
    text: IdFile,
    valid: IdFile | None,
    updates: int,
    labels: NDArray[Any] | None,
    distilled: Distilled | None,
) -> str:
    """Settings, model, texts, labels and what else a teacher gave: all but how often to look and save, and where."""
    told = asdict(replace(settings, keep=1, checkpoint_every=1, device="auto"))
    held_out = valid.meta.content_hash if valid else None
    shape = [model.config.kind, asdict(model.config)]
    taught = [] if distilled is None else _told_by(distilled)
    about = [told, shape, asdict(text.meta), held_out, updates, _digest(labels, np.int64), *taught]
    return hashlib.sha256(json.dumps(about, sort_keys=True).encode()).hexdigest()[:16]


def _digest(numbers: NDArray[Any] | None, kind: type[np.generic]) -> str | None:
    """Hash of an array's numbers, whatever type they are kept as."""
    if numbers is None:
        return None
    found, flat = hashlib.sha256(), numbers.reshape(-1)
    for begin in range(0, len(flat), PIECE):
        found.update(np.asarray(flat[begin : begin + PIECE], dtype=kind).tobytes())
    return found.hexdigest()


def _told_by(distilled: Distilled) -> list[Any]:
    """What a teacher gave besides labels, as far as a run uses it, and how it is used."""
    settings = distilled.settings
    centroids_SR = distilled.centroids_SR if settings.centroids else None
    head_VR = distilled.head_VR if settings.head else None
    told = {name: value for name, value in asdict(settings).items() if name != "any_text"}  # which changes no number
    return [told, _digest(centroids_SR, np.float32), _digest(head_VR, np.float32)]
