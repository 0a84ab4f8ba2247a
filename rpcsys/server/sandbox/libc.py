"""The C library of this process, opened once.

Every `ctypes.CDLL` makes classes of its own. In a forked child that would write to, and so copy, half a
megabyte of memory that it shares with its zygote.
"""

from __future__ import annotations

import ctypes
import os

LIBC = ctypes.CDLL(None, use_errno=True)
_HOLDING = ctypes.PyDLL(None, use_errno=True)
"""The same, called with the interpreter's lock held: a copy finds it so."""


def check(result: int) -> None:
    """Raise the OSError of a call that did not return 0."""
    if result:
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number))


def fork() -> int:
    """A fork as C does it, for a process of one thread: its copy runs on here, with nothing of Python's done for it.

    Python's own writes to 200 pages more, and so copies them, to mend what a copy of many threads would need. Raises OSError.
    """
    pid = int(_HOLDING.fork())
    if pid < 0:
        check(pid)
    return pid


def mend() -> None:
    """In a copy that :func:`fork` made and that is to run anything: what Python's own fork does there."""
    ctypes.pythonapi.PyOS_BeforeFork()
    ctypes.pythonapi.PyOS_AfterFork_Child()
