"""What can happen to a proxy, and what it can do about it.

``at`` is a monotonic clock in seconds; ``conn`` is the service's number for a stream, never used twice. ``fresh`` are
random parts for match keys, one for each that the event may need: the state has no randomness of its own.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class StreamOpened:
    """A stream from ``address`` has said its greeting (see :mod:`rpcsys.wire.handshake`)."""

    at: float
    conn: int
    address: str
    role: str
    key: str
    server: str = ""  # the identity of an rpcsys server
    offered: bool = False  # whether ``key`` is a match key that the server has offered itself
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class StreamEnded:
    """A stream that waited is gone, or a joined pair, which goes by its server's stream."""

    conn: int


@dataclass(frozen=True, slots=True)
class Draining:
    """Nothing new is taken, and nobody waits any more."""


@dataclass(frozen=True, slots=True)
class TrackerUp:
    """The tracker answers, on a new connection."""

    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class TrackerDown:
    """The connection to the tracker is gone, and all that was offered on it."""


@dataclass(frozen=True, slots=True)
class KeysPending:
    """The match keys that the tracker has not handed out yet."""

    at: float
    match_keys: tuple[str, ...]
    fresh: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True)
class JoinStreams:
    """Tell a server and a client each other's greeting, and relay between them."""

    client: int
    server: int
    key: str


@dataclass(frozen=True, slots=True)
class RefuseStream:
    """Answer ``code`` (``duplicate``, ``mismatch``, or "" for nothing) and close."""

    conn: int
    code: str
    reason: str


@dataclass(frozen=True, slots=True)
class OfferStream:
    """Tell the tracker that a server of ``key`` can be had with ``match_key``."""

    key: str
    match_key: str


@dataclass(frozen=True, slots=True)
class PresentKeys:
    """Tell the tracker which keys are served here."""

    keys: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Reconnect:
    """Connect to the tracker again: that is how an offer is withdrawn."""


Event = StreamOpened | StreamEnded | Draining | TrackerUp | TrackerDown | KeysPending
Action = JoinStreams | RefuseStream | OfferStream | PresentKeys | Reconnect
