"""The door for users of hmmlearn and scikit-learn: HMMs over arrays of symbols, by the names they know."""

from trellis.estimator.categorical import CategoricalHMM
from trellis.estimator.expectation import ConvergenceMonitor

__all__ = ["CategoricalHMM", "ConvergenceMonitor"]
