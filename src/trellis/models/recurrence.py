"""Layers of LSTM whose state is one row a text: h and c of every layer, side by side."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import torch
from torch import Tensor, nn
from torch.nn import functional

from trellis.errors import TrellisError
from trellis.ops.precision import full_precision


class Recurrence(nn.Module):
    """A stack of LSTM layers of any widths, with dropout between them while learning.

    `locked` keeps one mask for all tokens of a row instead of drawing another at each; `weights` is the share of
    hidden-to-hidden weights that are zero for a whole batch (DropConnect; Merity et al. 2017).
    """

    def __init__(self, widths: Sequence[int], dropout: float, locked: bool = False, weights: float = 0.0) -> None:
        super().__init__()
        self.layers = nn.ModuleList(nn.LSTM(a, b, batch_first=True) for a, b in itertools.pairwise(widths))
        self.widths, self.dropout, self.locked, self.weights = widths[1:], dropout, locked, weights

    @property
    def width(self) -> int:
        """Numbers in a row of its state."""
        return 2 * sum(self.widths)

    def output(self, state_BN: Tensor | None, rows: int, like: Tensor) -> Tensor:
        """The last layer's output after the last token, B×R; zero where a text begins."""
        if state_BN is None:
            return like.new_zeros(rows, self.widths[-1])
        return state_BN[:, -2 * self.widths[-1] : -self.widths[-1]]

    def forward(self, vectors_BTR: Tensor, state_BN: Tensor | None) -> tuple[Tensor, Tensor]:
        """The last layer's output before each token, B×T×R, and the state after the last token.

        The output before the first token is part of the state, zero where a text begins.
        """
        batch, time, _ = vectors_BTR.shape
        if state_BN is None:
            state_BN = vectors_BTR.new_zeros(batch, self.width)
        if state_BN.shape != (batch, self.width):  # PyTorch's own check is off here, and it would read beyond the state
            raise TrellisError(
                f"a state of shape {tuple(state_BN.shape)} does not belong to {batch} rows: give {batch}×{self.width}."
            )
        if time == 0:
            return vectors_BTR.new_zeros(batch, 0, self.widths[-1]), state_BN
        parts = state_BN.split([width for width in self.widths for _ in "hc"], dim=1)
        output_BTR, after = vectors_BTR, []
        for number, layer in enumerate(self.layers):
            if number > 0:
                thin = locked_dropout if self.locked else functional.dropout
                output_BTR = thin(output_BTR, self.dropout, self.training)
            output_BTR, *last = self._run(layer, output_BTR, *parts[2 * number : 2 * number + 2])
            after += last
        return torch.cat([parts[-2][:, None], output_BTR[:, :-1]], 1), torch.cat(after, 1)

    def _run(self, layer: nn.Module, input_BTR: Tensor, h_BR: Tensor, c_BR: Tensor) -> tuple[Tensor, Tensor, Tensor]:
        """One layer: its output at each token, and h and c after the last."""
        names = ("weight_ih_l0", "weight_hh_l0", "bias_ih_l0", "bias_hh_l0")
        into, across, *biases = (getattr(layer, name) for name in names)
        across = functional.dropout(across, self.weights, self.training)
        with full_precision(input_BTR.device):  # what is carried from token to token keeps its precision
            output_BTR, h, c = torch.lstm(
                input_BTR, (h_BR[None], c_BR[None]), [into, across, *biases], True, 1, 0.0, self.training, False, True
            )
        return output_BTR, h[0], c[0]


def locked_dropout(values_BTR: Tensor, share: float, training: bool) -> Tensor:
    """Dropout with one mask for all tokens of a row."""
    return values_BTR * functional.dropout(torch.ones_like(values_BTR[:, :1]), share) if training else values_BTR
