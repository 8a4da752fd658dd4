"""One call from data people have (strings, lists, arrays, columns, files) to a model that answers about such data."""

from trellis.fitting.fitted import Fitted
from trellis.fitting.pipeline import fit

__all__ = ["Fitted", "fit"]
