"""Exact algorithms as pure functions on tensors, each with a slow reference twin."""

from trellis.inference.blocked import (
    BlockedForward,
    BlockedSmoothed,
    Blocks,
    blocked_forward,
    blocked_log_probs,
    blocked_smooth,
)
from trellis.inference.entropy import blocked_entropy, posterior_entropy
from trellis.inference.forward import Forward, Smoothed, forward, log_probs, smooth
from trellis.inference.gaps import (
    Gapped,
    GappedText,
    gapped_beliefs,
    gapped_entropy,
    gapped_k_best,
    gapped_log_probs,
    gapped_sample_posterior,
)
from trellis.inference.paths import KBest, Paths, blocked_k_best, blocked_viterbi, k_best, viterbi
from trellis.inference.sampling import Samples, blocked_sample_posterior, sample, sample_posterior

__all__ = [
    "BlockedForward",
    "BlockedSmoothed",
    "Blocks",
    "Forward",
    "Gapped",
    "GappedText",
    "KBest",
    "Paths",
    "Samples",
    "Smoothed",
    "blocked_entropy",
    "blocked_forward",
    "blocked_k_best",
    "blocked_log_probs",
    "blocked_sample_posterior",
    "blocked_smooth",
    "blocked_viterbi",
    "forward",
    "gapped_beliefs",
    "gapped_entropy",
    "gapped_k_best",
    "gapped_log_probs",
    "gapped_sample_posterior",
    "k_best",
    "log_probs",
    "posterior_entropy",
    "sample",
    "sample_posterior",
    "smooth",
    "viterbi",
]
