"""dynamax: its scaled filter, differentiated and compiled by JAX, with optax's AdamW."""

from __future__ import annotations

from functools import partial

import jax
import jax.numpy as jnp
import optax
from dynamax.hidden_markov_model.inference import hmm_filter

from bench.contenders import LARGEST_GRADIENT, LEARNING_RATE
from bench.problem import Logits, Problem

OPTIMIZER = optax.chain(optax.clip_by_global_norm(LARGEST_GRADIENT), optax.adamw(LEARNING_RATE))


def log_likelihoods(logits: Logits, ids_BT: jax.Array) -> jax.Array:
    """Each row's log-likelihood, by the fastest of the ways tried.

    Log-emissions are gathered, where dynamax's own categorical would one-hot encode V wide; gathering before
    normalising, and rows before time, beat their opposites.
    """
    start_S, transition_SS = jax.nn.softmax(logits.start_S), jax.nn.softmax(logits.transition_SS, -1)
    log_emission_BTS = logits.emission_VS[ids_BT] - jax.nn.logsumexp(logits.emission_VS, 0)
    return jax.vmap(lambda row_TS: hmm_filter(start_S, transition_SS, row_TS).marginal_loglik)(log_emission_BTS)


def _loss(logits: Logits, ids_BT: jax.Array) -> jax.Array:
    return -log_likelihoods(logits, ids_BT).sum() / ids_BT.size


@jax.jit
def _evaluate(logits: Logits, ids_BT: jax.Array) -> jax.Array:
    return log_likelihoods(logits, ids_BT)


@partial(jax.jit, donate_argnums=(0, 1))
def _step(logits: Logits, state: optax.OptState, ids_BT: jax.Array) -> tuple[Logits, optax.OptState]:
    updates, state = OPTIMIZER.update(jax.grad(_loss)(logits, ids_BT), state, logits)
    return optax.apply_updates(logits, updates), state


class Dynamax:
    """Softmaxed logits, by gradient. XLA uses every core the machine has."""

    def __init__(self, problem: Problem, rows: int) -> None:
        self.ids_BT = jnp.asarray(problem.ids(rows))
        self.logits = Logits(*map(jnp.array, problem.logits()))
        self.state = OPTIMIZER.init(self.logits)

    def evaluate(self) -> float:
        """Log-likelihood, total."""
        return float(_evaluate(self.logits, self.ids_BT).sum())

    def step(self) -> None:
        """Gradient and update in one compiled call, parameters updated in place."""
        self.logits, self.state = jax.block_until_ready(_step(self.logits, self.state, self.ids_BT))
