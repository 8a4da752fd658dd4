"""Expectation–maximisation as hmmlearn does it: expected counts, then Dirichlet priors, then rows that sum to one."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray

from trellis.errors import InputError
from trellis.estimator.checking import Distributions, Floats, Integers
from trellis.estimator.sequences import Batch
from trellis.models import HMM, HMMConfig


class Data(NamedTuple):
    """What is learned from: the symbols of all sequences, their states where these are known, and the batches."""

    symbols_N: Integers
    labels_N: Integers | None
    batches: list[Batch]


class Expected(NamedTuple):
    """Expected counts of starts, transitions and emissions, and the log-likelihood of all sequences."""

    counts: Distributions
    log_prob: float


class ConvergenceMonitor:
    """The log-likelihood before each step of EM, and whether it still grows.

    A subclass with another `converged` may be assigned to an estimator's `monitor_` before it is fitted.
    """

    def __init__(self, tol: float, n_iter: int, verbose: bool = False) -> None:
        self.tol, self.n_iter, self.verbose = tol, n_iter, verbose
        self.history: deque[float] = deque()
        self.iter = 0

    def __repr__(self) -> str:
        history = [round(log_prob, 4) for log_prob in self.history]
        return f"{type(self).__name__}(iter={self.iter}, converged={self.converged}, history={history})"

    def report(self, log_prob: float) -> None:
        """Note a step; if verbose, print its number, log-likelihood and gain."""
        gain = log_prob - self.history[-1] if self.history else np.nan
        if self.verbose:
            print(f"{self.iter + 1:>10d} {log_prob:>16.8f} {gain:>+16.8f}", file=sys.stderr)
        self.history.append(log_prob)
        self.iter += 1

    @property
    def converged(self) -> bool:
        """Whether all steps were made, or the last one gained less than `tol`."""
        gained_enough = len(self.history) < 2 or self.history[-1] - self.history[-2] >= self.tol
        return self.iter == self.n_iter or not gained_enough


def model_of(tables: Distributions, dtype: torch.dtype) -> HMM:
    """The HMM with these probabilities, ready for questions."""
    states, symbols = tables.emissionprob.shape
    model = HMM(HMMConfig(symbols, states), seed=0).to(dtype=dtype)
    take(model, tables)
    return model.eval()


def take(model: HMM, tables: Distributions) -> None:
    """Give the model these probabilities."""
    model.set_tables(*(torch.from_numpy(np.ascontiguousarray(table)) for table in tables))


def expected(model: HMM, data: Data) -> Expected:
    """The E step: expected counts of all sequences, summed in float64."""
    states, symbols = model.config.states, model.config.vocab_size
    start_S, transition_SS, emission_SV = np.zeros(states), np.zeros((states, states)), np.zeros((states, symbols))
    log_prob = 0.0
    for batch in data.batches:
        labels_BT = None if data.labels_N is None else batch.of(data.labels_N)
        found = model.expected_counts(batch.of(data.symbols_N), None, batch.lengths_B, labels_BT)
        log_prob_B = found.log_prob_BT.double().sum(1)
        _check_possible(batch, log_prob_B.numpy())
        log_prob += float(log_prob_B.sum())
        start_S += found.start_S.numpy()
        transition_SS += found.transition_SS.numpy()
        emission_SV += found.emission_VS.T.numpy()
    return Expected(Distributions(start_S, transition_SS, emission_SV), log_prob)


def _check_possible(batch: Batch, log_prob_B: Floats) -> None:
    if not np.isfinite(log_prob_B).all():
        sequence = batch.sequences_B[~np.isfinite(log_prob_B)].min()
        raise InputError(
            f"X's sequence {sequence} is impossible with the zeros of startprob_, transmat_ and emissionprob_ and the "
            "labels given: allow what it needs."
        )


def maximised(old: Distributions, counts: Distributions, priors: Distributions, params: str) -> Distributions:
    """The M step: the tables that `params` names become the most probable ones given counts and Dirichlet priors.

    A start or transition of probability zero stays forbidden.
    """
    start, transition, emission = (
        np.maximum(prior - 1.0 + count, 0.0) for prior, count in zip(priors, counts, strict=True)
    )
    return Distributions(
        _normalised(np.where(old.startprob == 0, 0.0, start), old.startprob) if "s" in params else old.startprob,
        _normalised(np.where(old.transmat == 0, 0.0, transition), old.transmat) if "t" in params else old.transmat,
        _normalised(emission, old.emissionprob) if "e" in params else old.emissionprob,
    )


def _normalised(weight: Floats, old: NDArray[Any]) -> Floats:
    """Rows that sum to one; a row of which nothing is known, neither counts nor a prior, stays as it was."""
    total = weight.sum(-1, keepdims=True)
    return np.where(total > 0, weight / np.where(total > 0, total, 1.0), old)
