"""How the learning rate moves: a linear warm-up, then a cosine, a plateau's steps, or nothing."""

from __future__ import annotations

import math
from dataclasses import dataclass

from trellis.training.settings import CompleteSettings


@dataclass
class Schedule:
    """A multiplier of the highest rate; only `plateau` has anything to remember."""

    settings: CompleteSettings
    updates: int  # in the whole run
    level: float = 1.0  # plateau: what the falls so far have left
    best: float = math.inf  # plateau: lowest validation loss
    waited: int = 0  # plateau: validations since then

    def at(self, update: int) -> float:
        """The multiplier for an update, counted from 0; classic Baum–Welch takes whole steps."""
        if self.settings.full_batch:
            return 1.0
        warmup = round(self.settings.warmup * self.updates)
        if update < warmup:
            return (update + 1) / warmup
        if self.settings.schedule != "cosine":
            return self.level
        done = (update - warmup) / max(1, self.updates - warmup)
        return self.settings.final + (1 - self.settings.final) * (1 + math.cos(math.pi * done)) / 2

    def validated(self, loss: float) -> None:
        """Hear of a validation: after too many without improvement the plateau schedule falls."""
        if loss < self.best:
            self.best, self.waited = loss, 0
            return
        self.waited += 1
        if self.settings.schedule == "plateau" and self.waited > self.settings.patience:
            self.level, self.waited = self.level * self.settings.factor, 0

    def state(self) -> dict[str, float]:
        """What to remember in a checkpoint."""
        return {"level": self.level, "best": self.best, "waited": self.waited}

    def restore(self, state: dict[str, float]) -> None:
        """Take up where a checkpoint left off."""
        self.level, self.best, self.waited = state["level"], state["best"], int(state["waited"])
