"""What one writes first in PyTorch: logsumexp over states × states at each step, and autograd for the rest."""

from __future__ import annotations

import torch
from torch import Tensor

from bench.contenders import LARGEST_GRADIENT, LEARNING_RATE, THREADS
from bench.problem import Problem


class Autograd:
    """Keeps batch × time × states² for the way back, hence few rows at a time."""

    def __init__(self, problem: Problem, rows: int) -> None:
        torch.set_num_threads(THREADS)
        self.ids_BT = torch.from_numpy(problem.ids(rows))
        self.logits = [torch.from_numpy(table).requires_grad_() for table in problem.logits()]
        self.optimizer = torch.optim.AdamW(self.logits, LEARNING_RATE, fused=True)

    def _log_likelihoods(self) -> Tensor:
        start_S, transition_SS, emission_VS = self.logits
        log_transition_SS = transition_SS.log_softmax(-1)
        log_emission_TBS = emission_VS.log_softmax(0)[self.ids_BT.T]
        alpha_BS = start_S.log_softmax(-1) + log_emission_TBS[0]
        for log_emission_BS in log_emission_TBS[1:]:
            alpha_BS = torch.logsumexp(alpha_BS.unsqueeze(-1) + log_transition_SS, 1) + log_emission_BS
        return alpha_BS.logsumexp(-1)

    @torch.no_grad()
    def evaluate(self) -> float:
        """Log-likelihood, total."""
        return float(self._log_likelihoods().double().sum())

    def step(self) -> None:
        """Gradient, clipping, update."""
        self.optimizer.zero_grad()
        (-self._log_likelihoods().sum() / self.ids_BT.numel()).backward()
        torch.nn.utils.clip_grad_norm_(self.logits, LARGEST_GRADIENT)
        self.optimizer.step()
