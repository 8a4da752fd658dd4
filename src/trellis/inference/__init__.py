"""Exact algorithms as pure functions on tensors, each with a slow reference twin."""

from trellis.inference.entropy import posterior_entropy
from trellis.inference.forward import Forward, Smoothed, forward, log_probs, smooth
from trellis.inference.paths import KBest, Paths, k_best, viterbi
from trellis.inference.sampling import Samples, sample, sample_posterior

__all__ = [
    "Forward",
    "KBest",
    "Paths",
    "Samples",
    "Smoothed",
    "forward",
    "k_best",
    "log_probs",
    "posterior_entropy",
    "sample",
    "sample_posterior",
    "smooth",
    "viterbi",
]
