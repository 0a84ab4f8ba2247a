"""The CPUs that a thread may use: a runtime's threads inherit them from the thread that makes them."""

from __future__ import annotations

import contextlib
import os
from typing import Iterator, Sequence, Set


@contextlib.contextmanager
def bound_to(cpus: Sequence[int]) -> Iterator[None]:
    """Bind this thread to these CPUs inside the ``with``; without CPUs change nothing."""
    before = cpus_here()
    if cpus:
        os.sched_setaffinity(0, cpus)
    try:
        yield
    finally:
        if cpus:
            os.sched_setaffinity(0, before)


def cpus_here() -> Set[int]:
    """The CPUs that this thread may use; empty if the system does not report them."""
    return os.sched_getaffinity(0) if hasattr(os, "sched_getaffinity") else set()
