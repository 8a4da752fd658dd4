"""Expectation–maximisation as hmmlearn does it: expected counts, then Dirichlet priors, then rows that sum to one."""

from __future__ import annotations

import sys
from collections import deque
from typing import Any, NamedTuple

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor

from trellis.errors import InputError
from trellis.estimator.checking import Distributions, Floats, Integers
from trellis.estimator.restrictions import tied
from trellis.estimator.sequences import Batch, batches
from trellis.estimator.windows import NEAR, NEAR_LOG, Cut, Sequences
from trellis.models import HMM, HMMConfig
from trellis.ops import sequences as walks

# Scores of a path, in numbers, up to which one thread leaves a sequence whole: 512 MB of float64.
WHOLE_PATHS = 1 << 26


class Data(NamedTuple):
    """What is learned from: the symbols of all sequences, the sequences, and states where these are known."""

    symbols_N: Integers
    sequences: Sequences
    labels_N: Integers | None = None


class Numbers(NamedTuple):
    """Tables as walks take them; their last symbol is one that was not seen, which every state explains as well.

    The first of the distributions of a first state is the model's, and the second has no preference.
    """

    first_FS: Tensor
    matrix_SS: Tensor
    likelihood_VS: Tensor
    log_peak_V: Tensor

    @classmethod
    def of(cls, tables: Distributions, dtype: torch.dtype) -> Numbers:
        """Of these tables."""
        states = len(tables.startprob)
        first_FS = np.stack([tables.startprob, np.full(states, 1.0 / states)])
        likelihood_VS = np.concatenate([tables.emissionprob.T, np.ones((1, states))])
        peak_V1 = likelihood_VS.max(1, keepdims=True)
        peak_V1 = np.where(peak_V1 > 0, peak_V1, 1.0)
        found = first_FS, tables.transmat, likelihood_VS / peak_V1, np.log(peak_V1[:, 0])
        return cls(*(torch.from_numpy(np.ascontiguousarray(array)).to(dtype) for array in found))

    def logarithms(self) -> tuple[Tensor, Tensor, Tensor]:
        """Of first states, transitions and likelihoods."""
        log_likelihood_VS = self.likelihood_VS.log() + self.log_peak_V[:, None]
        return self.first_FS.log(), self.matrix_SS.log(), log_likelihood_VS


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


def walk(numbers: Numbers, sequences: Sequences, *, counts: bool) -> tuple[Cut, walks.Expected]:
    """Expected counts of all sequences, or likelihoods alone."""
    torch.set_flush_denormal(True)  # denormals slow the products several-fold and are far below our resolution

    def along(rows: walks.Rows) -> walks.Expected:
        return walks.expect(*numbers, sequences.symbols_N, rows, counts=counts)

    return sequences.walk(along, Cut.apart, NEAR[numbers.matrix_SS.dtype])


def best_paths(numbers: Numbers, sequences: Sequences) -> walks.BestPaths:
    """The most probable path of every sequence."""
    logarithms = numbers.logarithms()
    if sequences.states * int(sequences.lengths_Q.max()) <= WHOLE_PATHS and torch.get_num_threads() == 1:
        sequences.leave_whole()

    def along(rows: walks.Rows) -> walks.BestPaths:
        return walks.best_paths(*logarithms, sequences.symbols_N, rows)

    return sequences.walk(along, Cut.paths_apart, NEAR_LOG[numbers.matrix_SS.dtype])[1]


def expected(tables: Distributions, data: Data, dtype: torch.dtype) -> Expected:
    """The E step: expected counts of all sequences."""
    if data.labels_N is not None:
        return _expected_of(model_of(tables, dtype), data, batches(data.sequences.lengths_Q, len(tables.startprob)))
    rows, found = walk(Numbers.of(tables, dtype), data.sequences, counts=True)
    lost_B = found.lost_B.numpy() > 0
    counts = Distributions(
        found.start_S.double().numpy(),
        found.crossed_SS.double().numpy() * tables.transmat,
        found.emission_VS[:-1].T.double().numpy(),
    )
    log_prob = float(found.log_prob_B.numpy()[~lost_B].sum())
    if lost_B.any():  # by the model, which goes on in log space
        some = batches(data.sequences.lengths_Q, len(tables.startprob), np.sort(rows.sequence_B[lost_B]))
        more = _expected_of(model_of(tables, dtype), data, some)
        counts = Distributions(*(a + b for a, b in zip(counts, more.counts, strict=True)))
        log_prob += more.log_prob
    return Expected(counts, log_prob)


def _expected_of(model: HMM, data: Data, some: list[Batch]) -> Expected:
    """Expected counts of some batches by the model, summed in float64."""
    states, symbols = model.config.states, model.config.vocab_size
    start_S, transition_SS, emission_SV = np.zeros(states), np.zeros((states, states)), np.zeros((states, symbols))
    log_prob = 0.0
    for batch in some:
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


def maximised(
    old: Distributions, counts: Distributions, priors: Distributions, params: str, ties_SS: Integers | None = None
) -> Distributions:
    """The M step: the tables that `params` names become the most probable ones given counts and Dirichlet priors.

    A start or transition of probability zero stays forbidden, and transitions of one tie stay equal.
    """
    start, transition, emission = (
        np.maximum(prior - 1.0 + count, 0.0) for prior, count in zip(priors, counts, strict=True)
    )
    transition = np.where(old.transmat == 0, 0.0, transition)
    if ties_SS is None:
        transition = _normalised(transition, old.transmat)
    elif "t" in params:
        transition = tied(transition, old.transmat, ties_SS)
    return Distributions(
        _normalised(np.where(old.startprob == 0, 0.0, start), old.startprob) if "s" in params else old.startprob,
        transition if "t" in params else old.transmat,
        _normalised(emission, old.emissionprob) if "e" in params else old.emissionprob,
    )


def _normalised(weight: Floats, old: NDArray[Any]) -> Floats:
    """Rows that sum to one; a row of which nothing is known, neither counts nor a prior, stays as it was."""
    total = weight.sum(-1, keepdims=True)
    return np.where(total > 0, weight / np.where(total > 0, total, 1.0), old)
