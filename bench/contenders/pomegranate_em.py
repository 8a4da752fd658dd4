"""pomegranate: PyTorch with a distribution object a state, and EM."""

from __future__ import annotations

import torch
from pomegranate.distributions import Categorical
from pomegranate.hmm import DenseHMM

from bench.contenders import THREADS
from bench.problem import Problem


class Pomegranate:
    """Checks of data are off, which its documentation says is faster."""

    def __init__(self, problem: Problem, rows: int) -> None:
        torch.set_num_threads(THREADS)
        self.ids_BT1 = torch.from_numpy(problem.ids(rows)).unsqueeze(-1)
        start_S, transition_SS, emission_SV = (torch.from_numpy(table).float() for table in problem.tables())
        words = [Categorical(row[None], check_data=False) for row in emission_SV]
        # Ends of probability one: sequences stop anywhere at no cost, as they do for everyone else.
        self.model = DenseHMM(
            words, edges=transition_SS, starts=start_S, ends=torch.ones(problem.states), check_data=False
        )

    def evaluate(self) -> float:
        """Log-likelihood, total."""
        return float(self.model.log_probability(self.ids_BT1).double().sum())

    def step(self) -> None:
        """One EM iteration. Counting loops over states and words in Python, however few the tokens."""
        self.model.summarize(self.ids_BT1)
        self.model.from_summaries()
