"""The streams that wait for their other half: the state of each, and the indexes to find them.

Rules:

1. A stream under its own name waits until it is over.
2. A server's stream that the proxy offers waits for the link to the tracker. Then it is offered under a new match key.
   The offer ends with the link.
3. The tracker lists the match keys that it has not handed out; all others are handed out, until a list holds them
   again. A match key that was handed out and brought no client is replaced by a new offer.
4. A stream is over once: joined, refused or ended.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

from rpcsys.link.admission import network_of
from rpcsys.wire.handshake import CLIENT, SERVER


class StreamState(Enum):
    """A stream that waits, between two events."""

    WAITING = "waiting"
    NOT_OFFERED = "not offered yet"
    OFFERED = "offered"
    HANDED_OUT = "handed out"
    OVER = "over"


class StreamEvent(Enum):
    """What happens to a stream that waits."""

    OFFER = "it is offered to the tracker"
    TRACKER_LEFT = "the tracker's connection ended"
    TAKEN = "the tracker has handed out its match key"
    RETURNED = "the tracker lists its match key as pending"
    END = "it is joined, refused or ended"


WAITING, NOT_OFFERED, OFFERED, HANDED_OUT, OVER = StreamState
OFFER, TRACKER_LEFT, TAKEN, RETURNED, END = StreamEvent

TRANSITIONS: Mapping[StreamState, Mapping[StreamEvent, StreamState]] = MappingProxyType(
    {
        WAITING: {END: OVER},
        NOT_OFFERED: {OFFER: OFFERED, TRACKER_LEFT: NOT_OFFERED, END: OVER},
        OFFERED: {TRACKER_LEFT: NOT_OFFERED, TAKEN: HANDED_OUT, RETURNED: OFFERED, END: OVER},
        HANDED_OUT: {OFFER: OFFERED, TRACKER_LEFT: HANDED_OUT, RETURNED: OFFERED, END: OVER},
        OVER: {},
    }
)


@dataclass
class WaitingStream:
    """A stream that waits under ``name`` for a stream of the other role with the same name."""

    conn: int
    address: str
    role: str
    key: str
    name: str
    server: str  # the identity of an rpcsys server, else ""
    since: float
    until: float | None  # its deadline, None for no deadline
    state: StreamState = WAITING
    handed_out_at: float = 0.0

    def change(self, event: StreamEvent) -> None:
        """Apply an event. Raises KeyError for an event that its state does not allow."""
        self.state = TRANSITIONS[self.state][event]


@dataclass
class WaitingStreams:
    """All waiting streams: at most ``limit`` in all, and ``limit_per_address`` of one address (in IPv6, its /64)."""

    limit: int
    limit_per_address: int
    by_conn: dict[int, WaitingStream] = field(default_factory=dict)
    owned: Counter[str] = field(default_factory=Counter)  # streams, waiting or joined, of rpcsys servers, by name
    _by_name: dict[tuple[str, str], dict[int, WaitingStream]] = field(default_factory=dict)
    #: Streams of one role have the same time to wait, so the oldest has the earliest deadline.
    _timed: dict[str, dict[int, WaitingStream]] = field(default_factory=lambda: {CLIENT: {}, SERVER: {}})
    _addresses: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[WaitingStream]:
        return iter(self.by_conn.values())

    def __len__(self) -> int:
        return len(self.by_conn)

    @property
    def next_deadline(self) -> float | None:
        """The earliest deadline of all streams, None for no deadline."""
        firsts = (next(iter(timed.values())) for timed in self._timed.values() if timed)
        return min((first.until for first in firsts if first.until is not None), default=None)

    def named(self, role: str, name: str) -> dict[int, WaitingStream]:
        """The streams that wait under a name, oldest first."""
        return self._by_name.get((role, name), {})

    def full(self, address: str) -> str:
        """Why no further stream from ``address`` may wait; "" if one may."""
        if len(self) >= self.limit:
            return f"{len(self)} streams wait already (--max-waiting)"
        count = self._addresses[network_of(address)]
        if count >= self.limit_per_address:
            return f"{count} streams of {address} wait already (--max-waiting-per-address)"
        return ""

    def add(self, stream: WaitingStream) -> None:
        self.by_conn[stream.conn] = stream
        self._addresses[network_of(stream.address)] += 1
        if stream.until is not None:
            self._timed[stream.role][stream.conn] = stream
        self._enter(stream)

    def remove(self, stream: WaitingStream) -> None:
        stream.change(END)
        del self.by_conn[stream.conn]
        self._timed[stream.role].pop(stream.conn, None)
        _count_down(self._addresses, network_of(stream.address))
        self._leave(stream)

    def rename(self, stream: WaitingStream, name: str) -> None:
        self._leave(stream)
        stream.name = name
        self._enter(stream)

    def disown(self, name: str) -> None:
        """Stop counting one of a server's streams under a name."""
        _count_down(self.owned, name)

    def expired(self, now: float) -> Iterator[WaitingStream]:
        """The streams whose deadline has passed. Remove each before the next iteration."""
        for timed in self._timed.values():
            while timed and (first := next(iter(timed.values()))).until is not None and first.until <= now:
                yield first

    def _enter(self, stream: WaitingStream) -> None:
        self._by_name.setdefault((stream.role, stream.name), {})[stream.conn] = stream
        if stream.server:
            self.owned[stream.name] += 1

    def _leave(self, stream: WaitingStream) -> None:
        same = self._by_name[stream.role, stream.name]
        del same[stream.conn]
        if not same:
            del self._by_name[stream.role, stream.name]
        if stream.server:
            self.disown(stream.name)


def _count_down(counts: Counter[str], name: str) -> None:
    counts[name] -= 1
    if not counts[name]:
        del counts[name]
