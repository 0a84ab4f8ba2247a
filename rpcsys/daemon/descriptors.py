"""How many connections a daemon may have: every one costs a descriptor."""

from __future__ import annotations

import logging
import resource

log = logging.getLogger(__name__)

PLENTY = 16384
"""Servers and clients of a very large lab. Where fewer are allowed, the log says so at the start."""


def allow_many() -> int:
    """Raise this process's limit on descriptors as far as it may; how many there are now."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = max(soft, PLENTY) if hard == resource.RLIM_INFINITY else hard
    if soft != resource.RLIM_INFINITY and soft < wanted:
        try:
            resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))
            soft = wanted
        except (OSError, ValueError):  # macOS has a lower limit than it tells
            pass
    if soft != resource.RLIM_INFINITY and soft < PLENTY:
        log.warning("room for %d connections only: a higher `ulimit -Hn` gives more", soft)
    return soft


def allowed() -> int | None:
    """How many descriptors this process may have now; None for as many as it likes."""
    soft, _ = resource.getrlimit(resource.RLIMIT_NOFILE)
    return None if soft == resource.RLIM_INFINITY else soft
