"""Blocked models as `trellis train` trains them: streams, whose beliefs go on from batch to batch."""

from __future__ import annotations

from collections.abc import Mapping
from types import MappingProxyType
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

from bench.blocked_problem import BlockedProblem
from bench.breakdown import UPDATE, Operations, breakdown
from bench.contenders import LARGEST_GRADIENT, LEARNING_RATE, THREADS, Precision, versions
from trellis.text import Batch
from trellis.training.learners import GradientLearner
from trellis.training.settings import CompleteSettings


@torch.no_grad()
def exact_log_likelihoods(
    problem: BlockedProblem, settings: Mapping[str, Any] = MappingProxyType({})
) -> NDArray[np.float64]:
    """Each row's log-likelihood in double precision."""
    log_prob_BT, _ = versions.blocked(problem, **settings).double().eval().score(torch.from_numpy(problem.ids()))
    found: NDArray[np.float64] = log_prob_BT.sum(1).numpy()
    return found


class Blocked:
    """Neural parameters, state dropout, clipped AdamW; the same batch again and again."""

    def __init__(
        self,
        problem: BlockedProblem,
        rows: int,
        precision: Precision = "float32",
        settings: Mapping[str, Any] = MappingProxyType({}),
    ) -> None:
        torch.set_num_threads(THREADS)
        torch.manual_seed(problem.seed)  # of the dropout
        self.problem, self.precision = problem, precision
        self.batch = Batch(torch.from_numpy(problem.ids(rows)), torch.full((rows,), problem.length), carried=True)
        self.model = versions.blocked(problem, **settings).train()
        training = CompleteSettings(
            batching="streams", batch_size=rows, length=problem.length, lr=LEARNING_RATE, clip=LARGEST_GRADIENT,
            precision=precision,
        )  # fmt: skip
        self.learner = GradientLearner(self.model, training)
        self.state: torch.Tensor | None = None

    @torch.no_grad()
    def evaluate(self) -> float:
        """Log-likelihood, total, with every state, of a model in use."""
        self.model.eval()
        with versions.in_precision(self.precision):
            log_prob_BT, _ = self.model.score(self.batch.ids)
        return float(log_prob_BT.double().sum())

    def step(self) -> None:
        """Gradient and update."""
        self.model.train()
        learnt = self.learner.learn(self.batch, self.state)
        self.state = learnt.state
        with torch.profiler.record_function(UPDATE):
            self.learner.update(learnt.tokens, 1.0)

    def facts(self) -> dict[str, Any]:
        """Which kernels it uses, what a step must multiply, and where the time of one goes."""
        return {
            "level": versions.ops.status().level,
            "operations": _operations(self.problem),
            "breakdown": breakdown(self.step),
        }


def _operations(problem: BlockedProblem) -> Operations:
    """Additions and multiplications of a step's matrix products, none counted twice."""
    groups, words = problem.block_of_words(), problem.ids()
    present = np.unique(groups[words])
    kept, width, states = problem.kept, problem.width, len(present) * problem.kept
    # Pairs of the text, and for each row the one that leads on from the batch before.
    pairs = (len(problem.pairs()) + problem.batch) * kept * kept * width
    entered = problem.blocks if problem.transition == "hierarchical" else problem.blocks * kept
    normaliser = (states + problem.batch * kept) * entered * width
    emission = int(np.isin(groups, present).sum()) * kept * width
    networks = (2 * states + problem.batch * kept) * 2 * width * width  # leaving and emitting, two layers each
    return {
        "recursion": 6.0 * problem.batch * (problem.length - 1) * kept * kept,
        "products": 6.0 * (pairs + normaliser + emission + networks),
    }
