"""What can happen to a proxy, and what it can do about it. Both turn into JSON and back.

A log of events, replayed, gives the identical state (:func:`replay`). ``at`` is a monotonic clock in seconds; ``conn`` is
the service's number for a stream, never used twice. ``fresh`` are random parts for match keys, one for each that
the event may need: the state has no chance of its own.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from rpcsys.proxy.state import State


@dataclass(frozen=True, slots=True)
class Started:
    """The proxy begins; the fields are those of :class:`rpcsys.proxy.config.Config`."""

    at: float
    tracker: bool = False
    timeout_client: float = 600.0
    timeout_server: float = 600.0
    max_waiting: int = 8192
    max_waiting_per_address: int = 2048


@dataclass(frozen=True, slots=True)
class Opened:
    """A stream from ``address`` has said its greeting (see :mod:`rpcsys.wire.handshake`).

    ``server``: the identity of a server of ours, else "". ``offered``: ``key`` is a match key that it has offered itself.
    """

    at: float
    conn: int
    address: str
    role: str
    key: str
    server: str = ""
    offered: bool = False
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Left:
    """A stream that waited is gone, or one of a joined pair."""

    at: float
    conn: int


@dataclass(frozen=True, slots=True)
class Tick:
    """Time has passed; due after ``State.next_deadline``."""

    at: float


@dataclass(frozen=True, slots=True)
class Draining:
    """Nothing new is taken, and nobody waits any more."""

    at: float


@dataclass(frozen=True, slots=True)
class TrackerUp:
    """The tracker answers, on a new connection."""

    at: float
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrackerDown:
    """The connection to the tracker is gone, and all that was offered on it."""

    at: float


@dataclass(frozen=True, slots=True)
class Pending:
    """The match keys that the tracker has not handed out yet."""

    at: float
    match_keys: tuple[str, ...]
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class Join:
    """Tell a server and a client each other's greeting, and relay between them."""

    client: int
    server: int
    key: str


@dataclass(frozen=True, slots=True)
class Refuse:
    """Answer ``code`` (``duplicate``, ``mismatch``, or "" for nothing) and close."""

    conn: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class Offer:
    """Tell the tracker that a server of ``key`` can be had with ``match_key``."""

    key: str
    match_key: str


@dataclass(frozen=True, slots=True)
class Present:
    """Tell the tracker which keys are served here."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Begin anew with the tracker: that is how an offer is withdrawn."""


Event = Started | Opened | Left | Tick | Draining | TrackerUp | TrackerDown | Pending
Action = Join | Refuse | Offer | Present | Reconnect

_KINDS: dict[str, type[Any]] = {
    kind.__name__: kind
    for kind in (
        *(Started, Opened, Left, Tick, Draining, TrackerUp, TrackerDown, Pending),
        *(Join, Refuse, Offer, Present, Reconnect),
    )
}


def to_json(item: Event | Action) -> dict[str, Any]:
    """``{"is": class, field: value…}``, made of what JSON has."""
    return {"is": type(item).__name__, **dataclasses.asdict(item)}


def from_json(plain: dict[str, Any]) -> Any:
    """The inverse of :func:`to_json`, also after a trip through JSON text. KeyError for a class unknown."""
    values = {name: tuple(value) if isinstance(value, list) else value for name, value in plain.items() if name != "is"}
    return _KINDS[plain["is"]](**values)


def replay(log: Iterable[Event]) -> State:
    """The state after all events of a log, which begins with `Started`."""
    from rpcsys.proxy.state import State

    events = iter(log)
    started = next(events)
    assert isinstance(started, Started), "a log begins with the start"
    state = State(started)
    for event in events:
        state.apply(event)
    return state
