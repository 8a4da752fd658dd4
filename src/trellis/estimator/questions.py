"""Questions to a fitted estimator: scores, states, forecasts and samples, all answered by `trellis.HMM`."""

from __future__ import annotations

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import torch
from torch import Tensor

from trellis import inference
from trellis.errors import InputError, TrellisError
from trellis.estimator.checking import (
    Distributions,
    Floats,
    Integers,
    checked_choice,
    checked_labels,
    checked_lengths,
    checked_symbols,
    checked_table,
    checked_whole,
)
from trellis.estimator.expectation import Numbers, best_paths, model_of, walk
from trellis.estimator.restrictions import Restrictions
from trellis.estimator.sampling import emitted, sample
from trellis.estimator.sequences import Batch, batches
from trellis.estimator.windows import Sequences
from trellis.inference import Chain
from trellis.models import HMM

try:
    from sklearn.utils import check_random_state
    from sklearn.utils.validation import check_is_fitted
except ImportError as error:
    raise TrellisError("CategoricalHMM needs scikit-learn: run pip install 'trellis-lm[sklearn]'.") from error

NAMES = Distributions._fields
ALGORITHMS, UNSEEN = ("viterbi", "map"), ("error", "missing")
DTYPES = {"float64": torch.float64, "float32": torch.float32}


