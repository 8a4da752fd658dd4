"""Trellis, as its training runs it. Importing it asks torch for huge pages; nothing here does so on its behalf."""

from __future__ import annotations

import torch

from bench.contenders import LARGEST_GRADIENT, LEARNING_RATE, THREADS
from bench.problem import Problem
from trellis.models import HMM, HMMConfig
from trellis.text import Batch
from trellis.training import TrainingSettings
from trellis.training.learners import BaumWelchLearner, GradientLearner, Learner


class _Trellis:
    """The learner that `trellis train` uses, on one batch again and again."""

    def __init__(self, problem: Problem, rows: int) -> None:
        torch.set_num_threads(THREADS)
        ids_BT = torch.from_numpy(problem.ids(rows))
        self.batch = Batch(ids_BT, torch.full((rows,), problem.length), carried=False)
        self.model = self.build(problem)
        self.learner = self.learner_of(self.model)

    def build(self, problem: Problem) -> HMM:
        """The model of this problem."""
        raise NotImplementedError

    def learner_of(self, model: HMM) -> Learner:
        """What learns from batches."""
        return GradientLearner(model, TrainingSettings(lr=LEARNING_RATE, clip=LARGEST_GRADIENT))

    @torch.no_grad()
    def evaluate(self) -> float:
        """Log-likelihood, total."""
        log_prob_BT, _ = self.model.score(self.batch.ids)
        return float(log_prob_BT.double().sum())

    def step(self) -> None:
        """Gradient or counts, and the update."""
        learnt = self.learner.learn(self.batch, None)
        self.learner.update(learnt.tokens, 1.0)


class Scalar(_Trellis):
    """One logit an entry."""

    def build(self, problem: Problem) -> HMM:
        """The problem's logits as parameters."""
        model = HMM(HMMConfig(vocab_size=problem.words, states=problem.states))
        start_S, transition_SS, emission_VS = map(torch.from_numpy, problem.logits())
        with torch.no_grad():
            model.start.table.copy_(start_S[None])
            model.transition.table.copy_(transition_SS)
            model.emission.table.copy_(emission_VS)
        return model


class BaumWelch(Scalar):
    """The same model by expectation–maximisation."""

    def learner_of(self, model: HMM) -> Learner:
        """One full EM iteration a step."""
        return BaumWelchLearner(model, TrainingSettings(method="baum_welch"))


class LowRank(_Trellis):
    """Start, transition and emission as products of thin tables."""

    def build(self, problem: Problem) -> HMM:
        """The problem's factors as parameters."""
        model = HMM(HMMConfig(problem.words, problem.states, "low_rank", "low_rank", "low_rank", problem.rank))
        first, states_in, states_out, states_emit, words = map(torch.from_numpy, problem.factors())
        with torch.no_grad():
            model.start.left.copy_(first)
            model.transition.left.copy_(states_in)
            model.transition.right.copy_(states_out)  # which the start shares
            model.emission.left.copy_(words)
            model.emission.right.copy_(states_emit)
        return model
