"""One file an operation: its PyTorch twin, its native call if it has one, and the choice between the two."""

from trellis.ops.library import Status, bare_rate, compiler, levels, status, usable, using

__all__ = ["Status", "bare_rate", "compiler", "levels", "status", "usable", "using"]