class Questions:
    """What can be asked once there are `startprob_`, `transmat_` and `emissionprob_`, learned or set."""

    n_components: int
    n_features: int | None
    algorithm: str
    random_state: Any
    unseen: str
    dtype: str
    transmat_allowed: Any
    transmat_ties: Any

    def restrictions(self) -> Restrictions:
        """Which transitions there may be, and which share a probability, checked."""
        states = checked_whole("n_components", self.n_components, 1)
        return Restrictions.of(self.transmat_allowed, self.transmat_ties, states)

    def score(self, X: Any, lengths: Any = None, *, labels: Any = None) -> float:
        """The log-likelihood of all sequences together."""
        return float(self.score_sequences(X, lengths, labels=labels).sum())

    def score_sequences(self, X: Any, lengths: Any = None, *, labels: Any = None) -> Floats:
        """The log-likelihood of each sequence, and of the states given in it; −inf of one that is impossible."""
        asked = _Asked(self, X, lengths, labels)
        if asked.labels_N is not None:
            log_prob_Q = np.zeros(len(asked.lengths_Q))
            for batch, chain in asked.chains():
                log_prob_Q[batch.sequences_B] = inference.score(chain)[0].double().sum(1).numpy()
            return log_prob_Q
        rows, found = walk(asked.numbers, asked.sequences, counts=False)
        log_prob_Q = rows.of_sequences(found.log_prob_B, len(asked.lengths_Q))
        lost_Q = rows.sequence_B[found.lost_B.numpy() > 0]
        for batch, ids_BT, missing_BT in asked.some(lost_Q):  # by the model, which goes on in log space
            log_prob_BT, _ = asked.model.score(ids_BT, None, batch.lengths_B, missing_BT)
            log_prob_Q[batch.sequences_B] = log_prob_BT.double().sum(1).numpy()
        return log_prob_Q

    def score_samples(self, X: Any, lengths: Any = None, *, labels: Any = None) -> tuple[float, Floats]:
        """The log-likelihood of all sequences, and p(state | whole sequence) at each row of X, (n, n_components).

        Of an impossible sequence, the latter is zeros.
        """
        asked = _Asked(self, X, lengths, labels)
        log_prob, posterior_NS = 0.0, np.zeros((len(asked.symbols_N), self.n_components))
        for batch, chain in asked.chains():
            found = inference.smooth(chain)
            log_prob += float(found.log_prob_BT.double().sum())
            batch.put(found.posterior_BTS, posterior_NS)
        return log_prob, posterior_NS

    def predict_proba(self, X: Any, lengths: Any = None, *, labels: Any = None) -> Floats:
        """p(state | whole sequence) at each row of X, (n, n_components)."""
        return self.score_samples(X, lengths, labels=labels)[1]

    def decode(
        self, X: Any, lengths: Any = None, algorithm: str | None = None, *, labels: Any = None
    ) -> tuple[float, Integers]:
        """The states that explain X best, (n,), and their score, by `algorithm` or the estimator's own.

        "viterbi" finds each sequence's most probable path, and the score is log p(paths, X); −1 and −inf of an
        impossible sequence. "map" finds each row's most probable state, and the score is, as hmmlearn's, the sum of
        these states' probabilities.
        """
        algorithm = algorithm or self.algorithm
        checked_choice("algorithm", algorithm, ALGORITHMS)
        if algorithm == "map":
            posterior_NS = self.predict_proba(X, lengths, labels=labels)
            return float(posterior_NS.max(1).sum()), posterior_NS.argmax(1)
        asked = _Asked(self, X, lengths, labels)
        if asked.labels_N is not None:
            log_prob, state_N = 0.0, np.full(len(asked.symbols_N), -1)
            for batch, chain in asked.chains():
                best = inference.viterbi(chain)
                log_prob += float(best.log_prob_B.double().sum())
                batch.put(best.states_BT, state_N)
            return log_prob, state_N
        paths = best_paths(asked.numbers, asked.sequences)
        return float(paths.log_prob_B.sum()), paths.state_N.numpy()

    def predict(self, X: Any, lengths: Any = None, *, labels: Any = None) -> Integers:
        """The states that explain X best, (n,): the second result of `decode`."""
        return self.decode(X, lengths, labels=labels)[1]

    def predict_next_proba(self, X: Any, lengths: Any = None, n_steps: int = 1, *, labels: Any = None) -> Floats:
        """p(symbol | sequence) at each of the next steps after each sequence, (sequences, n_steps, symbols)."""
        asked = _Asked(self, X, lengths, labels)
        steps, symbols = checked_whole("n_steps", n_steps, 1), asked.model.config.vocab_size
        proba_QHV = np.zeros((len(asked.lengths_Q), steps, symbols))
        for batch, chain in asked.chains():
            _, state = inference.score(chain)
            for step in range(steps):
                proba_QHV[batch.sequences_B, step] = asked.model.next_token(state).exp().numpy()
                state = asked.model.predicted(len(state), state)
        return proba_QHV

    def predict_next(self, X: Any, lengths: Any = None, n_steps: int = 1, *, labels: Any = None) -> Integers:
        """The most probable symbol at each of the next steps after each sequence, (sequences, n_steps)."""
        symbols_QH: Integers = self.predict_next_proba(X, lengths, n_steps, labels=labels).argmax(-1)
        return symbols_QH

    def sample(
        self, n_samples: int = 1, random_state: Any = None, currstate: Any = None, *, labels: Any = None
    ) -> tuple[Integers, Integers]:
        """One sequence drawn from the model: symbols (n_samples, 1) and states (n_samples,).

        It begins in `currstate` if that is given. `random_state` is the estimator's own unless given here; a seed draws
        what it draws in hmmlearn. `labels` gives the states of some rows, −1 elsewhere: then all others are drawn given
        those, before and after them.
        """
        length, first = checked_whole("n_samples", n_samples, 1), None
        if currstate is not None:
            first = checked_whole("currstate", currstate, 0)
            if first >= self.n_components:
                raise InputError(f"currstate={currstate} is none of the {self.n_components} states (n_components).")
        random = check_random_state(self.random_state if random_state is None else random_state)
        if labels is not None:
            return self._sample_given(checked_labels(labels, length, self.n_components), first, random)
        symbols_T, states_T = sample(self.tables(), length, random, first)
        return symbols_T[:, None], states_T

    def _sample_given(
        self, labels_T: Integers, first: int | None, random: np.random.RandomState
    ) -> tuple[Integers, Integers]:
        """A sequence of which some states are known, drawn from all that have them."""
        if first is not None and labels_T[0] not in (-1, first):
            raise InputError(f"currstate={first} and the first of labels, {labels_T[0]}, are two states: give one.")
        labels_T = labels_T if first is None else np.concatenate([[first], labels_T[1:]])
        tables, labels_BT = self.tables(), torch.from_numpy(labels_T)[None]
        if first is not None:
            tables = tables._replace(startprob=np.eye(len(tables.startprob))[first])
        model, nothing_BT = model_of(tables, torch.float64), torch.zeros_like(labels_BT)
        generator = torch.Generator().manual_seed(int(random.randint(np.iinfo(np.int32).max)))
        with torch.no_grad():
            chain = model.chain(nothing_BT, None, torch.ones_like(nothing_BT, dtype=torch.bool), None, labels_BT)
            states_T: Integers = inference.sample_posterior(chain, 1, generator)[0, 0].numpy()
        if states_T[0] < 0:
            raise InputError("no sequence has the states of labels: give some that transmat_ allows.")
        return emitted(tables.emissionprob, states_T, random.random_sample(len(states_T)))[:, None], states_T

    def get_stationary_distribution(self) -> Floats:
        """How often each state is visited in the long run: π with π = π · transmat_."""
        states, transmat = self.n_components, self.tables().transmat
        sums = np.vstack([transmat.T - np.eye(states), np.ones(states)])
        found: Floats = np.linalg.lstsq(sums, np.append(np.zeros(states), 1.0), rcond=None)[0]
        found = np.maximum(found, 0.0)  # but for rounding, none is less than zero
        found /= found.sum()
        return found

    def aic(self, X: Any, lengths: Any = None) -> float:
        """Akaike's criterion, −2 log-likelihood + 2 free parameters: the lower the better."""
        return -2.0 * self.score(X, lengths) + 2.0 * self._free_parameters()

    def bic(self, X: Any, lengths: Any = None) -> float:
        """The Bayesian criterion, −2 log-likelihood + free parameters × log(rows of X): the lower the better."""
        return -2.0 * self.score(X, lengths) + self._free_parameters() * float(np.log(len(X)))

    def _free_parameters(self) -> int:
        states, symbols = map(int, self.tables().emissionprob.shape)
        return states - 1 + self.restrictions().free_numbers(states) + states * (symbols - 1)

    def tables(self) -> Distributions:
        """The three tables, checked, as they are now."""
        check_is_fitted(self, [f"{name}_" for name in NAMES])
        states = checked_whole("n_components", self.n_components, 1)
        shapes = ((states,), (states, states), (states, self.n_features))
        return Distributions(
            *(
                checked_table(f"{name}_", getattr(self, f"{name}_"), shape)
                for name, shape in zip(NAMES, shapes, strict=True)
            )
        )

    def to_model(self) -> HMM:
        """The same as a `trellis.HMM`, for all that it can be asked besides: k best paths, posterior samples, gaps."""
        checked_choice("dtype", self.dtype, tuple(DTYPES))
        return model_of(self.tables(), DTYPES[self.dtype])


