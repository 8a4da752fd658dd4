"""Emission columns of blocked models in native code."""

from __future__ import annotations

import ctypes
from typing import NamedTuple

import torch
from torch import Tensor

from trellis.kernels.library import call, check, fields, ready


class _ColumnCall(ctypes.Structure):
    _fields_ = fields(
        "states words bias which start asked asked_start columns log_total grad grad_states grad_words grad_bias",
        "G V K R count N threads",
    )


class BlockWords(NamedTuple):
    """The words of some blocks, block after block, and which of them are asked for."""

    which_W: Tensor  # distinct words
    start: Tensor  # the words of block g are start[g] up to start[g + 1]
    asked_N: Tensor  # ascending places in which_W
    asked_start: Tensor  # the same for those asked of each block

    @classmethod
    def of(cls, which_W: Tensor, sizes: list[int], asked_N: Tensor, wanted: list[int]) -> BlockWords:
        """From how many words there are in each block, and how many are asked for."""
        start, asked_start = (torch.tensor([0, *counts]).cumsum(0) for counts in (sizes, wanted))
        return cls(ready(which_W, torch.int64), start, ready(asked_N, torch.int64), asked_start)


def _column_call(
    states_GKR: Tensor, words_VR: Tensor, bias_V: Tensor, words: BlockWords, log_total_GK: Tensor
) -> _ColumnCall:
    (G, K, R), (V, _) = states_GKR.shape, words_VR.shape
    check(words.start, (G + 1,), "start", torch.int64)
    check(words.asked_start, (G + 1,), "asked_start", torch.int64)
    return _ColumnCall(
        states=states_GKR.data_ptr(), words=words_VR.data_ptr(), bias=bias_V.data_ptr(),
        which=words.which_W.data_ptr(), start=words.start.data_ptr(), asked=words.asked_N.data_ptr(),
        asked_start=words.asked_start.data_ptr(), log_total=log_total_GK.data_ptr(),
        G=G, V=V, K=K, R=R, count=len(words.which_W), N=len(words.asked_N), threads=torch.get_num_threads(),
    )  # fmt: skip


def _checked(states_GKR: Tensor, words_VR: Tensor, bias_V: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    states_GKR = ready(states_GKR)
    words_VR = check(words_VR, (len(words_VR), states_GKR.shape[2]), "words_VR")
    return states_GKR, words_VR, check(bias_V, (len(words_VR),), "bias_V")


def columns_forward(states_GKR: Tensor, words_VR: Tensor, bias_V: Tensor, words: BlockWords) -> tuple[Tensor, Tensor]:
    """log p(word | state) of the words asked for, in the states of their block, N×K, and the normalisers, G×K."""
    states_GKR, words_VR, bias_V = _checked(states_GKR, words_VR, bias_V)
    log_total_GK = states_GKR.new_empty(states_GKR.shape[:2])
    columns_NK = states_GKR.new_empty(len(words.asked_N), states_GKR.shape[1])
    asked = _column_call(states_GKR, words_VR, bias_V, words, log_total_GK)
    asked.columns = columns_NK.data_ptr()
    call("columns_forward", asked)
    return columns_NK, log_total_GK


def columns_backward(
    states_GKR: Tensor, words_VR: Tensor, bias_V: Tensor, words: BlockWords, log_total_GK: Tensor, grad_NK: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Gradients by states, words and bias; words of no block have none."""
    states_GKR, words_VR, bias_V = _checked(states_GKR, words_VR, bias_V)
    log_total_GK = check(log_total_GK, tuple(states_GKR.shape[:2]), "log_total_GK")
    grad_NK = check(grad_NK, (len(words.asked_N), states_GKR.shape[1]), "grad_NK")
    grad_GKR, grad_VR, grad_V = torch.empty_like(states_GKR), torch.zeros_like(words_VR), torch.zeros_like(bias_V)
    asked = _column_call(states_GKR, words_VR, bias_V, words, log_total_GK)
    asked.grad, asked.grad_states = grad_NK.data_ptr(), grad_GKR.data_ptr()
    asked.grad_words, asked.grad_bias = grad_VR.data_ptr(), grad_V.data_ptr()
    call("columns_backward", asked)
    return grad_GKR, grad_VR, grad_V
