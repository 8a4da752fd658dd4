"""Lee & Berg-Kirkpatrick (2025), "Optimizing hidden Markov language models": the whole study, and a page of its own."""

from experiments.lee.studies import STUDIES

__all__ = ["STUDIES"]
