"""What a constraint says of every next token, given what an HMM believes."""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.ops.packed import Packed
from trellis.steering.messages import Messages
from trellis.steering.steps import Plain

FEW = 1 << 10  # groups of fewer tokens, were all as small, are taken together
AT_ONCE = 64  # tokens of such groups that are held at once, for each row and state


class Chances(NamedTuple):
    """log_joint_BV  log p(token, the constraint will be met | what was read)
    log_token_BV  log p(token | what was read)
    """

    log_joint_BV: Tensor
    log_token_BV: Tensor

    def log_met(self) -> Tensor:
        """log p(the constraint will be met | what was read, token), B×V: at most zero, −inf of impossible tokens."""
        log_met_BV = (self.log_joint_BV - self.log_token_BV).clamp_max_(0.0)
        return log_met_BV.nan_to_num_(nan=-torch.inf, neginf=-torch.inf)  # not a number where neither can be


class _Group(NamedTuple):
    """Classes of tokens by which every row reaches the same state of the automaton as by the others, and that state."""

    classes: list[int]
    target_B: Tensor


class _Others(NamedTuple):
    """The tokens of all groups but the first, one group after another, and p(token | state) if the support is dense."""

    tokens_N: Tensor
    sizes: list[int]
    emission_NS: Tensor | None


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
        self._last: tuple[list[list[int]], _Others] | None = None  # texts mostly stay where they are in the automaton

    @torch.no_grad()
    def chances(self, predicted_BS: Tensor, state_B: Tensor, left: int) -> Chances:
        """Of every token, where `left` tokens are to come, this one included.

        `predicted_BS` is the distribution of the next token's state, `state_B` the state of the automaton.
        """
        predicted_BS = predicted_BS.to(self.messages.message_NQS)
        groups = self._groups(state_B)
        target_BG = torch.stack([group.target_B for group in groups], 1)
        targets_U, place_BG = target_BG.unique(return_inverse=True)
        after_US = self.steps.left(self.messages.message_NQS[left - 1, targets_U])
        log_scale_BG = self.messages.log_scale_NQ[left - 1, target_BG]
        first_BS = predicted_BS * after_US[place_BG[:, 0]]
        joint_BV, token_BV = self._words_of(torch.cat([first_BS, predicted_BS])).log_().chunk(2)
        joint_BV += log_scale_BG[:, :1]
        if len(groups) > 1:
            others = self._others(groups)
            joint_BN = self._joint_of_others(others, predicted_BS, after_US, place_BG[:, 1:]).log_()
            group_N = torch.repeat_interleave(torch.tensor(others.sizes)).to(place_BG.device) + 1
            joint_BV[:, others.tokens_N] = joint_BN + log_scale_BG[:, group_N]
        return Chances(joint_BV, token_BV)

    def _joint_of_others(self, others: _Others, predicted_BS: Tensor, after_US: Tensor, place_BG: Tensor) -> Tensor:
        """p(token) times what is to be expected after it, but for its scale, of tokens in all groups but the first.

        Groups of few tokens, of which there are many, are taken together.
        """
        parts, few, begin = [], [], 0
        for number, size in enumerate(others.sizes):
            if size * len(others.sizes) < FEW and others.emission_NS is not None:
                few += [number] * size
            else:
                weighed_BS = predicted_BS * after_US[place_BG[:, number]]
                parts.append(self._part(others, slice(begin, begin + size), weighed_BS))
            begin += size
        if few:  # sizes fall, so that these are the last
            assert others.emission_NS is not None
            emission_MS = others.emission_NS[-len(few) :]
            for some, rows_MS in zip(torch.tensor(few).split(AT_ONCE), emission_MS.split(AT_ONCE), strict=True):
                weighed_BMS = predicted_BS[:, None] * after_US[place_BG[:, some.to(place_BG.device)]]
                parts.append(torch.linalg.vecdot(weighed_BMS, rows_MS))
        return torch.cat(parts, 1)

    def _part(self, others: _Others, some: slice, weighed_BS: Tensor) -> Tensor:
        if others.emission_NS is None:
            return self.messages.model.words_of(weighed_BS, others.tokens_N[some])
        return weighed_BS @ others.emission_NS[some].T

    def _words_of(self, belief_NS: Tensor) -> Tensor:
        """Σ_z belief[z] p(word | z) of all words, N×V, by a table that is laid out for it once."""
        model = self.messages.model
        if model.support is not None:
            return model.words_of(belief_NS)
        return model.kept("packed emission", lambda: Packed(model.emission_table())).products(belief_NS)

    def _others(self, groups: list[_Group]) -> _Others:
        """What is the same for all texts that these groups are of, kept until the groups change."""
        classes = [group.classes for group in groups[1:]]
        if self._last is None or self._last[0] != classes:
            tokens = [np.concatenate([self.tokens_C[one] for one in some]) for some in classes]
            model = self.messages.model
            tokens_N = torch.from_numpy(np.concatenate(tokens)).to(model.device)
            emission_NS = None if model.support is not None else model.emission_table()[tokens_N]
            self._last = classes, _Others(tokens_N, list(map(len, tokens)), emission_NS)
        return self._last[1]

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
            if size_G[one] > 0
        ]
