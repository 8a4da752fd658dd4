"""The door for users of transformers: saved models and tokenizers through its `Auto` classes, and their `generate`.

Nothing here is imported before transformers asks for it; `registration` alone is, with Trellis itself.
"""

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from trellis.hf.cache import CarriedState as CarriedState
    from trellis.hf.configuration import TrellisConfig as TrellisConfig
    from trellis.hf.modeling import TrellisForCausalLM as TrellisForCausalLM

_HOME = {"CarriedState": "cache", "TrellisConfig": "configuration", "TrellisForCausalLM": "modeling"}
__all__ = ["CarriedState", "TrellisConfig", "TrellisForCausalLM"]


def __getattr__(name: str) -> Any:
    if name not in _HOME:
        raise AttributeError(f"module 'trellis.hf' has no attribute '{name}'")
    return getattr(importlib.import_module(f"trellis.hf.{_HOME[name]}"), name)
