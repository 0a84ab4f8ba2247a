"""Returns memory that a daemon needs no more to the system."""

from __future__ import annotations

import ctypes


def give_back_memory() -> None:
    """Return the memory that the C library keeps for later. One call, some ms."""
    trim = getattr(ctypes.CDLL(None), "malloc_trim", None)  # glibc's; musl keeps little
    if trim is not None:
        trim(0)
