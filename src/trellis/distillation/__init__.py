"""Latent variable distillation: a neural teacher's states, clustered, as labels for the states of an HMM."""

from trellis.distillation.pipeline import distill
from trellis.distillation.settings import Distilled, DistillSettings

__all__ = ["DistillSettings", "Distilled", "distill"]
