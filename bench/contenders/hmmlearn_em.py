"""hmmlearn: compiled recursions in double precision, one sequence after the other, and EM."""

from __future__ import annotations

import logging

from hmmlearn.hmm import CategoricalHMM

from bench.problem import Problem


class Hmmlearn:
    """Its faster implementation, from the problem's model rather than one of its own."""

    def __init__(self, problem: Problem, rows: int) -> None:
        # It warns of more parameters than data, which is so by design here.
        logging.getLogger("hmmlearn").setLevel(logging.ERROR)
        self.ids_N1 = problem.ids(rows).reshape(-1, 1)
        self.lengths = [problem.length] * rows
        self.model = CategoricalHMM(
            problem.states, n_features=problem.words, n_iter=1, init_params="", implementation="scaling"
        )
        tables = problem.tables()
        self.model.startprob_, self.model.transmat_, self.model.emissionprob_ = tables

    def evaluate(self) -> float:
        """Log-likelihood, total."""
        return float(self.model.score(self.ids_N1, self.lengths))

    def step(self) -> None:
        """One EM iteration."""
        self.model.fit(self.ids_N1, self.lengths)
