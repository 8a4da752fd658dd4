"""AdamW in native code: clipping and update in one pass, and a form for tables of which a batch touches some rows."""

from __future__ import annotations

import ctypes
import math

import torch
from torch import Tensor

from trellis.errors import TrellisError
from trellis.kernels.library import call, check, fields, ready


class _AdamCall(ctypes.Structure):
    _fields_ = fields(
        "param grad moment square steps which seen", "rows R table steps_taken threads", "scale beta1 beta2 epsilon"
    )


class AdamSteps:
    """How many steps were taken, and of what size: rows that were left alone must know when they catch up."""

    def __init__(self, betas: tuple[float, float], decay: float, epsilon: float = 1e-8) -> None:
        self.betas, self.decay, self.epsilon = betas, decay, epsilon
        self.taken = 0
        self.recent: list[tuple[float, float, float]] = []  # keep, size and root (src/native/adamw.h)

    def take(self, rate: float) -> None:
        """Begin a step at this learning rate; the updates that follow are of this step."""
        self.taken += 1
        first, second = (1.0 - beta**self.taken for beta in self.betas)
        self.recent.append((1.0 - rate * self.decay, rate / first, math.sqrt(second)))

    def forget(self) -> None:
        """Forget what the steps were: no row is left that has missed any."""
        self.recent.clear()


def _adam_call(
    steps: AdamSteps, recent_T3: Tensor, param: Tensor, moment: Tensor, square: Tensor, scale: float
) -> _AdamCall:
    if not len(recent_T3):
        raise TrellisError("no step has begun: call take() before the updates of a step.")
    for tensor in (param, moment, square):
        check(tensor, tuple(param.shape), "a moment of AdamW")
        if not tensor.is_contiguous():
            raise TrellisError("AdamW updates in place: make its parameters contiguous.")
    return _AdamCall(
        param=param.data_ptr(), moment=moment.data_ptr(), square=square.data_ptr(), steps=recent_T3.data_ptr(),
        steps_taken=len(recent_T3), threads=torch.get_num_threads(), scale=scale, beta1=steps.betas[0],
        beta2=steps.betas[1], epsilon=steps.epsilon,
    )  # fmt: skip


def adamw_(
    param: Tensor, grad: Tensor, moment: Tensor, square: Tensor, steps: AdamSteps, *, scale: float = 1.0
) -> None:
    """Move a parameter and its moments by the last step of `steps`; the gradient counts `scale` times."""
    grad = check(grad, tuple(param.shape), "grad")
    last_13 = torch.tensor(steps.recent[-1:], dtype=torch.float32)
    asked = _adam_call(steps, last_13, param, moment, square, scale)
    asked.grad, asked.rows, asked.R, asked.table = grad.data_ptr(), param.numel(), 1, param.numel()
    call("adamw", asked)


def adamw_rows_(
    param_VR: Tensor,
    rows_N: Tensor,
    grad_NR: Tensor | None,
    moment_VR: Tensor,
    square_VR: Tensor,
    seen_V: Tensor,
    steps: AdamSteps,
    *,
    scale: float = 1.0,
) -> None:
    """The same for some rows of a table, distinct and ascending, as if the others had had a gradient of zero.

    `seen_V` counts the recent steps that each row has had: zeros at first, and when those steps are forgotten. Rows
    must have caught up before they are read: call this without a gradient, at the latest step, for the rows that a
    batch will read, or for all of them.
    """
    (N,), (V, R) = rows_N.shape, param_VR.shape
    rows_N = ready(rows_N, torch.int64)
    recent_T3 = torch.tensor(steps.recent, dtype=torch.float32)
    asked = _adam_call(steps, recent_T3, param_VR, moment_VR, square_VR, scale)
    if grad_NR is not None:
        grad_NR = check(grad_NR, (N, R), "grad_NR")
        asked.grad = grad_NR.data_ptr()
    if not seen_V.is_contiguous():
        raise TrellisError("AdamW updates in place: make seen_V contiguous.")
    asked.seen, asked.which = check(seen_V, (V,), "seen_V", torch.int64).data_ptr(), rows_N.data_ptr()
    asked.rows, asked.R, asked.table = N, R, V
    call("adamw", asked)
