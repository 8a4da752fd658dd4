"""Emissions where every word has its own list of states, and lists may overlap.

A state is normalised by adding up over all words that meet it: sparse products, where word and state meet.
"""

from __future__ import annotations

import warnings
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis.models.columns import full_precision


def normalise_by_state(logits_VK: Tensor, states_VK: Tensor, states: int) -> Tensor:
    """log p(word | state) from logits of every word in its own list of states, which may overlap."""
    flat = states_VK.flatten()
    peak_S = (
        logits_VK.detach().new_full((states,), -torch.inf).scatter_reduce(0, flat, logits_VK.detach().flatten(), "amax")
    )
    peak_VK = peak_S[states_VK]
    total_S = logits_VK.new_zeros(states).index_add(0, flat, (logits_VK - peak_VK).exp().flatten())
    return logits_VK - peak_VK - total_S.log()[states_VK]


class Meetings(NamedTuple):
    """Where words meet states, word after word: the words' lists, of which only the states asked for are left.

    begin_V    where each word's meetings begin, and where the last one's end: V + 1 of them
    state_E    the state of each meeting, as a row of the states' vectors
    states     how many rows those have
    """

    begin_V: Tensor
    state_E: Tensor
    states: int

    @classmethod
    def of(cls, lists_VK: Tensor, states: int) -> Meetings:
        """All of the lists."""
        words, size = lists_VK.shape
        return cls(torch.arange(words + 1, device=lists_VK.device) * size, lists_VK.flatten(), states)

    @classmethod
    def among(cls, lists_VK: Tensor, states_U: Tensor, states: int) -> Meetings:
        """With the states `states_U` alone, which from now on go by their places there."""
        place_S = lists_VK.new_full((states,), -1)
        place_S[states_U] = torch.arange(len(states_U), device=states_U.device)
        place_VK = place_S.index_select(0, lists_VK.flatten()).view_as(lists_VK)
        if len(states_U) == states:
            return cls.of(place_VK, states)
        there_VK = place_VK >= 0
        begin_V = torch.nn.functional.pad(there_VK.sum(1).cumsum(0), (1, 0))
        return cls(begin_V, place_VK[there_VK], len(states_U))

    def words(self) -> Tensor:
        """The word of each meeting, E."""
        counts_V = self.begin_V.diff()
        return torch.arange(len(counts_V), device=counts_V.device).repeat_interleave(
            counts_V, output_size=len(self.state_E)
        )

    def products(self, words_VR: Tensor, vectors_UR: Tensor) -> Tensor:
        """The inner product of word and state at each meeting, E; no vector is copied."""
        shape = (len(words_VR), len(vectors_UR))
        if len(self.state_E) > shape[0] * shape[1]:  # states stand in a list several times: no sparse matrix is so full
            return (words_VR[self.words()] * vectors_UR[self.state_E]).sum(1)
        zero_E = words_VR.new_zeros(len(self.state_E))
        with warnings.catch_warnings(), full_precision():
            warnings.filterwarnings("ignore", "Sparse CSR tensor support is in beta state")
            there = torch.sparse_csr_tensor(self.begin_V, self.state_E, zero_E, shape, check_invariants=False)
            met: Tensor = torch.sparse.sampled_addmm(there, words_VR, vectors_UR.T, beta=0.0)
            return met.values()

    def gradients(self, grad_E: Tensor, words_VR: Tensor, vectors_UR: Tensor) -> tuple[Tensor, Tensor]:
        """Gradients by the words' and by the states' vectors, from those by the products."""
        order_E = self.state_E.int().argsort(stable=True)
        begin_U = torch.nn.functional.pad(torch.bincount(self.state_E, minlength=self.states).cumsum(0), (1, 0))
        with full_precision():
            to_words = _weighted_sums(vectors_UR, self.state_E, self.begin_V, grad_E)
            to_states = _weighted_sums(words_VR, self.words()[order_E], begin_U, grad_E[order_E])
        return to_words, to_states


def _weighted_sums(rows: Tensor, which_E: Tensor, begin: Tensor, weight_E: Tensor) -> Tensor:
    """Σ weight · row over each stretch of `which_E`, from one beginning to the next."""
    return torch.nn.functional.embedding_bag(
        which_E, rows, begin, mode="sum", per_sample_weights=weight_E, include_last_offset=True
    )


class _ListedLogits(torch.autograd.Function):
    """words · vectors where they meet, E."""

    @staticmethod
    def forward(ctx: Any, words_VR: Tensor, vectors_UR: Tensor, meetings: Meetings) -> Tensor:
        ctx.save_for_backward(words_VR, vectors_UR)
        ctx.meetings = meetings
        return meetings.products(words_VR, vectors_UR)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_E: Tensor) -> tuple[Tensor | None, ...]:
        return *ctx.meetings.gradients(grad_E, *ctx.saved_tensors), None


def listed_logits(words_VR: Tensor, vectors_SR: Tensor, states_VK: Tensor) -> Tensor:
    """Inner products of each word's vector with those of the states in its list, V×K."""
    meetings = Meetings.of(states_VK, len(vectors_SR))
    logits_E: Tensor = _ListedLogits.apply(words_VR, vectors_SR, meetings)  # type: ignore[no-untyped-call]  # apply is untyped
    return logits_E.view(states_VK.shape)


class _ListedLogTotals(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, words_VR: Tensor, bias_V: Tensor, vectors_UR: Tensor, meetings: Meetings) -> Tensor:
        logits_E = meetings.products(words_VR, vectors_UR).add_(bias_V.index_select(0, meetings.words()))
        peak_U = logits_E.new_full((meetings.states,), -torch.inf)
        peak_U.scatter_reduce_(0, meetings.state_E, logits_E, "amax")
        share_E = logits_E.sub_(peak_U.index_select(0, meetings.state_E)).exp_()
        total_U = torch.zeros_like(peak_U).index_add_(0, meetings.state_E, share_E)
        share_E.div_(total_U.index_select(0, meetings.state_E))
        ctx.save_for_backward(words_VR, vectors_UR, share_E)
        ctx.meetings = meetings
        return total_U.log_().add_(peak_U)

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_U: Tensor) -> tuple[Tensor | None, ...]:
        words_VR, vectors_UR, share_E = ctx.saved_tensors
        meetings: Meetings = ctx.meetings
        grad_E = share_E * grad_U.index_select(0, meetings.state_E)
        to_words, to_states = meetings.gradients(grad_E, words_VR, vectors_UR)
        to_bias = grad_E.new_zeros(len(words_VR)).index_add_(0, meetings.words(), grad_E)
        return to_words, to_bias, to_states, None


def listed_log_totals(words_VR: Tensor, bias_V: Tensor, vectors_UR: Tensor, meetings: Meetings) -> Tensor:
    """log Σ exp(word · state + bias) over the words that each state meets, U; −inf if it meets none."""
    return _ListedLogTotals.apply(words_VR, bias_V, vectors_UR, meetings)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
