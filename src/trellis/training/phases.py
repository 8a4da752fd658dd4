"""Phases of a run: by which objective it learns, at what rate and with what frozen, as tokens go by.

A run has one phase, unless a teacher gave labels: then it learns from tokens and labels first, and from tokens alone
after that. Only the tokens learnt from so far decide, so that a resumed run is in the phase it would have been in.
"""

from __future__ import annotations

from typing import NamedTuple

from trellis.distillation.settings import DistillSettings
from trellis.training.settings import CompleteSettings


class Phase(NamedTuple):
    """How a run learns for a while."""

    objective: str  # its name in OBJECTIVES
    lr: float  # AdamW, SGD: highest learning rate
    frozen: bool = False  # whether embeddings that began as a teacher's stay as they are


def phase_at(tokens: int, settings: CompleteSettings, distill: DistillSettings | None) -> Phase:
    """The phase of an update that begins when so many tokens have been learnt from."""
    if distill is None:
        return Phase(settings.objective, settings.lr)
    joint = tokens < distill.tokens
    lr = distill.lr if joint and distill.lr is not None else settings.lr
    return Phase("joint" if joint else settings.objective, lr, tokens < distill.frozen)
