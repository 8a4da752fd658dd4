"""What a constraint says of every next token, given what an HMM believes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, NamedTuple

import numpy as np
import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.ops.packed import Packed
from trellis.steering.messages import Messages
from trellis.steering.steps import Plain

if TYPE_CHECKING:
    from trellis.models.hmm import HMM

MANY = 1 << 11  # tokens of a group that is a further row of the product with all emissions, which hardly costs more
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
    size: int  # how many tokens


class _Others(NamedTuple):
    """The tokens of all groups but the large ones, group by group, and p(token | state) if the support is dense."""

    tokens_N: Tensor
    sizes: list[int]
    emission_NS: Tensor | None


class _Asked(NamedTuple):
    """What is known of some rows before the product with all emissions.

    groups        of tokens, the largest first
    predicted_BS  the distribution of the next token's state
    after_US      what is to be expected after a token, of every state of the automaton that one leads to
    place_BG      which of these each row reaches by a group's tokens
    log_scale_BG  the logarithm of its scale
    """

    groups: list[_Group]
    predicted_BS: Tensor
    after_US: Tensor
    place_BG: Tensor
    log_scale_BG: Tensor

    @property
    def large(self) -> int:
        """How many groups, from the first on, are rows of the product with all emissions."""
        return 1 + sum(group.size >= MANY for group in self.groups[1:])

    def weighed(self, group: int) -> Tensor:
        """p(state of the next token) times what is to be expected after one of a group, B×S."""
        return self.predicted_BS * self.after_US[self.place_BG[:, group]]

    def apart(self, group: int) -> Tensor:
        """The rows that reach another state by a group's tokens than by the first group's."""
        return (self.place_BG[:, group] != self.place_BG[:, 0]).nonzero().flatten()

    def rows(self) -> list[Tensor]:
        """What the product with all emissions is asked: the tokens alone, the first group, and rows of large ones."""
        more = (self.weighed(group)[self.apart(group)] for group in range(1, self.large))
        return [self.predicted_BS, self.weighed(0), *more]


class NextTokens:
    """Looks at every token at once.

    Of the automaton only the steps from a row's state are paid for: most tokens share one or two, which are rows of a
    product with all emissions, and for the others there is a product with theirs alone.
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
        return chances_of([(self, predicted_BS, state_B)], left)[0]

    def _asked(self, predicted_BS: Tensor, state_B: Tensor, left: int) -> _Asked:
        groups = self._groups(state_B)
        target_BG = torch.stack([group.target_B for group in groups], 1)
        targets_U, place_BG = target_BG.unique(return_inverse=True)
        after_US = self.steps.left(self.messages.message_NQS[left - 1, targets_U])
        log_scale_BG = self.messages.log_scale_NQ[left - 1, target_BG]
        return _Asked(groups, predicted_BS.to(self.messages.message_NQS), after_US, place_BG, log_scale_BG)

    def _answered(self, asked: _Asked, found_NV: Tensor) -> Chances:
        """The answer, from the logarithms of what the product with all emissions gave to the rows asked for."""
        batch, apart = len(asked.predicted_BS), [asked.apart(group) for group in range(1, asked.large)]
        token_BV, joint_BV, *more = found_NV.split([batch, batch, *map(len, apart)])
        joint_BV = joint_BV.add_(asked.log_scale_BG[:, :1])
        for group, (rows_M, its_MV) in enumerate(zip(apart, more, strict=True), 1):
            of_it_C = torch.zeros(self.steps.classes, dtype=torch.bool)
            of_it_C[asked.groups[group].classes] = True
            of_it_V = of_it_C.to(joint_BV.device)[self.steps.class_V]
            its_MV = its_MV.add_(asked.log_scale_BG[rows_M, group, None])
            joint_BV[rows_M] = torch.where(of_it_V, its_MV, joint_BV[rows_M])
        if len(asked.groups) > asked.large:
            others = self._others(asked.groups[asked.large :])
            joint_BN = self._joint_of_others(others, asked).log_()
            group_N = torch.repeat_interleave(torch.tensor(others.sizes)).to(joint_BV.device) + asked.large
            joint_BV[:, others.tokens_N] = joint_BN + asked.log_scale_BG[:, group_N]
        return Chances(joint_BV, token_BV)

    def _joint_of_others(self, others: _Others, asked: _Asked) -> Tensor:
        """p(token) times what is to be expected after it, but for its scale, of tokens in all groups but large ones.

        Groups of few tokens, of which there are many, are taken together.
        """
        parts, few, begin = [], [], 0
        for group, size in enumerate(others.sizes, asked.large):
            if size * len(others.sizes) < FEW and others.emission_NS is not None:
                few += [group] * size
            else:
                parts.append(self._part(others, slice(begin, begin + size), asked.weighed(group)))
            begin += size
        if few:  # sizes fall, so that these are the last
            assert others.emission_NS is not None
            emission_MS = others.emission_NS[-len(few) :]
            for some, rows_MS in zip(torch.tensor(few).split(AT_ONCE), emission_MS.split(AT_ONCE), strict=True):
                after_BMS = asked.after_US[asked.place_BG[:, some.to(asked.place_BG.device)]]
                parts.append(torch.linalg.vecdot(asked.predicted_BS[:, None] * after_BMS, rows_MS))
        return torch.cat(parts, 1)

    def _part(self, others: _Others, some: slice, weighed_BS: Tensor) -> Tensor:
        if others.emission_NS is None:
            return self.messages.model.words_of(weighed_BS, others.tokens_N[some])
        return weighed_BS @ others.emission_NS[some].T

    def _others(self, groups: list[_Group]) -> _Others:
        """What is the same for all texts that these groups are of, kept until the groups change."""
        classes = [group.classes for group in groups]
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
                int(size_G[one]),
            )
            for one in np.argsort(-size_G, kind="stable")
            if size_G[one] > 0
        ]


@torch.no_grad()
def chances_of(asked: Sequence[tuple[NextTokens, Tensor, Tensor]], left: int) -> list[Chances]:
    """What `chances` says of rows under several constraints on one model, by a single product with all emissions."""
    each = [ahead._asked(predicted_BS, state_B, left) for ahead, predicted_BS, state_B in asked]
    rows = [torch.cat(one.rows()) for one in each]
    found_NV = _words_of(asked[0][0].messages.model, torch.cat(rows)).log_()
    parts = found_NV.split([len(some) for some in rows])
    return [one[0]._answered(known, part_NV) for one, known, part_NV in zip(asked, each, parts, strict=True)]


def _words_of(model: HMM, belief_NS: Tensor) -> Tensor:
    """Σ_z belief[z] p(word | z) of all words, N×V, by a table that is laid out for it once."""
    if model.support is not None:
        return model.words_of(belief_NS)
    return model.kept("packed emission", lambda: Packed(model.emission_table())).products(belief_NS)