class _Asked:
    """X as batches to ask the model about, without gradients."""

    def __init__(self, estimator: Questions, X: Any, lengths: Any, labels: Any = None) -> None:
        checked_choice("unseen", estimator.unseen, UNSEEN)
        self.tables, self.dtype = estimator.tables(), DTYPES[checked_choice("dtype", estimator.dtype, tuple(DTYPES))]
        self.symbols_N = checked_symbols(X)
        self.lengths_Q = checked_lengths(lengths, len(self.symbols_N))
        states = len(self.tables.startprob)
        self.labels_N = None if labels is None else checked_labels(labels, len(self.symbols_N), states)
        emissionprob = self.tables.emissionprob
        self.missing_N = self._missing(emissionprob) if estimator.unseen == "missing" else None
        if self.missing_N is None:
            self._check_known(emissionprob.shape[1])

    @functools.cached_property
    def model(self) -> HMM:
        """What answers, if walks do not."""
        return model_of(self.tables, self.dtype)

    @functools.cached_property
    def numbers(self) -> Numbers:
        """The tables as walks take them."""
        return Numbers.of(self.tables, self.dtype)

    @functools.cached_property
    def sequences(self) -> Sequences:
        """The sequences; a symbol that is missing is the last one of the numbers."""
        symbols_N = self.symbols_N
        if self.missing_N is not None:
            symbols_N = np.where(self.missing_N, self.tables.emissionprob.shape[1], symbols_N)
        return Sequences(symbols_N, self.lengths_Q, len(self.tables.startprob))

    def _missing(self, emissionprob: Floats) -> Any:
        """Which rows of X hold a symbol that no state emits; None if none does."""
        emitted_V = np.append(emissionprob.any(0), False)
        missing_N = ~emitted_V[self.symbols_N.clip(max=len(emitted_V) - 1)]
        return missing_N if missing_N.any() else None

    def _check_known(self, symbols: int) -> None:
        if self.symbols_N.max() >= symbols:
            raise InputError(
                f"X holds the symbol {self.symbols_N.max()}, but the model knows 0 to {symbols - 1}: fit with a larger "
                "n_features, or set unseen='missing' to sum over such symbols."
            )

    def chains(self) -> Iterator[tuple[Batch, Chain]]:
        """Each batch, and the same as a chain with all that is known of it."""
        for batch, ids_BT, missing_BT in self.some(np.arange(len(self.lengths_Q))):
            labels_BT = None if self.labels_N is None else batch.of(self.labels_N)
            yield batch, self.model.chain(ids_BT, batch.lengths_B, missing_BT, None, labels_BT)

    def some(self, chosen_Q: Integers) -> Iterator[tuple[Batch, Tensor, Tensor | None]]:
        """Batches of the chosen sequences."""
        with torch.no_grad():
            for batch in batches(self.lengths_Q, len(self.tables.startprob), np.sort(chosen_Q)):
                missing_BT = None if self.missing_N is None else batch.of(self.missing_N)
                yield batch, batch.of(self.symbols_N), missing_BT
