"""The C library of this process, opened once.

Every `ctypes.CDLL` makes classes of its own. In a forked child that would write to, and so copy, half a
megabyte of memory that it shares with its zygote.
"""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)


def check(result: int) -> None:
    """Raise the OSError of a call that did not return 0."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))
