"""What a tracker with a state directory remembers: leases that are over, and usage by user and key."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional

from rpcsys.client import answers, listings
from rpcsys.errors import TrackerError
from rpcsys.link import Link

_PAGE = 1000
"""Leases asked for at a time; the tracker sends fewer where they do not fit a frame."""


def leases(
    link: Link,
    *,
    key: Optional[str] = None,
    user: Optional[str] = None,
    server: Optional[str] = None,
    since: Optional[float] = None,
    until: Optional[float] = None,
    limit: Optional[int] = 100,
) -> Iterator[Dict[str, Any]]:
    """Leases that are over, the last to end first; as `rpcsys.client.tracker.Tracker.history`."""
    _need_ours(link)
    wanted = {"key": key, "user": user, "server": server, "since": since, "until": until}
    return listings.past_leases(link, limit, _PAGE, **wanted)


def usage(
    link: Link, *, key: Optional[str] = None, user: Optional[str] = None, since: Optional[float] = None
) -> List[Dict[str, Any]]:
    """Rows by user and key; as `rpcsys.client.tracker.Tracker.usage`."""
    _need_ours(link)
    answer = link.ask("usage", timeout=listings.REPLY_S, key=key, user=user, since=since)
    rows: List[Dict[str, Any]] = answers.checked(listings.USAGE, answer, "usage")
    return rows


def _need_ours(link: Link) -> None:
    if not link.ours:
        raise TrackerError("TVM's tracker keeps no history: this needs rpcsys's, started with --state-dir DIR")
