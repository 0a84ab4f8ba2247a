"""The streams that wait for their other half: the state of each, and by what it is found.

Rules:

1. A stream that goes by what it said itself waits until it is over.
2. A server's stream that the proxy has to offer waits until the tracker is there, and is offered under a new match key.
   When the tracker is gone, so is the offer.
3. The tracker says which match keys it has not handed out: the others it has, until it says otherwise. One that was
   handed out and brought no client is offered again.
4. A stream is over once: joined, refused or gone.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from types import MappingProxyType

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

    OFFER = "the tracker is told of it"
    TRACKER_LEFT = "the tracker's connection ended"
    TAKEN = "the tracker has handed out its match key"
    RETURNED = "the tracker has its match key, again or still"
    END = "it is joined, refused or gone"


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
    """A stream without its other half; it waits under its ``name`` until that says the same one."""

    conn: int
    address: str
    role: str
    key: str
    name: str
    server: str  # the identity of an rpcsys server, else ""
    since: float
    until: float | None  # when its time is over, None for never
    state: StreamState = WAITING
    handed_out_at: float = 0.0

    def change(self, event: StreamEvent) -> None:
        """Something happens to it. KeyError for what cannot happen now."""
        self.state = TRANSITIONS[self.state][event]


@dataclass
class WaitingStreams:
    """All that wait, at most ``limit`` in all and ``limit_per_address`` of one address."""

    limit: int
    limit_per_address: int
    by_conn: dict[int, WaitingStream] = field(default_factory=dict)
    owned: Counter[str] = field(default_factory=Counter)  # streams, waiting or joined, of rpcsys servers, by name
    _by_name: dict[tuple[str, str], dict[int, WaitingStream]] = field(default_factory=dict)
    #: All of one role have the same time to wait, so the first to come is the first whose time is over.
    _timed: dict[str, dict[int, WaitingStream]] = field(default_factory=lambda: {CLIENT: {}, SERVER: {}})
    _addresses: Counter[str] = field(default_factory=Counter)

    def __iter__(self) -> Iterator[WaitingStream]:
        return iter(self.by_conn.values())

    def __len__(self) -> int:
        return len(self.by_conn)

    @property
    def next_deadline(self) -> float | None:
        """When the next stream's time is over, None if none's ever is."""
        firsts = (next(iter(timed.values())) for timed in self._timed.values() if timed)
        return min((first.until for first in firsts if first.until is not None), default=None)

    def named(self, role: str, name: str) -> dict[int, WaitingStream]:
        """Those that wait under a name, the first to come first."""
        return self._by_name.get((role, name), {})

    def full(self, address: str) -> str:
        """Why no stream from ``address`` may wait now, "" if one may."""
        if len(self) >= self.limit:
            return f"{len(self)} streams wait already (--max-waiting)"
        count = self._addresses[address]
        if count >= self.limit_per_address:
            return f"{count} streams of {address} wait already (--max-waiting-per-address)"
        return ""

    def add(self, stream: WaitingStream) -> None:
        """A stream waits."""
        self.by_conn[stream.conn] = stream
        self._addresses[stream.address] += 1
        if stream.until is not None:
            self._timed[stream.role][stream.conn] = stream
        self._enter(stream)

    def remove(self, stream: WaitingStream) -> None:
        """A stream waits no more."""
        stream.change(END)
        del self.by_conn[stream.conn]
        self._timed[stream.role].pop(stream.conn, None)
        _count_down(self._addresses, stream.address)
        self._leave(stream)

    def rename(self, stream: WaitingStream, name: str) -> None:
        """A stream waits under another name."""
        self._leave(stream)
        stream.name = name
        self._enter(stream)

    def disown(self, name: str) -> None:
        """One of a server's streams under a name is over."""
        _count_down(self.owned, name)

    def expired(self, now: float) -> Iterator[WaitingStream]:
        """Those whose time is over, each to be removed before the next is asked for."""
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
