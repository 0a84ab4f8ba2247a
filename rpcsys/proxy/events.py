"""The events and actions of a proxy.

``at`` is a monotonic clock in seconds; ``conn`` is the service's number for a stream, never reused. ``fresh`` are
random parts, one for each match key that the event may need: the state has no randomness of its own.
"""

from __future__ import annotations

from typing import NamedTuple


class StreamOpened(NamedTuple):
    """The greeting of a stream from ``address`` is whole (see :mod:`rpcsys.wire.handshake`)."""

    at: float
    conn: int
    address: str
    role: str
    key: str
    server: str = ""  # the identity of an rpcsys server
    offered: bool = False  # whether ``key`` is a match key that the server has offered itself
    fresh: tuple[str, ...] = ()


class StreamEnded(NamedTuple):
    """A waiting stream has ended, or a joined pair. ``conn`` of a pair is its server's stream."""

    conn: int


class Draining(NamedTuple):
    """The proxy stops: it refuses new streams and all waiting ones."""


class TrackerUp(NamedTuple):
    """The tracker answers, on a new connection."""

    fresh: tuple[str, ...] = ()


class TrackerDown(NamedTuple):
    """The connection to the tracker has ended, and with it all offers."""


class KeysPending(NamedTuple):
    """The match keys that the tracker has not handed out yet."""

    at: float
    match_keys: tuple[str, ...]
    fresh: tuple[str, ...] = ()


class JoinStreams(NamedTuple):
    """Send a server and a client each other's greeting, and relay between them."""

    client: int
    server: int
    key: str


class RefuseStream(NamedTuple):
    """Answer ``code`` (``duplicate``, ``mismatch``, or "" for nothing) and close."""

    conn: int
    code: str
    reason: str


class OfferStream(NamedTuple):
    """Offer ``match_key``, of a server of ``key``, to the tracker."""

    key: str
    match_key: str


class PresentKeys(NamedTuple):
    """Report the keys served here to the tracker."""

    keys: tuple[str, ...]


class Reconnect(NamedTuple):
    """Connect to the tracker again, which withdraws all offers of the old connection."""


Event = StreamOpened | StreamEnded | Draining | TrackerUp | TrackerDown | KeysPending
Action = JoinStreams | RefuseStream | OfferStream | PresentKeys | Reconnect
