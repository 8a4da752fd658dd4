"""Freed memory, kept for the next update."""

from __future__ import annotations

import ctypes
import functools

_TRIM_THRESHOLD, _MMAP_THRESHOLD = -1, -3  # glibc's names for mallopt


@functools.cache
def keep_freed_memory() -> None:
    """Ask the C library to keep large blocks that are freed instead of returning them to the kernel.

    Every update makes and frees the same tensors; getting their pages back each time takes 5 to 8 % of an update. Other
    C libraries than glibc have no such switch, and go on as they are.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return
    mallopt(_MMAP_THRESHOLD, 1 << 30)
    mallopt(_TRIM_THRESHOLD, (1 << 31) - 1)
