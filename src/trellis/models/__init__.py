"""How numbers become start, transition and emission distributions, and the models they make."""

from trellis.models.hmm import HMM, Counts, Tables
from trellis.models.ngram import Bigram, Unigram
from trellis.models.parameters import HMMConfig

__all__ = ["HMM", "Bigram", "Counts", "HMMConfig", "Tables", "Unigram"]
