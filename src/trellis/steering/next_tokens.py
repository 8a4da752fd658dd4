"""What a constraint says of every next token, given what an HMM believes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.steering.messages import Messages
from trellis.steering.steps import Plain


class Chances(NamedTuple):
    """log_joint_BV  log p(token, the constraint will be met | what was read)
    log_token_BV  log p(token | what was read)
    """

    log_joint_BV: Tensor
    log_token_BV: Tensor

    def log_met(self) -> Tensor:
        """log p(the constraint will be met | what was read, token), B×V: at most zero, −inf of impossible tokens."""
        there_BV = self.log_joint_BV > -torch.inf
        return torch.where(there_BV, self.log_joint_BV - self.log_token_BV, -torch.inf).clamp_max(0.0)


class NextTokens:
    """Looks at every token at once.

    Of the automaton only the steps from a row's state are paid for: most tokens share one, which is a product with all
    emissions, and for the others a product with theirs alone.
    """

    def __init__(self, messages: Messages) -> None:
        if not isinstance(messages.steps, Plain):
            raise TrellisError(
                "what each next token does to a constraint takes too long to say where states remember words: use a "
                "model without model.memory."
            )
        self.messages, self.steps = messages, messages.steps
        self.size_C = np.bincount(messages.automaton.class_V, minlength=messages.automaton.classes)
        order_V = np.argsort(messages.automaton.class_V, kind="stable")
        self.tokens_C = np.split(order_V, np.cumsum(self.size_C)[:-1])  # those of each class

    @torch.no_grad()
    def chances(self, predicted_BS: Tensor, state_B: Tensor, left: int) -> Chances:
        """Of every token, where `left` tokens are to come, this one included.

        `predicted_BS` is the distribution of the next token's state, `state_B` the state of the automaton.
        """
        predicted_BS = predicted_BS.to(self.messages.message_NQS)
        groups = self._groups(state_B)
        first_BS, log_first_B1 = self._weighed(predicted_BS, groups[0].target_B, left)
        joint_BV, token_BV = self.messages.model.words_of(torch.cat([first_BS, predicted_BS])).log().chunk(2)
        joint_BV += log_first_B1
        for group in groups[1:]:
            tokens_N = torch.from_numpy(np.concatenate([self.tokens_C[one] for one in group.classes]))
            tokens_N = tokens_N.to(predicted_BS.device)
            weighed_BS, log_scale_B1 = self._weighed(predicted_BS, group.target_B, left)
            if bool((log_scale_B1 > -torch.inf).any()):
                joint_BV[:, tokens_N] = self.messages.model.words_of(weighed_BS, tokens_N).log() + log_scale_B1
            else:
                joint_BV[:, tokens_N] = -torch.inf
        return Chances(joint_BV, token_BV)

    def _groups(self, state_B: Tensor) -> list[_Group]:
        """Classes that lead every row to the same states, the group of most tokens first."""
        target_BC = self.messages.automaton.next_QC[state_B.cpu().numpy()]
        target_BG, group_C = np.unique(target_BC, axis=1, return_inverse=True)
        size_G = np.bincount(group_C.ravel(), weights=self.size_C)
        return [
            _Group(
                np.flatnonzero(group_C.ravel() == one).tolist(),
                torch.from_numpy(target_BG[:, one].astype(np.int64)).to(state_B.device),
            )
            for one in np.argsort(-size_G, kind="stable")
        ]

    def _weighed(self, predicted_BS: Tensor, target_B: Tensor, left: int) -> tuple[Tensor, Tensor]:
        """p(state of the next token) times what is to be expected after it, and the logarithm of its scale, B×1."""
        messages = self.messages
        after_BS = self.steps.left(messages.message_NQS[left - 1, target_B])
        return predicted_BS * after_BS, messages.log_scale_NQ[left - 1, target_B][:, None]


class _Group(NamedTuple):
    """Classes of tokens, and the state of the automaton that each row reaches by them."""

    classes: list[int]
    target_B: Tensor
