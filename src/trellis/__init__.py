"""Hidden Markov language models at scale."""

import importlib
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

# PyTorch asks the kernel for huge pages when told so before its first large tensor; without them, page faults take
# longer than the arithmetic of a training step.
os.environ.setdefault("THP_MEM_ALLOC_ENABLE", "1")

# Between two of PyTorch's operations native code computes on threads of its own. PyTorch's, which by default go on
# spinning for milliseconds, would take the cores from those, and from every other program; asleep at once, they would
# take long to wake for the next operation. So they spin for a little.
if (
    "OMP_WAIT_POLICY" not in os.environ
    and os.environ.get("TRELLIS_KERNELS") != "off"
    and Path(__file__).with_name("_kernels.so").exists()
):
    os.environ.setdefault("GOMP_SPINCOUNT", "20000")

if TYPE_CHECKING:
    from trellis.errors import TrellisError
    from trellis.evaluation import Evaluation, evaluate
    from trellis.models import HMM, HMMConfig, load_model
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
    "load_model",
    "load_tokenizer",
    "open_corpus",
    "prepare",
    "train",
]

# Names are fetched when first asked for, because importing PyTorch takes seconds that `trellis --help` need not.
_HOME = {
    "HMM": "models",
    "Evaluation": "evaluation",
    "HMMConfig": "models",
    "IdFile": "text",
    "TrainingSettings": "training",
    "TrellisError": "errors",
    "evaluate": "evaluation",
    "load_model": "models",
    "load_tokenizer": "text",
    "open_corpus": "text",
    "prepare": "text",
    "train": "training",
}
_ROOMS = ("inference", "models", "text", "training")


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"trellis.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'trellis' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"trellis.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
