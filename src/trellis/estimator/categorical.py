"""hmmlearn's `CategoricalHMM` by its own names, computed by Trellis: settings, learning, and ways in and out."""

from __future__ import annotations

import copy
import warnings
from typing import Any, NamedTuple, Self

import numpy as np

from trellis.errors import TrellisError
from trellis.estimator.checking import (
    Distributions,
    Floats,
    checked_choice,
    checked_labels,
    checked_lengths,
    checked_letters,
    checked_number,
    checked_prior,
    checked_symbols,
    checked_table,
    checked_whole,
    symbols_known,
)
from trellis.estimator.expectation import ConvergenceMonitor, Data, Expected, expected, maximised
from trellis.estimator.questions import ALGORITHMS, DTYPES, NAMES, UNSEEN, Questions
from trellis.estimator.windows import Sequences

try:
    from sklearn.base import BaseEstimator
    from sklearn.utils import check_random_state
except ImportError as error:
    raise TrellisError("CategoricalHMM needs scikit-learn: run pip install 'trellis-lm[sklearn]'.") from error

# How fast `partial_fit` forgets: the k-th call weighs k to this power (Liang & Klein 2009 found 0.7 to do well).
FORGETTING = -0.7


class Running(NamedTuple):
    """What `partial_fit` remembers: expected counts a symbol, a moving mean over calls, and how much was seen."""

    mean: Distributions
    calls: int
    symbols: int


