"""Hidden Markov language models at scale."""

import importlib
import importlib.util
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from trellis.hf.registration import watch as _watch

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
    from trellis.distillation import DistillSettings as DistillSettings
    from trellis.distillation import distill as distill
    from trellis.errors import TrellisError as TrellisError
    from trellis.estimator import CategoricalHMM as CategoricalHMM
    from trellis.evaluation import evaluate as evaluate
    from trellis.fitting import Fitted as Fitted
    from trellis.fitting import fit as fit
    from trellis.models import HMM as HMM
    from trellis.models import HMMConfig as HMMConfig
    from trellis.models import load_model as load_model
    from trellis.models.pretrained import load_pretrained as load_pretrained
    from trellis.text import WordTokenizer as WordTokenizer
    from trellis.text import load_tokenizer as load_tokenizer
    from trellis.text import open_corpus as open_corpus
    from trellis.text import prepare as prepare
    from trellis.training import TrainingSettings as TrainingSettings
    from trellis.training import train as train

__version__ = "0.1.0"

# The public names, and where they live. They are fetched when first asked for, because importing PyTorch takes seconds
# that `trellis --help` need not.
_NAMES = {
    "distillation": ("DistillSettings", "distill"),
    "errors": ("TrellisError",),
    "estimator": ("CategoricalHMM",),
    "evaluation": ("evaluate",),
    "fitting": ("Fitted", "fit"),
    "models": ("HMM", "HMMConfig", "load_model"),
    "models.pretrained": ("load_pretrained",),
    "text": ("WordTokenizer", "load_tokenizer", "open_corpus", "prepare"),
    "training": ("TrainingSettings", "train"),
}
_HOME = {name: home for home, names in _NAMES.items() for name in names}
_NEEDS = {"CategoricalHMM": "sklearn"}  # names that an optional library makes
# All names that can be had here: `from trellis import *` fetches every one of them.
__all__ = [name for name in _HOME if name not in _NEEDS or importlib.util.find_spec(_NEEDS[name])]
_ROOMS = (
    "ask", "automata", "constraints", "inference", "inspection", "models", "plots", "steering", "text", "training",
)  # fmt: skip


def __getattr__(name: str) -> Any:
    if name in _ROOMS:
        return importlib.import_module(f"trellis.{name}")
    if name not in _HOME:
        raise AttributeError(f"module 'trellis' has no attribute '{name}'")
    value = getattr(importlib.import_module(f"trellis.{_HOME[name]}"), name)
    globals()[name] = value
    return value


def __dir__() -> list[str]:
    return sorted({*globals(), *_HOME})


_watch()  # transformers, if it is or will be imported, knows Trellis's models
