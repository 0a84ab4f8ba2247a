"""What can happen to a tracker, and what it can do about it. Both turn into JSON and back, and neither ever changes.

A log of events, replayed, gives the identical state (`rpcsys.tracker.state.replay`); messages in it are the wire's own.
``at`` is seconds since 1970 on a clock that never runs backwards, ``conn`` the service's number for a
connection, never used twice.

What is worth remembering, counting or logging leaves the state as the action `Record`: when, what kind, and
plain JSON details. By ``kind``:

=============  =====================================================================================
``granted``    a lease begins: lease, epoch, key, server, user, address, limit_s, waited_s, priority,
               arrival (the request's), how (``ours``, ``silent``: one of TVM's servers, ``inferred``:
               behind TVM's proxy), identity (of the server: `rpcsys.tracker.entities.Server`)
``begun``      its session was opened: lease, peer
``limited``    it was renewed: lease, limit_s (from its beginning, None for no limit)
``over``       it is over: lease, epoch, key, server, user, address, since, held_s, outcome, reason (a
               sentence for people), fault (the server's own, else ``""``), cleaned
``waiting``    a request of ours has to wait: ticket, arrival, key ("" for any), labels, count,
               priority, user, address, since
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
=============  =====================================================================================

A tracker with a memory gets some of them back in one `Restored`, right after `Started`, in the order in which they
were made: every ``granted`` (with its ``begun`` and the last ``limited``) without its ``over``; every ``over`` of
the last ten hours (device time decays with a half-life of one), with what that takes: key, user, since, held_s,
outcome; every ``waiting`` without ``waited``; every ``joined`` without ``gone``; the last ``set_aside`` and
``drained`` of each server that no ``trusted``, ``enabled`` or ``forgotten`` followed. A tracker that is stopped
says nothing of its connections' ends, so it is the same after a stop as after a crash.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import TYPE_CHECKING, Any, TypeVar

from rpcsys.errors import ProtocolError
from rpcsys.wire.tracker import ToTracker, parse_to_tracker

if TYPE_CHECKING:
    from typing_extensions import dataclass_transform

    Kind = TypeVar("Kind")

    @dataclass_transform(frozen_default=True)
    def frozen(kind: type[Kind]) -> type[Kind]:
        """A dataclass that never changes."""

else:
    # Who sets a field is told by the type checker: told at run time, to make one takes three times as long, and a
    # busy tracker makes more than a hundred thousand a second.
    frozen = dataclass(slots=True)


@frozen
class Started:
    """The tracker begins. ``instance`` is random, for names that no other run has used."""

    at: float
    instance: str
    stop_key: str | None = None
    limits: Mapping[str, float] = field(default_factory=dict)
    """The longest session in seconds, by key."""
    proxy_from: tuple[str, ...] = ()
    """Addresses and networks of the proxies that are believed; none: those on the tracker's machine."""


@frozen
class Record:
    """Something to be remembered, see above. An action, and part of `Restored`."""

    at: float
    kind: str
    details: Mapping[str, Any]


@frozen
class Restored:
    """What an earlier run left: nothing is handed out until what it knew is back, or for 3 s."""

    at: float
    records: tuple[Record, ...]


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
class Tick:
    """Time has passed; due after ``State.next_deadline``."""

    at: float


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


Event = Started | Restored | Connected | Received | Disconnected | Tick
Action = Send | Close | StopTracker | Record

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (Started, Restored, Connected, Received, Disconnected, Tick, Send, Close, StopTracker, Record)
}


def to_json(item: Event | Action) -> dict[str, Any]:
    """The JSON object of an event or an action."""
    plain: dict[str, Any] = {"is": type(item).__name__}
    for part in fields(item):
        plain[part.name] = getattr(item, part.name)
    if isinstance(item, Received):
        plain["message"] = item.message.to_json()
    elif isinstance(item, Restored):
        plain["records"] = [to_json(record) for record in item.records]
    return plain


def from_json(plain: dict[str, Any]) -> Any:
    """The event or action of a JSON object.

    Raises
    ------
    ProtocolError: it is neither.
    """
    values = dict(plain)
    kind = _KINDS.get(values.pop("is", ""))
    if kind is Received:
        values["message"] = parse_to_tracker(values.get("message"))
    try:
        if kind is Started:
            values["proxy_from"] = tuple(values["proxy_from"])
        elif kind is Restored:
            values["records"] = tuple(from_json(record) for record in values["records"])
        if kind is not None:
            return kind(**values)
    except (TypeError, KeyError):
        pass
    raise ProtocolError(f"neither an event nor an action of a tracker: {plain!r:.100}")
