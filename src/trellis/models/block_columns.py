"""Emission columns where words are emitted by groups: log p(word | state) among the words that share a state.

The words of a group form a block of their own: one product of its states and its words gives both the normaliser and
the columns of the words that are in the batch.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable

from trellis import kernels
from trellis.models.columns import full_precision

FEW = 8  # groups that PyTorch's threads share better than native ones, which take a group each


class Spans(NamedTuple):
    """The words of some groups, group after group, and the places among them of the words a batch asks for.

    words_W   words of all these groups, by group
    sizes     how many words each group has
    asked_N   which of `words_W` are wanted, ascending
    wanted    how many are wanted of each group
    """

    words_W: Tensor
    sizes: list[int]
    asked_N: Tensor
    wanted: list[int]

    @classmethod
    def of(cls, group_V: Tensor, groups_G: Tensor, distinct_N: Tensor) -> tuple[Spans, Tensor]:
        """The spans of `groups_G` (ascending), and the column that each of the distinct words will have."""
        there_W = torch.isin(group_V, groups_G).nonzero().squeeze(-1)
        words_W = there_W[group_V[there_W].argsort(stable=True)]
        place_V = torch.empty_like(group_V).index_copy_(0, words_W, torch.arange(len(words_W), device=group_V.device))
        asked_N, order_N = place_V[distinct_N].sort()
        sizes, wanted = (
            torch.bincount(torch.searchsorted(groups_G, group_V[words]), minlength=len(groups_G)).tolist()
            for words in (words_W, distinct_N)
        )
        return cls(words_W, sizes, asked_N, wanted), order_N.argsort()

    def local(self) -> list[Tensor]:
        """For each group, the places of its wanted words among its own."""
        begins = torch.tensor([0, *self.sizes], device=self.asked_N.device).cumsum(0)[:-1].tolist()
        return [part - begin for part, begin in zip(self.asked_N.split(self.wanted), begins, strict=True)]


class _BlockColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emitting_GKR: Tensor, words_WR: Tensor, bias_W: Tensor, spans: Spans) -> Tensor:
        columns_NK = emitting_GKR.new_empty(len(spans.asked_N), emitting_GKR.shape[1])
        log_total_GK = emitting_GKR.new_empty(emitting_GKR.shape[:2])
        parts = (words_WR.split(spans.sizes), bias_W.split(spans.sizes), columns_NK.split(spans.wanted), spans.local())
        for states_KR, log_total_K, words, bias, columns, asked in zip(emitting_GKR, log_total_GK, *parts, strict=True):
            with full_precision():
                logits = torch.addmm(bias[:, None], words, states_KR.T)
            torch.logsumexp(logits, 0, out=log_total_K)
            torch.sub(logits.index_select(0, asked), log_total_K, out=columns)
        ctx.save_for_backward(emitting_GKR, words_WR, bias_W, log_total_GK)
        ctx.spans = spans
        return columns_NK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor | None, ...]:
        emitting_GKR, words_WR, bias_W, log_total_GK = ctx.saved_tensors
        spans, sizes = ctx.spans, ctx.spans.sizes
        grad_GKR, grad_WR, grad_W = (torch.empty_like(tensor) for tensor in (emitting_GKR, words_WR, bias_W))
        parts = (words_WR.split(sizes), bias_W.split(sizes), grad_NK.split(spans.wanted), spans.local())
        grads = (grad_GKR, grad_WR.split(sizes), grad_W.split(sizes))
        for states_KR, log_total_K, words, bias, grad, asked, to_states, to_words, to_bias in zip(
            emitting_GKR, log_total_GK, *parts, *grads, strict=True
        ):
            with full_precision():
                logits = torch.addmm(bias[:, None], words, states_KR.T)
            share = logits.sub_(log_total_K).exp_().mul_(-grad.sum(0))
            share.index_add_(0, asked, grad)
            torch.mm(share.T, words, out=to_states)
            torch.mm(share, states_KR, out=to_words)
            torch.sum(share, 1, out=to_bias)
        return grad_GKR, grad_WR, grad_W, None


class _NativeColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emitting_GKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans) -> Tensor:
        ctx.words = kernels.BlockWords.of(*spans)
        columns_NK, log_total_GK = kernels.columns_forward(emitting_GKR, words_VR, bias_V, ctx.words)
        ctx.save_for_backward(emitting_GKR, words_VR, bias_V, log_total_GK)
        return columns_NK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor | None, ...]:
        emitting_GKR, words_VR, bias_V, log_total_GK = ctx.saved_tensors
        return *kernels.columns_backward(emitting_GKR, words_VR, bias_V, ctx.words, log_total_GK, grad_NK), None


def block_columns(emitting_GKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans) -> Tensor:
    """log p(word | state) of the wanted words in the states of their group, N×K, from the vectors of all words."""
    if kernels.usable(emitting_GKR, words_VR, bias_V) and len(emitting_GKR) >= FEW:
        return _NativeColumns.apply(emitting_GKR, words_VR, bias_V, spans)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
    words_WR, bias_W = words_VR.index_select(0, spans.words_W), bias_V.index_select(0, spans.words_W)
    return _BlockColumns.apply(emitting_GKR, words_WR, bias_W, spans)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped
