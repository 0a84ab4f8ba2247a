"""What a process that runs modules tells their kinds: how many threads a call may have, and that calls may be stopped."""

from __future__ import annotations

import threading
from typing import Callable, List, Optional

Stops = List[Callable[[], None]]


class Process:
    """``threads``: what one call may compute with, where nothing else is said; None for all there is."""

    threads: Optional[int] = None


class _Thread(threading.local):
    """``stops``: a list for the call that this thread runs, of what stops it; None where nobody would stop it."""

    stops: Optional[Stops] = None


process = Process()
thread = _Thread()