class CategoricalHMM(Questions, BaseEstimator):  # type: ignore[misc]  # scikit-learn has no types
    """A hidden Markov model of discrete symbols, learned by expectation–maximisation.

    X holds one symbol a row, as (n,) or (n, 1), and `lengths` how many rows each sequence has; without them, X is one
    sequence. `startprob_`, `transmat_` and `emissionprob_` may be set instead of learned; a zero in the first two stays
    zero while learning, if `init_params` leaves that table alone.

    n_components        number of states
    startprob_prior, transmat_prior, emissionprob_prior
                        Dirichlet priors, numbers or arrays; 1 has no preference
    n_features          number of symbols; None: one more than the largest seen in learning
    algorithm           what `decode` and `predict` find: "viterbi", the best path, or "map", the best state at each row
    random_state        seed or generator of the first parameters and of samples
    n_iter, tol         learning ends after so many steps, or when one gains less log-likelihood than this
    verbose             print each step to stderr
    params, init_params which tables learn, and which begin at random: s(tart), t(ransitions), e(missions)
    implementation      taken for hmmlearn's sake; it changes nothing
    n_init              begin so often, and keep the run whose log-likelihood ended highest
    transmat_allowed    truth values (n_components, n_components): transitions that are false stay zero, and a state
                        with one that is true must go there
    transmat_ties       whole numbers of the same shape: transitions of the same number share one probability, and
                        those of −1 are free
    unseen              a symbol that no state emits is an "error" if it is none of `n_features` (and else makes its
                        sequence impossible), or it is "missing": its place is summed over, and counts as certain
    dtype               "float64" agrees with hmmlearn to 1e-6; "float32" is nearly twice as fast
    """

    startprob_: Floats
    transmat_: Floats
    emissionprob_: Floats

    def __init__(
        self,
        n_components: int = 1,
        startprob_prior: Any = 1.0,
        transmat_prior: Any = 1.0,
        *,
        emissionprob_prior: Any = 1.0,
        n_features: int | None = None,
        algorithm: str = "viterbi",
        random_state: Any = None,
        n_iter: int = 10,
        tol: float = 1e-2,
        verbose: bool = False,
        params: str = "ste",
        init_params: str = "ste",
        implementation: str = "log",
        n_init: int = 1,
        unseen: str = "error",
        dtype: str = "float64",
        transmat_allowed: Any = None,
        transmat_ties: Any = None,
    ) -> None:
        self.n_components = n_components
        self.startprob_prior = startprob_prior
        self.transmat_prior = transmat_prior
        self.emissionprob_prior = emissionprob_prior
        self.n_features = n_features
        self.algorithm = algorithm
        self.random_state = random_state
        self.n_iter = n_iter
        self.tol = tol
        self.verbose = verbose
        self.params = params
        self.init_params = init_params
        self.implementation = implementation
        self.n_init = n_init
        self.unseen = unseen
        self.dtype = dtype
        self.transmat_allowed = transmat_allowed
        self.transmat_ties = transmat_ties

    @property
    def monitor_(self) -> Any:
        """The progress of learning; one of your own may be assigned before `fit`."""
        given = vars(self).get("_monitor")
        return given if given is not None else ConvergenceMonitor(self.tol, self.n_iter, self.verbose)

    @monitor_.setter
    def monitor_(self, monitor: Any) -> None:
        self._monitor, self._own_monitor = monitor, True

    # Learning

    def fit(self, X: Any, lengths: Any = None, *, labels: Any = None) -> Self:
        """Learn from sequences, of which some rows' states may be known: `labels`, −1 where unknown.

        Each step maximises the likelihood given the expected counts of the step before; labels count as observed.
        """
        data, symbols = self._data(X, lengths, labels)
        random, priors = check_random_state(self.random_state), self._priors(symbols)
        runs = [self._climb(data, self._first(symbols, random), priors) for _ in range(self._starts())]
        tables, found, monitor = max(runs, key=lambda run: run[2].history[-1] if run[2].history else -np.inf)
        self._monitor = monitor
        self._keep(tables, None if found is None else _mean(found, len(data.symbols_N)))
        return self

    def partial_fit(self, X: Any, lengths: Any = None, *, labels: Any = None) -> Self:
        """One step of learning from some more sequences, with all earlier calls remembered (stepwise EM).

        Expected counts of the k-th call (`fit` was the first) move a mean over calls by k^−0.7 towards themselves; the
        tables are those that this mean, times all symbols seen, makes most probable.
        """
        running: Running | None = vars(self).get("_running")
        data, symbols = self._data(X, lengths, labels, None if running is None else self.emissionprob_.shape[1])
        tables = self._first(symbols, check_random_state(self.random_state)) if running is None else self.tables()
        found = expected(tables, data, DTYPES[self.dtype])
        new = _mean(found, len(data.symbols_N))
        if running is not None:
            new = _moved(running, new)
        total = Distributions(*(mean * new.symbols for mean in new.mean))
        self._monitor = self._fresh_monitor() if running is None else self.monitor_
        self._monitor.report(found.log_prob)
        ties_SS = self.restrictions().ties_SS
        self._keep(maximised(tables, total, self._priors(symbols), self.params, ties_SS), new)
        return self

    def _data(self, X: Any, lengths: Any, labels: Any, symbols: int | None = None) -> tuple[Data, int]:
        """What to learn from, checked, and the number of symbols."""
        self._check_settings()
        symbols_N = checked_symbols(X)
        lengths_Q = checked_lengths(lengths, len(symbols_N))
        symbols = symbols_known(symbols or self.n_features, symbols_N, self.n_components)
        labels_N = None if labels is None else checked_labels(labels, len(symbols_N), self.n_components)
        self.n_features_in_ = 1
        return Data(symbols_N, Sequences(symbols_N, lengths_Q, self.n_components), labels_N), symbols

    def _check_settings(self) -> None:
        for name, least in (("n_components", 1), ("n_iter", 0), ("n_init", 1)):
            checked_whole(name, getattr(self, name), least)
        checked_letters("params", self.params)
        checked_letters("init_params", self.init_params)
        checked_choice("dtype", self.dtype, tuple(DTYPES))
        checked_choice("unseen", self.unseen, UNSEEN)
        checked_choice("algorithm", self.algorithm, ALGORITHMS)
        checked_number("tol", self.tol)
        self.restrictions()  # refuses what cannot be

    def _priors(self, symbols: int) -> Distributions:
        shapes = self._shapes(symbols)
        return Distributions(
            *(checked_prior(f"{name}_prior", getattr(self, f"{name}_prior"), shapes[name]) for name in NAMES)
        )

    def _shapes(self, symbols: int) -> dict[str, tuple[int, ...]]:
        states = int(self.n_components)
        return dict(zip(NAMES, ((states,), (states, states), (states, symbols)), strict=True))

    def _starts(self) -> int:
        """How often to begin: once, if nothing is random."""
        return self.n_init if any(self._random(name) for name in NAMES) else 1

    def _random(self, name: str) -> bool:
        """Whether a table begins at random."""
        return name[0] in self.init_params or f"{name}_" not in vars(self)

    def _first(self, symbols: int, random: np.random.RandomState) -> Distributions:
        """The tables to begin with: drawn evenly from all distributions, or as they were set."""
        tables, restrictions = [], self.restrictions()
        for name, shape in self._shapes(symbols).items():
            given = vars(self).get(f"{name}_")
            if not self._random(name):
                tables.append(checked_table(f"{name}_", given, shape))
                if name == "transmat":
                    restrictions.check(tables[-1])
                continue
            if given is not None and given is not vars(self).get("_learned", {}).get(name):
                warnings.warn(
                    f"{name}_ was set but begins at random, as init_params={self.init_params!r} says: leave "
                    f"{name[0]} out of it to begin with what was set.",
                    stacklevel=3,
                )
            drawn = random.dirichlet(np.ones(shape[-1]), size=shape[:-1] or None)
            tables.append(restrictions.drawn(drawn) if name == "transmat" else drawn)
        return Distributions(*tables)

    def _climb(
        self, data: Data, tables: Distributions, priors: Distributions
    ) -> tuple[Distributions, Expected | None, Any]:
        """Steps of EM until the monitor is content: the tables, the last counts and the monitor."""
        monitor, found, ties_SS = self._fresh_monitor(), None, self.restrictions().ties_SS
        for _ in range(self.n_iter):
            found = expected(tables, data, DTYPES[self.dtype])
            tables = maximised(tables, found.counts, priors, self.params, ties_SS)
            monitor.report(found.log_prob)
            if monitor.converged:
                break
        return tables, found, monitor

    def _fresh_monitor(self) -> Any:
        """A monitor that has seen nothing: the user's, if there is one."""
        if "_own_monitor" not in vars(self):
            return ConvergenceMonitor(self.tol, self.n_iter, self.verbose)
        monitor = copy.deepcopy(self._monitor)
        monitor.iter = 0
        monitor.history.clear()
        return monitor

    def _keep(self, tables: Distributions, running: Running | None) -> None:
        self._learned = dict(zip(NAMES, tables, strict=True))
        self.startprob_, self.transmat_, self.emissionprob_ = tables
        self._running = running

    # In and out

    @classmethod
    def from_hmmlearn(cls, model: Any) -> Self:
        """The same settings and tables as hmmlearn's estimator, fitted or not."""
        own = cls()
        given = {name: value for name, value in model.get_params(deep=False).items() if name in own.get_params()}
        own.set_params(**given)
        for name in NAMES:
            if hasattr(model, f"{name}_"):
                setattr(own, f"{name}_", np.array(getattr(model, f"{name}_"), dtype=np.float64))
        return own

    def to_hmmlearn(self) -> Any:
        """hmmlearn's estimator with the same settings and tables."""
        try:
            from hmmlearn.hmm import CategoricalHMM as Theirs
        except ImportError as error:
            raise TrellisError("to_hmmlearn makes a model of hmmlearn's: run pip install hmmlearn.") from error
        theirs = Theirs()
        theirs.set_params(**{name: value for name, value in self.get_params().items() if name in theirs.get_params()})
        for name in NAMES:
            if f"{name}_" in vars(self):
                setattr(theirs, f"{name}_", np.array(getattr(self, f"{name}_")))
        return theirs

    def __sklearn_tags__(self) -> Any:
        tags = super().__sklearn_tags__()
        tags.input_tags.one_d_array = True
        tags.input_tags.categorical = True
        tags.input_tags.positive_only = True
        return tags


def _mean(found: Expected, symbols: int) -> Running:
    return Running(Distributions(*(count / symbols for count in found.counts)), 1, symbols)


def _moved(old: Running, new: Running) -> Running:
    """The mean moved towards the new call's, as much as there were calls before."""
    weight = (old.calls + 1) ** FORGETTING
    mean = (a + weight * (b - a) for a, b in zip(old.mean, new.mean, strict=True))
    return Running(Distributions(*mean), old.calls + 1, old.symbols + new.symbols)
