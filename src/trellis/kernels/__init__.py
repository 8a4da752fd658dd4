"""Native kernels: the same answers as PyTorch's, sooner.

`usable(...)` says whether they can take a tensor; where it says no, PyTorch does the work. Sources are in src/native.
"""

from trellis.kernels.adamw import AdamSteps, adamw_, adamw_rows_
from trellis.kernels.columns import BlockWords, columns_backward, columns_forward
from trellis.kernels.dense import counts, walk, walk_back
from trellis.kernels.library import Status, bare_rate, in_bf16, levels, status, usable, using
from trellis.kernels.pairs import Pairs, outer, pair_backward, pair_forward, pull, push
from trellis.kernels.totals import log_totals, totals_backward, totals_forward

__all__ = [
    "AdamSteps", "BlockWords", "Pairs", "Status", "adamw_", "adamw_rows_", "bare_rate", "columns_backward",
    "columns_forward", "counts", "in_bf16", "levels", "log_totals", "outer", "pair_backward", "pair_forward", "pull",
    "push", "status", "totals_backward", "totals_forward", "usable", "using", "walk", "walk_back",
]  # fmt: skip
