"""What the proxy offers its tracker for servers that cannot do it themselves, as TVM's proxy does.

The tracker is told one match key for each such stream, and asked every 2 s which of them it has not handed out. TVM's
protocol cannot take an offer back: when a stream ends whose match key can still be handed out, the proxy connects to
the tracker again, which ends all offers of the old connection.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from rpcsys.proxy import events as ev
from rpcsys.proxy.waiting import StreamEvent, StreamState, WaitingStream, WaitingStreams

UNUSED_S = 5.0  # how long a client may take from the tracker to its stream, as TVM's proxy has it
#: Characters of all keys that the tracker is told to be served here: its frames have a limit. Others are offered
#: all the same.
MAX_PRESENTED = 64 << 10


@dataclass
class ProxyOffers:
    """The streams to offer, by number."""

    waiting: WaitingStreams
    up: bool = False  # whether the tracker answers
    streams: dict[int, WaitingStream] = field(default_factory=dict)
    _presented: set[str] = field(default_factory=set)
    _withdrawn: set[str] = field(default_factory=set)  # match keys whose streams have ended

    def add(self, stream: WaitingStream) -> list[ev.Action]:
        """A stream waits for the client that the tracker sends."""
        stream.state = StreamState.NOT_OFFERED
        self.streams[stream.conn] = stream
        return [self._offer(stream), *self._present({stream.key})] if self.up else []

    def joined(self, stream: WaitingStream) -> None:
        """Its client is there."""
        self.streams.pop(stream.conn, None)

    def ended(self, stream: WaitingStream) -> None:
        """It has ended."""
        if self.streams.pop(stream.conn, None) is not None and self.up:
            self._withdrawn.add(stream.name)

    def tracker_up(self, event: ev.TrackerUp) -> list[ev.Action]:
        """Offer all, under new match keys, but those that were handed out: their clients are on their way."""
        self.up = True
        self._presented.clear()
        self._withdrawn.clear()
        new = [stream for stream in self.streams.values() if stream.state is StreamState.NOT_OFFERED]
        return [*self._renew(new, event.fresh), *self._present({stream.key for stream in self.streams.values()})]

    def tracker_down(self) -> None:
        """Nothing is offered any more."""
        self.up = False
        for stream in self.streams.values():
            stream.change(StreamEvent.TRACKER_LEFT)

    def pending(self, event: ev.KeysPending) -> list[ev.Action]:
        """Some match keys have not been handed out yet; the others have."""
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
        """The keys served, if the tracker has not heard of one of ``keys``."""
        left = MAX_PRESENTED - sum(map(len, self._presented))
        known = len(self._presented)
        for key in sorted(keys - self._presented):
            if len(key) <= left:
                left -= len(key)
                self._presented.add(key)
        return [ev.PresentKeys(tuple(sorted(self._presented)))] if len(self._presented) > known else []
