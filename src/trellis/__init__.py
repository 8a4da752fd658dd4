"""Hidden Markov language models at scale."""

import os

# PyTorch asks the kernel for huge pages when told so before its first large tensor; without them, page faults take
# longer than the arithmetic of a training step.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

from trellis.errors import TrellisError
from trellis.evaluation import Evaluation, evaluate
from trellis.models import HMM, HMMConfig
from trellis.text import IdFile, load_tokenizer, open_corpus, prepare
from trellis.training import TrainingSettings, train

__version__ = "0.1.0"

__all__ = [
    "HMM",
    "Evaluation",
    "HMMConfig",
    "IdFile",
    "TrainingSettings",
    "TrellisError",
    "evaluate",
    "load_tokenizer",
    "open_corpus",
    "prepare",
    "train",
]
