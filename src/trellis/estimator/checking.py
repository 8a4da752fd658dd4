"""What people give the estimator, made into arrays; whatever does not fit is refused in a sentence that names it."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from trellis.errors import InputError

Floats = NDArray[np.float64]
Integers = NDArray[np.int64]

# Numbers in a table of emissions that people can mean: 8 GB of float64. Beyond it, symbols are rather codes or hashes.
LARGEST_TABLE = 1 << 30
TOLERANCE = 1e-5  # of what a row of probabilities sums to


class Distributions(NamedTuple):
    """What belongs to starts S, transitions S×S and emissions S×V, by hmmlearn's names: tables, counts or priors."""

    startprob: Floats
    transmat: Floats
    emissionprob: Floats


def checked_symbols(X: Any) -> Integers:
    """The symbols of X, N: whole numbers from 0, as an array (n,) or a column (n, 1)."""
    array = integers("X", X, "encode the symbols as 0, 1, 2 …, for instance by sklearn.preprocessing.LabelEncoder")
    if array.ndim == 2 and array.shape[1] == 1:
        array = array[:, 0]
    if array.ndim == 2 and array.shape[1] == 0:
        raise InputError(f"X has 0 feature(s) (shape={array.shape}) while a minimum of 1 is required: give symbols.")
    if array.ndim != 1:
        raise InputError(
            f"X has shape {array.shape}: give one symbol a row, as (n,) or (n, 1), with the lengths of the sequences."
        )
    if len(array) == 0:
        raise InputError("X has 0 sample(s) while a minimum of 1 is required: give at least one symbol.")
    if array.min() < 0:
        raise InputError(f"Negative values in data: X holds {array.min()}, but symbols are numbered from 0.")
    return array


def integers(name: str, given: Any, mend: str) -> Integers:
    """An array of whole numbers, of any shape; `mend` says what to do with others."""
    if hasattr(given, "tocsr"):
        raise InputError(f"{name} is sparse, and dense arrays are taken: call its toarray().")
    try:
        array = np.asarray(given)
    except ValueError as error:
        raise InputError(f"{name} is a ragged list: join the sequences to one array and give their lengths.") from error
    if array.dtype == object and all(isinstance(one, (int, np.integer)) for one in array.flat):
        array = _narrowed(name, array)
    if array.dtype.kind == "f" and not np.isfinite(array).all():
        raise InputError(f"{name} holds NaN or infinity: leave such rows out, or {mend}.")
    if array.dtype.kind == "c":
        raise InputError(f"Complex data not supported: {name} must hold whole numbers.")
    if array.dtype.kind in "iu":
        return _narrowed(name, array)
    if array.size == 0:
        return array.astype(np.int64)
    what = {"f": "floats", "b": "truth values", "U": "strings", "S": "strings"}.get(array.dtype.kind, "objects")
    cast = " (whole ones by astype(int))" if array.dtype.kind in "fb" else ""
    raise InputError(f"{name} holds {what} where whole numbers belong{cast}: {mend}.")


def _narrowed(name: str, array: NDArray[Any]) -> Integers:
    if array.size and (int(array.max()) > np.iinfo(np.int64).max or int(array.min()) < np.iinfo(np.int64).min):
        raise InputError(f"{name} holds numbers beyond 64 bits: number from 0.")
    return array.astype(np.int64)


def checked_lengths(lengths: Any, samples: int) -> Integers:
    """How many rows of X each sequence has; None is one sequence of all."""
    if lengths is None:
        return np.array([samples])
    array = integers("lengths", lengths, "give how many rows of X each sequence has")
    if array.ndim != 1:
        raise InputError(f"lengths has shape {array.shape}: give a list of one number a sequence.")
    if (array < 1).any():
        at = int((array < 1).argmax())
        raise InputError(f"lengths holds {array[at]} for sequence {at}: leave empty sequences out.")
    if array.sum() != samples:
        raise InputError(f"lengths add up to {array.sum()} but X has {samples} rows: mend one of them.")
    return array


