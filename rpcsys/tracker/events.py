"""What can happen to a tracker, and what it can do about it. None of these ever changes.

``at``: seconds since 1970, never running backwards; ``conn``: the number of a connection, never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from rpcsys.wire.tracker import ToTracker

# None is frozen: to make one would take three times as long, and a busy tracker makes a hundred thousand a second.
#
# Events.


@dataclass(slots=True)
class TrackerStarted:
    """The tracker begins."""

    at: float
    instance: str  # random, for names that no other run has used
    stop_key: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  # the longest session in seconds, by key
    proxy_from: tuple[str, ...] = ()  # addresses and networks of proxies to believe; none: those on this machine


@dataclass(slots=True)
class HistoryEntry:
    """Something to be remembered, counted and logged: an action, and part of `Restored`. By ``kind``, ``details`` has:

    =============  ===============================================================================================
    ``granted``    a lease begins: lease, epoch, key, server, user, address, limit_s, waited_s, priority, arrival
                   (the request's), how (`rpcsys.tracker.transitions.Reporting`), identity (of the server)
    ``begun``      its session was opened: lease, peer
    ``limited``    it was renewed: lease, limit_s (from its beginning, None for no limit)
    ``over``       it is over: lease, epoch, key, server, user, address, since, held_s, outcome, reason (a
                   sentence for people), fault (the server's own, else ``""``), cleaned
    ``waiting``    a request of ours has to wait: ticket, arrival, key ("" for any), labels, count, priority, user,
                   address, since
    ``waited``     its ticket has no place any more: ticket, waited_s, why (``granted``, ``cancelled``,
                   ``timeout``, ``unknown``, ``left``)
    ``joined``     a server is there: server, key, address, port, slots, labels, how (``ours``, ``silent``)
    ``gone``       its connection is: server, reason
    ``set_aside``  it failed in a row: server, reason, failures, pause_s, until (seconds since 1970)
    ``trusted``    it works again: server
    ``unhealthy``  its own health check failed: server, reason; ``healthy``: server
    ``not_named``  what a proxy says is not believed: address (its own), reason (a sentence for people)
    ``drained``    an operator takes it out: server, by; ``enabled``: undoes that and a `set_aside`
    ``forgotten``  it has been gone for so long, or so many others since, that both are undone: server
    =============  ===============================================================================================
    """

    at: float
    kind: str
    details: Mapping[str, Any]


@dataclass(slots=True)
class Restored:
    """What an earlier run left, right after `TrackerStarted`: what still holds (`rpcsys.tracker.batch.LiveState`), and
    every ``over`` of the last ten hours (device time decays with a half-life of one), with key, user, since, held_s and
    outcome, in the order in which they were made.
    """

    at: float
    entries: tuple[HistoryEntry, ...]


@dataclass(slots=True)
class Connected:
    """Somebody at ``address`` said the magic; ``local`` is the address at which they reached the tracker."""

    at: float
    conn: int
    address: str
    local: str


@dataclass(slots=True)
class Received:
    """A whole, well-formed message."""

    at: float
    conn: int
    message: ToTracker


@dataclass(slots=True)
class Disconnected:
    """The connection is gone, for whatever reason."""

    at: float
    conn: int


@dataclass(slots=True)
class TimePassed:
    """Due at ``TrackerState.next_deadline``."""

    at: float


# Actions, of which `HistoryEntry` is one.


@dataclass(slots=True)
class Send:
    """Send ``message`` (plain JSON) to ``conn``."""

    conn: int
    message: Any


@dataclass(slots=True)
class Close:
    """Drop a connection. Its `Disconnected` follows."""

    conn: int
    reason: str


@dataclass(slots=True)
class StopTracker:
    """End the tracker, after what was to be sent."""


Event = TrackerStarted | Restored | Connected | Received | Disconnected | TimePassed
Action = Send | Close | StopTracker | HistoryEntry
