"""Emission columns where words share blocks of states: log p(word | state) among the words of the state's block.

One product of a block's states and its words gives both the normalisers and the columns of the words in the batch.
Products are in full precision, native or not: a logit rounded to bf16 would be wrong by more than a score may be.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor
from torch.autograd.function import once_differentiable
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.ops.library import Arguments, run, structure, usable
from trellis.ops.precision import full_precision
from trellis.ops.segments import Segments, log_sums

# Native threads take a block each. Where blocks are fewer than threads, and than this, PyTorch's threads do better.
FEW = 8
CHUNK = 1 << 22  # numbers that the PyTorch twin holds at once: 16 MB of float32


class Spans(NamedTuple):
    """The words of some blocks, block after block, and the places among them of the words a batch asks for.

    words_W       the words of all these blocks, by block
    start         the words of block m are start[m] up to start[m + 1]
    asked_N       which places of `words_W` are asked for, ascending
    asked_start   those of block m are asked_start[m] up to asked_start[m + 1]
    """

    words_W: Tensor
    start: Tensor
    asked_N: Tensor
    asked_start: Tensor

    @classmethod
    def of(cls, block_V: Tensor, blocks_M: Tensor, words_N: Tensor) -> tuple[Spans, Tensor]:
        """From the block of each word: the spans of `blocks_M` (ascending), and the column of each of the words.

        The words asked for, `words_N`, must be distinct and of these blocks.
        """
        there_W = torch.isin(block_V, blocks_M).nonzero().squeeze(-1)
        words_W = there_W[block_V[there_W].argsort(stable=True)]
        block_W = torch.searchsorted(blocks_M, block_V[words_W])
        start = torch.searchsorted(block_W, torch.arange(len(blocks_M) + 1, device=block_V.device))
        place_V = torch.empty_like(block_V).index_copy_(0, words_W, torch.arange(len(words_W), device=block_V.device))
        asked_N, order_N = place_V[words_N].sort()
        return cls(words_W, start, asked_N, torch.searchsorted(asked_N, start)), order_N.argsort()


def block_columns(emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor | None, spans: Spans) -> Tensor:
    """log p(word | state) of the words asked for in the states of their block, N×K; differentiable once.

    From the vectors of the states of each block, the vectors of all words of the vocabulary, and a bias a word.
    """
    return _BlockColumns.apply(emitting_MKR, words_VR, bias_V, spans)  # type: ignore[no-any-return, no-untyped-call]  # apply is untyped


class _BlockColumns(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor | None, spans: Spans) -> Tensor:
        bias = words_VR.new_zeros(len(words_VR)) if bias_V is None else bias_V
        ctx.biased, ctx.spans = bias_V is not None, spans
        enough = len(emitting_MKR) >= min(FEW, torch.get_num_threads())
        ctx.native = enough and usable(emitting_MKR, words_VR, bias)
        forward = _native_forward if ctx.native else _torch_forward
        columns_NK, log_total_MK = forward(emitting_MKR, words_VR, bias, spans)
        ctx.save_for_backward(emitting_MKR, words_VR, bias, log_total_MK)
        return columns_NK

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, grad_NK: Tensor) -> tuple[Tensor | None, ...]:
        emitting_MKR, words_VR, bias_V, log_total_MK = ctx.saved_tensors
        backward = _native_backward if ctx.native else _torch_backward
        grad_MKR, grad_VR, grad_V = backward(emitting_MKR, words_VR, bias_V, ctx.spans, log_total_MK, grad_NK)
        return grad_MKR, grad_VR, grad_V if ctx.biased else None, None


# The PyTorch twin.


class _Part(NamedTuple):
    """Some segments of blocks' words, and the logits of those words in the states of their blocks.

    logits_LnK   −inf at places that are no words
    asked        which of the columns asked for are here
    at_A         where they stand, counted place after place
    """

    owner_L: Tensor
    word_Ln: Tensor
    words_LnR: Tensor
    emitting_LKR: Tensor
    logits_LnK: Tensor
    asked: slice
    at_A: Tensor


def _parts(emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans) -> Iterator[_Part]:
    """All segments, some at a time."""
    words, (_, K, R) = len(spans.words_W), emitting_MKR.shape
    segments = Segments.of(spans.start, words, longest=max(1, CHUNK // (K + R)))
    length = segments.entry_Ln.shape[1]
    step = max(1, CHUNK // (K * R + length * (K + R)))
    at_N = segments.positions(words)[spans.asked_N]
    cuts = _cuts(at_N, len(segments.owner_L), step, length)
    for number, some in enumerate(segments.chunks(step)):
        word_Ln, asked = some.take(spans.words_W), slice(cuts[number], cuts[number + 1])
        words_LnR, emitting_LKR = functional.embedding(word_Ln, words_VR), emitting_MKR.index_select(0, some.owner_L)
        bias_Ln = bias_V[word_Ln].masked_fill_(~some.there_Ln, -torch.inf)
        with full_precision(emitting_MKR.device):
            logits_LnK = torch.baddbmm(bias_Ln.unsqueeze(2), words_LnR, emitting_LKR.transpose(1, 2))
        at_A = at_N[asked] - number * step * length
        yield _Part(some.owner_L, word_Ln, words_LnR, emitting_LKR, logits_LnK, asked, at_A)


def _cuts(at_N: Tensor, segments: int, step: int, length: int) -> list[int]:
    """How many of the ascending places come before each part, and in all."""
    if segments <= step:
        return [0, len(at_N)]
    edges = torch.arange(0, segments + step, step, device=at_N.device) * length
    cuts: list[int] = torch.searchsorted(at_N, edges).cpu().tolist()
    return cuts


def _block_asked(spans: Spans) -> Tensor:
    """The block of each word asked for, N."""
    return torch.searchsorted(spans.start, spans.asked_N, right=True) - 1


def _torch_forward(emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    (M, K, _), N = emitting_MKR.shape, len(spans.asked_N)
    columns_NK = emitting_MKR.new_empty(N, K)
    sums, owners = [emitting_MKR.new_empty(0, K)], [spans.start[:0]]
    for part in _parts(emitting_MKR, words_VR, bias_V, spans):
        columns_NK[part.asked] = part.logits_LnK.flatten(0, 1).index_select(0, part.at_A)
        sums.append(part.logits_LnK.logsumexp(1))
        owners.append(part.owner_L)
    log_total_MK = log_sums(torch.cat(sums), torch.cat(owners), M)
    return columns_NK.sub_(log_total_MK.index_select(0, _block_asked(spans))), log_total_MK


def _torch_backward(
    emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans, log_total_MK: Tensor, grad_NK: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    grad_MKR, grad_VR, grad_V = (torch.zeros_like(tensor) for tensor in (emitting_MKR, words_VR, bias_V))
    less_MK = torch.zeros_like(log_total_MK).index_add_(0, _block_asked(spans), grad_NK).neg_()
    finite_MK = log_total_MK.masked_fill(log_total_MK == -torch.inf, 0.0)
    for part in _parts(emitting_MKR, words_VR, bias_V, spans):
        owner_L, word_I = part.owner_L, part.word_Ln.flatten()
        share_LnK = part.logits_LnK.sub_(finite_MK[owner_L].unsqueeze(1)).exp_().mul_(less_MK[owner_L].unsqueeze(1))
        share_LnK.flatten(0, 1).index_add_(0, part.at_A, grad_NK[part.asked])
        with full_precision(emitting_MKR.device):
            grad_MKR.index_add_(0, owner_L, torch.bmm(share_LnK.transpose(1, 2), part.words_LnR))
            grad_VR.index_add_(0, word_I, torch.bmm(share_LnK, part.emitting_LKR).flatten(0, 1))
        grad_V.index_add_(0, word_I, share_LnK.sum(2).flatten())
    return grad_MKR, grad_VR, grad_V


# The native calls.

_ColumnCall = structure(
    "emitting_MKR words_VR bias_V words_W:int start:int asked_N:int asked_start:int columns_NK log_total_MK grad_NK "
    "grad_MKR grad_VR grad_V",
    "M V K R W N threads",
)


def _column_call(emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans, **given: Tensor) -> Arguments:
    if not len(spans.start) == len(spans.asked_start) == len(emitting_MKR) + 1:
        raise TrellisError(f"{len(emitting_MKR)} blocks have one start more than that: mend the spans.")
    return _ColumnCall(emitting_MKR=emitting_MKR, words_VR=words_VR, bias_V=bias_V, **spans._asdict(), **given)


def _native_forward(emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans) -> tuple[Tensor, Tensor]:
    asked = _column_call(emitting_MKR, words_VR, bias_V, spans)
    columns_NK, log_total_MK = run("columns_forward", asked, "columns_NK", "log_total_MK")
    return columns_NK, log_total_MK


def _native_backward(
    emitting_MKR: Tensor, words_VR: Tensor, bias_V: Tensor, spans: Spans, log_total_MK: Tensor, grad_NK: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    # Words of no block keep the zeros that are put here.
    grad = {"grad_VR": words_VR.new_zeros(words_VR.shape), "grad_V": bias_V.new_zeros(bias_V.shape)}
    asked = _column_call(emitting_MKR, words_VR, bias_V, spans, log_total_MK=log_total_MK, grad_NK=grad_NK, **grad)
    (grad_MKR,) = run("columns_backward", asked, "grad_MKR")
    return grad_MKR, grad["grad_VR"], grad["grad_V"]
