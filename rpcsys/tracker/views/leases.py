"""A lease, as it is shown: to those who wait, in the summary, and on the page."""

from __future__ import annotations

from itertools import islice
from typing import Any

from rpcsys.tracker.entities import Lease, Queue
from rpcsys.tracker.lease_states import AWAY, INFERRED, OURS

MAX_HOLDERS = 8
"""Holders named to somebody who waits; the summary has them all."""


def holders(queue: Queue, at: float) -> list[dict[str, Any]]:
    """Who has devices of a key, the longest first: since when, and until when at the latest."""
    return [holder(lease, at) for lease in islice(queue.leases.values(), MAX_HOLDERS)]


def holder(lease: Lease, at: float) -> dict[str, Any]:
    """Who holds a device: seconds since then, and seconds left at the latest (None for no limit)."""
    until = lease.until
    return {
        "user": lease.user,
        "address": lease.address,
        "server": lease.server_name,
        "since_s": round(at - lease.since, 3),
        "until_s": None if until is None else round(max(0.0, until - at), 3),
        "inferred": lease.how is INFERRED,
    }


def row(lease: Lease, at: float) -> dict[str, Any]:
    """A row of the summary: who holds what, since when, and until when at the latest."""
    if lease.state in AWAY:
        state = "server away"
    elif lease.how is not OURS:
        state = lease.how.value
    else:
        state = lease.state.value
    held = holder(lease, at)
    return {
        "lease": lease.lease,
        "key": lease.key,
        "server": lease.server_name,
        "holder": lease.user,
        "address": lease.address,
        "since_s": held["since_s"],
        "until_s": held["until_s"],
        "limit_s": lease.limit_s,
        "state": state,
    }


def on_page(lease: Lease) -> dict[str, Any]:
    """As the page shows it: times are seconds since 1970."""
    return {
        "lease": lease.lease,
        "key": lease.key,
        "user": lease.user,
        "address": lease.address,
        "since": lease.since,
        "until": lease.until,
        "how": lease.how.value,
        "running": lease.opened,
    }
