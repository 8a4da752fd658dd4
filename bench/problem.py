"""The task every contender is given: one model, one batch, and the answer computed independently."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Array = NDArray[np.float32]
Double = NDArray[np.float64]


class Logits(NamedTuple):
    """Unnormalised log-probabilities, words × states for the emission, as Trellis stores them."""

    start_S: Array
    transition_SS: Array
    emission_VS: Array


class Tables(NamedTuple):
    """The same as probabilities in double precision; rows of `emission_SV` sum to one."""

    start_S: Double
    transition_SS: Double
    emission_SV: Double


class Factors(NamedTuple):
    """The thin tables whose products are the logits: what a low-rank model holds instead of them."""

    first_1R: Array
    states_in_SR: Array
    states_out_SR: Array
    states_emit_SR: Array
    words_VR: Array

    def logits(self) -> Logits:
        """Multiply the factors out."""
        return Logits(
            (self.first_1R @ self.states_out_SR.T)[0],
            self.states_in_SR @ self.states_out_SR.T,
            self.words_VR @ self.states_emit_SR.T,
        )


def _softmax(logits: Array, axis: int) -> Double:
    exact = np.exp(logits.astype(np.float64) - logits.max(axis, keepdims=True))
    return exact / exact.sum(axis, keepdims=True)


@dataclass(frozen=True)
class Problem:
    """A size and a seed. Everything else is drawn from them, so that each process can draw it for itself."""

    states: int = 512
    words: int = 10_000
    batch: int = 200  # sequences
    length: int = 64  # tokens in each
    rank: int = 128
    seed: int = 0

    @property
    def tokens(self) -> int:
        """How many tokens the whole batch holds."""
        return self.batch * self.length

    def toy(self) -> Problem:
        """The smallest of its kind: what libraries do with it, they will not have to do again."""
        return Problem(states=4, words=8, batch=2, length=3, rank=2)

    def described(self) -> dict[str, Any]:
        """The size for results, beside what holding batch × time × states² floats would take."""
        return {**asdict(self), "square_bytes": 4 * self.tokens * self.states**2}

    def factors(self) -> Factors:
        """Model parameters. They have low rank so that one model suits scalar and low-rank contenders alike."""
        draw = np.random.default_rng(self.seed)
        scale = self.rank**-0.25  # gives products of two tables unit variance
        sizes = (1, self.states, self.states, self.states, self.words)
        return Factors(*(scale * draw.standard_normal((rows, self.rank), np.float32) for rows in sizes))

    def logits(self) -> Logits:
        """The model for contenders with one parameter an entry."""
        return self.factors().logits()

    def tables(self) -> Tables:
        """The model for contenders that take probabilities."""
        start_S, transition_SS, emission_VS = self.logits()
        emission_SV = np.ascontiguousarray(_softmax(emission_VS, 0).T)
        return Tables(_softmax(start_S, 0), _softmax(transition_SS, 1), emission_SV)

    def ids(self, rows: int | None = None) -> NDArray[np.int64]:
        """Words with the frequencies of a natural text (Zipf–Mandelbrot), batch × length, or the first rows."""
        frequency = 1.0 / (np.arange(self.words) + 2.7)
        draw = np.random.default_rng(self.seed + 1)
        ids_BT = draw.choice(self.words, size=(self.batch, self.length), p=frequency / frequency.sum())
        return ids_BT[:rows]

    def log_likelihoods(self) -> Double:
        """Each row's log-likelihood by a plain filter in double precision: the answer contenders must give."""
        start_S, transition_SS, emission_SV = self.tables()
        ids_BT, log_prob_B = self.ids(), np.zeros(self.batch)
        predicted_BS = np.broadcast_to(start_S, (self.batch, self.states))
        for t in range(self.length):
            joint_BS = predicted_BS * emission_SV[:, ids_BT[:, t]].T
            scale_B = joint_BS.sum(1)
            log_prob_B += np.log(scale_B)
            predicted_BS = (joint_BS / scale_B[:, None]) @ transition_SS
        return log_prob_B
