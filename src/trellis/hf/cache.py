"""What `generate` carries from step to step: the state of each row, whatever came before it."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor


@dataclass
class CarriedState:
    """A model's state in the place of transformers' cache of keys and values; its size does not grow with the text.

    A step makes a new one, so that one state may be gone on from in several ways.
    """

    state: Tensor  # as `model.score` returned it, a row a text
    begun_B: Tensor  # which rows have had a token or the mark of a beginning
    seen: int  # places so far, padding included

    is_compileable: ClassVar[bool] = False

    def get_seq_length(self, layer_idx: int = 0) -> int:
        """Places so far, padding included, as transformers counts."""
        return self.seen

    def rows(self, rows_N: Tensor) -> CarriedState:
        """These rows of it, some perhaps several times: those of the beams that go on."""
        chosen = CarriedState(self.state, self.begun_B, self.seen)
        chosen.batch_select_indices(rows_N)
        return chosen

    def batch_select_indices(self, rows_N: Tensor) -> None:
        """Keep these rows alone."""
        rows_N = rows_N.to(self.state.device)
        self.state, self.begun_B = self.state[rows_N], self.begun_B[rows_N]

    def batch_repeat_interleave(self, repeats: int) -> None:
        """Each row so many times, one after the other."""
        self.state = self.state.repeat_interleave(repeats, 0)
        self.begun_B = self.begun_B.repeat_interleave(repeats, 0)
