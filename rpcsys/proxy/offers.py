"""The proxy's offers to its tracker, for servers that cannot offer themselves, as TVM's proxy makes them.

The proxy offers one match key for each such stream, and every 2 s requests the list of those not handed out. TVM's
protocol has no withdrawal. So when a stream ends and its match key can still be handed out, the proxy connects to the
tracker again, which ends all offers of the old connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rpcsys.proxy import events as ev
from rpcsys.proxy.waiting import StreamEvent, StreamState, WaitingStream, WaitingStreams

UNUSED_S = 5.0  # longest time from a grant to the client's stream, as with TVM's proxy
#: Characters of all keys in a report to the tracker, whose frames have a limit. Keys beyond are offered without it.
MAX_PRESENTED = 64 << 10


@dataclass
class ProxyOffers:
    """The ``streams`` to offer, by number."""

    waiting: WaitingStreams
    up: bool = False  # whether the tracker answers
    streams: dict[int, WaitingStream] = field(default_factory=dict)
    _presented: set[str] = field(default_factory=set)
    _withdrawn: set[str] = field(default_factory=set)  # match keys whose streams have ended

    def add(self, stream: WaitingStream) -> list[ev.Action]:
        """Add a stream that waits for a client from the tracker, and offer it."""
        stream.state = StreamState.NOT_OFFERED
        self.streams[stream.conn] = stream
        return [self._offer(stream), *self._present({stream.key})] if self.up else []

    def joined(self, stream: WaitingStream) -> None:
        self.streams.pop(stream.conn, None)

    def ended(self, stream: WaitingStream) -> None:
        if self.streams.pop(stream.conn, None) is not None and self.up:
            self._withdrawn.add(stream.name)

    def tracker_up(self, event: ev.TrackerUp) -> list[ev.Action]:
        """Offer all streams under new match keys, except those handed out: their clients are on their way."""
        self.up = True
        self._presented.clear()
        self._withdrawn.clear()
        new = [stream for stream in self.streams.values() if stream.state is StreamState.NOT_OFFERED]
        return [*self._renew(new, event.fresh), *self._present({stream.key for stream in self.streams.values()})]

    def tracker_down(self) -> None:
        self.up = False
        for stream in self.streams.values():
            stream.change(StreamEvent.TRACKER_LEFT)

    def pending(self, event: ev.KeysPending) -> list[ev.Action]:
        """Update the streams from the tracker's list of match keys that it has not handed out."""
        if not self.up:
            return []
        pending = set(event.match_keys)
        unused = []
        for stream in self.streams.values():
            if stream.name in pending:
                stream.change(StreamEvent.RETURNED)
            elif stream.state is StreamState.OFFERED:
                stream.change(StreamEvent.TAKEN)
                stream.handed_out_at = event.at
            elif stream.state is StreamState.HANDED_OUT and event.at - stream.handed_out_at > UNUSED_S:
                unused.append(stream)
        withdrawn, self._withdrawn = self._withdrawn, set()
        return [ev.Reconnect()] if withdrawn & pending else self._renew(unused, event.fresh)

    def _renew(self, streams: Iterable[WaitingStream], fresh: tuple[str, ...]) -> list[ev.Action]:
        actions: list[ev.Action] = []
        for stream, random in zip(streams, fresh, strict=False):
            self.waiting.rename(stream, f"{stream.key}:{random}")
            actions.append(self._offer(stream))
        return actions

    def _offer(self, stream: WaitingStream) -> ev.Action:
        stream.change(StreamEvent.OFFER)
        return ev.OfferStream(stream.key, stream.name)

    def _present(self, keys: set[str]) -> list[ev.Action]:
        """Report all keys served, if one of ``keys`` is not reported yet."""
        left = MAX_PRESENTED - sum(map(len, self._presented))
        known = len(self._presented)
        for key in sorted(keys - self._presented):
            if len(key) <= left:
                left -= len(key)
                self._presented.add(key)
        return [ev.PresentKeys(tuple(sorted(self._presented)))] if len(self._presented) > known else []
