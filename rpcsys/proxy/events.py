"""What can happen to a proxy, and what it can do about it.

``at`` is a monotonic clock in seconds; ``conn`` is the service's number for a stream, never used twice. ``fresh`` are
random parts for match keys, one for each that the event may need: the state has no randomness of its own.
"""

from __future__ import annotations

from typing import NamedTuple


class StreamOpened(NamedTuple):
    """A stream from ``address`` has said its greeting (see :mod:`rpcsys.wire.handshake`)."""

    at: float
    conn: int
    address: str
    role: str
    key: str
    server: str = ""  # the identity of an rpcsys server
    offered: bool = False  # whether ``key`` is a match key that the server has offered itself
    fresh: tuple[str, ...] = ()


class StreamEnded(NamedTuple):
    """A stream that waited is gone, or a joined pair, which goes by its server's stream."""

    conn: int


class Draining(NamedTuple):
    """Nothing new is taken, and nobody waits any more."""


class TrackerUp(NamedTuple):
    """The tracker answers, on a new connection."""

    fresh: tuple[str, ...] = ()


class TrackerDown(NamedTuple):
    """The connection to the tracker is gone, and all that was offered on it."""


class KeysPending(NamedTuple):
    """The match keys that the tracker has not handed out yet."""

    at: float
    match_keys: tuple[str, ...]
    fresh: tuple[str, ...] = ()


class JoinStreams(NamedTuple):
    """Tell a server and a client each other's greeting, and relay between them."""

    client: int
    server: int
    key: str


class RefuseStream(NamedTuple):
    """Answer ``code`` (``duplicate``, ``mismatch``, or "" for nothing) and close."""

    conn: int
    code: str
    reason: str


class OfferStream(NamedTuple):
    """Tell the tracker that a server of ``key`` can be had with ``match_key``."""

    key: str
    match_key: str


class PresentKeys(NamedTuple):
    """Tell the tracker which keys are served here."""

    keys: tuple[str, ...]


class Reconnect(NamedTuple):
    """Connect to the tracker again: that is how an offer is withdrawn."""


Event = StreamOpened | StreamEnded | Draining | TrackerUp | TrackerDown | KeysPending
Action = JoinStreams | RefuseStream | OfferStream | PresentKeys | Reconnect
