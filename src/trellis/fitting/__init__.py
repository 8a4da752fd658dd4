"""One call from data people have (strings, lists, arrays, columns, files) to a model that answers about such data."""

from trellis.fitting.pipeline import fit
from trellis.fitting.fitted import Fitted

__all__ = ["Fitted", "fit"]
