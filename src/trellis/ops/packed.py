"""Products of few rows with a large table that is asked again and again: rows · tableᵀ.

The table is laid out once as oneDNN reads it. A plain product lays it out anew each time, which for few rows takes
longer than the arithmetic.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

SMALLEST = 1 << 18  # numbers of a table that is worth another copy: below, it fits in a cache
_ROWS = 16  # about as many as there will be, which oneDNN asks for and does not depend on


class Packed:
    """A table V×S and its products, none of which has a gradient."""

    def __init__(self, table_VS: Tensor) -> None:
        self.table_VS = table_VS.detach()
        self._packed = self._laid_out()

    def products(self, rows_NS: Tensor) -> Tensor:
        """Σ_s rows[n, s] table[v, s], N×V."""
        if self._packed is None or not len(rows_NS) or rows_NS.dtype != self.table_VS.dtype:
            return rows_NS.detach() @ self.table_VS.T
        found_NV: Tensor = _onednn()._linear_pointwise(rows_NS.detach(), self._packed, None, "none", [], "")
        return found_NV

    def _laid_out(self) -> Tensor | None:
        """The table as oneDNN reads it; None where that is no help, or not to be had."""
        table_VS = self.table_VS
        plain = table_VS.device.type == "cpu" and table_VS.dtype == torch.float32
        if not plain or table_VS.numel() < SMALLEST or not torch.backends.mkldnn.is_available():
            return None
        try:
            packed_VS: Tensor = _onednn()._reorder_linear_weight(table_VS, _ROWS)
        except (AttributeError, RuntimeError):  # a PyTorch that was built without it
            return None
        return packed_VS


def _onednn() -> Any:
    return torch.ops.mkldnn