def checked_labels(labels: Any, samples: int, states: int) -> Integers:
    """The state of each row of X, N; −1 where it is unknown."""
    array = integers("labels", labels, "give the state of each row of X, −1 where it is unknown")
    if array.shape == (samples, 1):
        array = array[:, 0]
    if array.shape != (samples,):
        raise InputError(f"labels has shape {array.shape} but X has {samples} rows: give one label a row.")
    if array.min() < -1 or array.max() >= states:
        bad = array[(array < -1) | (array >= states)][0]
        raise InputError(f"labels holds {bad}: states are 0 to {states - 1} (n_components), and −1 is unknown.")
    return array


def checked_prior(name: str, prior: Any, shape: tuple[int, ...]) -> Floats:
    """A Dirichlet prior: one number, or an array that broadcasts to the shape of what it is about."""
    try:
        array = np.asarray(prior, dtype=np.float64)
        np.broadcast_to(array, shape)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} does not fit: give a number, or an array of shape {shape}.") from error
    if not np.isfinite(array).all() or (array < 0).any():
        raise InputError(f"{name} holds negative numbers or NaN: give positive ones, 1 for no preference.")
    return array


def checked_whole(name: str, value: Any, least: int) -> int:
    """A setting that is a whole number of at least so much."""
    if isinstance(value, bool) or not isinstance(value, (int, np.integer)) or value < least:
        raise InputError(f"{name}={value!r} is not possible: give a whole number of at least {least}.")
    return int(value)


def checked_number(name: str, value: Any) -> None:
    """A setting that is a number, be it infinite."""
    if isinstance(value, bool) or not isinstance(value, (int, float, np.integer, np.floating)) or value != value:
        raise InputError(f"{name}={value!r} is not possible: give a number.")


def checked_choice(name: str, value: Any, choices: tuple[str, ...]) -> str:
    """A setting that is one of some names."""
    if value not in choices:
        raise InputError(f"{name}={value!r} is not known: take one of {', '.join(choices)}.")
    return str(value)


def checked_letters(name: str, value: Any) -> None:
    """Which of start, transitions and emissions are meant."""
    if not isinstance(value, str) or not set(value) <= set("ste"):
        raise InputError(f"{name}={value!r} is not possible: put together s, t and e.")


def checked_table(name: str, given: Any, shape: tuple[int | None, ...]) -> Floats:
    """Probabilities of this shape (None: any size) whose rows sum to one."""
    try:
        array = np.asarray(given, dtype=np.float64)
    except (TypeError, ValueError) as error:
        raise InputError(f"{name} is no array of numbers: give probabilities.") from error
    fits = len(shape) == array.ndim and all(size in (None, own) for size, own in zip(shape, array.shape, strict=True))
    if not fits:
        wanted = " × ".join("any" if size is None else str(size) for size in shape)
        raise InputError(f"{name} has shape {array.shape}: n_components and n_features make it {wanted}.")
    if not (array >= 0).all():
        raise InputError(f"{name} holds negative numbers or NaN: give probabilities.")
    sums = np.atleast_1d(array.sum(-1))
    off = np.abs(sums - 1.0)
    if not off.max() < TOLERANCE:
        at = int(off.argmax())
        raise InputError(f"{name} must sum to one, but row {at} sums to {sums[at]:.6g}: divide each row by its sum.")
    return array


def symbols_known(n_features: int | None, symbols_N: Integers, states: int) -> int:
    """How many symbols there are: as given, or one more than the largest seen."""
    largest = int(symbols_N.max())
    if n_features is None:
        if (symbols_N == symbols_N[0]).all():
            raise InputError(
                f"X holds one symbol only, {symbols_N[0]}, from which nothing can be learned: give more data, or "
                "n_features if other symbols are possible."
            )
        n_features = largest + 1
    elif largest >= checked_whole("n_features", n_features, 1):
        raise InputError(f"X holds the symbol {largest}, but n_features={n_features} ends at {n_features - 1}.")
    if n_features * states > LARGEST_TABLE:
        raise InputError(
            f"X holds symbols up to {largest}, too many for a table of {states} states: renumber those that occur, "
            "for instance by sklearn.preprocessing.LabelEncoder."
        )
    return n_features
