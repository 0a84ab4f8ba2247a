"""What can happen to a tracker, and what it can do about it. None of these ever changes.

``at`` is seconds since 1970 on a clock that never runs backwards, ``conn`` the service's number for a connection,
never used twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from rpcsys.wire.tracker import ToTracker

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    Kind = TypeVar("Kind")

    @dataclass_transform(frozen_default=True)
    def frozen(kind: type[Kind]) -> type[Kind]:
        """A dataclass that never changes."""

else:
    # The type checker sees to it that nobody sets a field: seen to at run time, it takes three times as long to make
    # one, and a busy tracker makes more than a hundred thousand a second.
    frozen = dataclass(slots=True)

# Events.


@frozen
class TrackerStarted:
    """The tracker begins."""

    at: float
    instance: str  # random, for names that no other run has used
    stop_key: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)  # the longest session in seconds, by key
    proxy_from: tuple[str, ...] = ()  # addresses and networks of proxies to believe; none: those on this machine


@frozen
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


@frozen
class Restored:
    """What an earlier run left, right after `TrackerStarted`: nothing is handed out until that is back, or for 3 s.

    In the order in which they were made: every ``granted`` (with its ``begun`` and the last ``limited``) without its
    ``over``; every ``over`` of the last ten hours (device time decays with a half-life of one), with key, user, since,
    held_s and outcome; every ``waiting`` without ``waited``; every ``joined`` without ``gone``; the last ``set_aside``
    and ``drained`` of each server that no ``trusted``, ``enabled`` or ``forgotten`` followed. A tracker that is stopped
    says nothing of its connections' ends, so it is the same after a stop as after a crash.
    """

    at: float
    entries: tuple[HistoryEntry, ...]


@frozen
class Connected:
    """Somebody at ``address`` said the magic; ``local`` is the address at which they reached the tracker."""

    at: float
    conn: int
    address: str
    local: str


@frozen
class Received:
    """A whole, well-formed message."""

    at: float
    conn: int
    message: ToTracker


@frozen
class Disconnected:
    """The connection is gone, for whatever reason."""

    at: float
    conn: int


@frozen
class TimePassed:
    """Due at ``TrackerState.next_deadline``."""

    at: float


# Actions, of which `HistoryEntry` is one.


@frozen
class Send:
    """Send ``message`` (plain JSON) to ``conn``."""

    conn: int
    message: Any


@frozen
class Close:
    """Drop a connection. Its `Disconnected` follows."""

    conn: int
    reason: str


@frozen
class StopTracker:
    """End the tracker, after what was to be sent."""


Event = TrackerStarted | Restored | Connected | Received | Disconnected | TimePassed
Action = Send | Close | StopTracker | HistoryEntry
