"""Exact questions as functions of a chain."""

from trellis.inference.chain import Chain
from trellis.inference.entropy import entropy
from trellis.inference.forward import Filtered, Smoothed, filter, score, smooth
from trellis.inference.paths import KBest, Paths, k_best, viterbi
from trellis.inference.sampling import sample_posterior
from trellis.inference.transitions import BlockPairs, Dense, Piece, Streamed, Transition

__all__ = [
    "BlockPairs",
    "Chain",
    "Dense",
    "Filtered",
    "KBest",
    "Paths",
    "Piece",
    "Smoothed",
    "Streamed",
    "Transition",
    "entropy",
    "filter",
    "k_best",
    "sample_posterior",
    "score",
    "smooth",
    "viterbi",
]
