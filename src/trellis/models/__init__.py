"""How numbers become start, transition and emission distributions, and the models they make."""

from trellis.models.hmm import HMM, Counts, Tables
from trellis.models.hmm_config import HMMConfig
from trellis.models.model import Model, ModelConfig
from trellis.models.ngram import Bigram, Unigram
from trellis.models.registry import load_model

__all__ = [
    "HMM",
    "Bigram",
    "Counts",
    "HMMConfig",
    "Model",
    "ModelConfig",
    "Tables",
    "Unigram",
    "load_model",
]
