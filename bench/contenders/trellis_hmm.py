"""Trellis, as its training runs it. Importing it asks torch for huge pages; nothing here does so on its behalf."""

from __future__ import annotations

from typing import Any

import torch

from bench.breakdown import UPDATE, Operations, breakdown
from bench.contenders import LARGEST_GRADIENT, LEARNING_RATE, THREADS, Precision, versions
from bench.problem import Problem
from trellis.models import HMM, HMMConfig
from trellis.text import Batch
from trellis.training.learners import BaumWelchLearner, GradientLearner, Learner
from trellis.training.settings import CompleteSettings


class Trained:
    """The learner that `trellis train` uses, on one batch again and again."""

    def __init__(self, problem: Problem, rows: int, precision: Precision = "float32") -> None:
        torch.set_num_threads(THREADS)
        self.problem, self.precision = problem, precision
        ids_BT = torch.from_numpy(problem.ids(rows))
        self.batch = Batch(ids_BT, torch.full((rows,), problem.length), carried=False)
        self.model = self.build(problem)
        self.learner = self.learner_of(self.model)

    def build(self, problem: Problem) -> HMM:
        """The model of this problem."""
        raise NotImplementedError

    def learner_of(self, model: HMM) -> Learner:
        """What learns from batches."""
        settings = CompleteSettings(lr=LEARNING_RATE, clip=LARGEST_GRADIENT, precision=self.precision)
        return GradientLearner(model, settings)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Log-likelihood, total, of a model in use: what it makes of its parameters is kept until they change."""
        self.model.eval()
        with versions.in_precision(self.precision):
            log_prob_BT, _ = self.model.score(self.batch.ids)
        return float(log_prob_BT.double().sum())

    def step(self) -> None:
        """Gradient or counts, and the update."""
        self.model.train()
        learnt = self.learner.learn(self.batch, None)
        with torch.profiler.record_function(UPDATE):
            self.learner.update(learnt.tokens, 1.0)

    def facts(self) -> dict[str, Any]:
        """Its size, which kernels it uses, what a step must multiply, and where the time of one goes."""
        return {
            "parameters": sum(parameter.numel() for parameter in self.model.parameters()),
            "level": versions.ops.status().level,
            "operations": self.operations(),
            "breakdown": breakdown(self.step),
        }

    def operations(self) -> Operations:
        """Additions and multiplications of a step's matrix products, none counted twice."""
        size, (rows, length) = self.problem, self.batch.ids.shape
        return {"recursion": 6.0 * rows * (length - 1) * size.states**2, "products": 0.0}


class Scalar(Trained):
    """One logit an entry."""

    def build(self, problem: Problem) -> HMM:
        """The problem's logits as parameters."""
        model = HMM(HMMConfig(vocab_size=problem.words, states=problem.states))
        start_S, transition_SS, emission_VS = map(torch.from_numpy, problem.logits())
        with torch.no_grad():
            model.start.table.view(-1).copy_(start_S)
            model.transition.table.copy_(transition_SS)
            model.emission.table.copy_(emission_VS)
        return model


class BaumWelch(Scalar):
    """The same model by expectation–maximisation."""

    def learner_of(self, model: HMM) -> Learner:
        """One full EM iteration a step."""
        return BaumWelchLearner(model, CompleteSettings(method="baum_welch"))


class LowRank(Trained):
    """Start, transition and emission as products of thin tables."""

    def build(self, problem: Problem) -> HMM:
        """The problem's factors as parameters."""
        model, tables = versions.low_rank(problem.words, problem.states, problem.rank)
        with torch.no_grad():
            for table, factor in zip(tables, problem.factors(), strict=True):
                table.view(factor.shape).copy_(torch.from_numpy(factor))
        return model

    def operations(self) -> Operations:
        """Those of the recursion, and of the logits of transitions and emissions."""
        size = self.problem
        terms = size.states * size.rank * (size.states + size.words)
        return {**super().operations(), "products": 6.0 * terms}
