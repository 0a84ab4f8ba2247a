"""Files that are made once per test run, for all of its processes."""

from __future__ import annotations

import fcntl
from collections.abc import Callable
from pathlib import Path


def once(path: Path, make: Callable[[Path], object]) -> Path:
    """``path``, which the first process that asks for it makes while others wait; ``make`` makes it whole or not."""
    with path.with_name(path.name + ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not path.exists():
            make(path)
    return path
