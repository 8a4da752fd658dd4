"""Objectives, optimisers, Baum–Welch, the loop, checkpoints."""

from trellis.training.loop import Stopped, Trained, train
from trellis.training.settings import TrainingSettings

__all__ = ["Stopped", "Trained", "TrainingSettings", "train"]
