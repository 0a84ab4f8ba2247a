"""What a tracker with a state directory remembers: leases that are over, and usage by user and key."""

from __future__ import annotations

from typing import Any, Dict, Iterator, List, Optional

from rpcsys.errors import TrackerError
from rpcsys.link import Link

_REPLY_S = 30.0
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
    before: Optional[int] = None
    left = limit
    while left is None or left > 0:
        page = link.ask(
            "history",
            timeout=_REPLY_S,
            key=key,
            user=user,
            server=server,
            since=since,
            until=until,
            limit=_PAGE if left is None else min(_PAGE, left),
            before=before,
        )
        yield from page["leases"]
        before = page["before"]
        if before is None:
            return
        if left is not None:
            left -= len(page["leases"])


def usage(
    link: Link, *, key: Optional[str] = None, user: Optional[str] = None, since: Optional[float] = None
) -> List[Dict[str, Any]]:
    """Rows by user and key; as `rpcsys.client.tracker.Tracker.usage`."""
    _need_ours(link)
    rows: List[Dict[str, Any]] = link.ask("usage", timeout=_REPLY_S, key=key, user=user, since=since)["usage"]
    return rows


def _need_ours(link: Link) -> None:
    if not link.ours:
        raise TrackerError(
            "TVM's tracker keeps no history: this needs rpcsys's, started with --state-dir DIR"
        )
