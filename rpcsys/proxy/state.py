"""The decisions of the proxy: an event goes in, actions come out. No socket, no clock, no randomness.

A stream waits under a **name** until a stream of the other role has the same name. A client's name is the key that it
requests. A server's name is its key; or its match key, if the server itself offers it to the tracker; or a match key
that the proxy makes and offers (:mod:`rpcsys.proxy.offers`).

Rules:

- Without a tracker a key belongs to one server. A second server is a duplicate, and so is a second waiting client, as
  with TVM's proxy. Streams with the same ``-server=ID`` are not duplicates, and clients of such a server queue.
- Of several streams of one server, the newest is joined: an old one may be dead without a sign.
- No stream waits without end: it has a deadline, its connection ends, or the proxy stops. The number of waiting
  streams is bounded, by address and in all.
- The same events give the same state: nothing depends on the order of a hash table.

Known weakness: names are found in a hash table, not compared in constant time. Each process has its own hash seed.
"""

from __future__ import annotations

from collections import Counter

from rpcsys.proxy import events as ev
from rpcsys.proxy.config import ProxyConfig
from rpcsys.proxy.offers import ProxyOffers
from rpcsys.proxy.waiting import WaitingStream, WaitingStreams
from rpcsys.wire import keys, pinned_keys
from rpcsys.wire.handshake import CLIENT, SERVER

DUPLICATE, MISMATCH = "duplicate", "mismatch"
#: With a tracker, longest wait of a client with an unknown match key: a lost packet may delay the server's stream.
#: TVM's proxy refuses such a client at once.
EARLY_S = 3.0

_STOPPING = "the proxy is stopping"


class ProxyState:
    """The proxy's state between two events."""

    def __init__(self, config: ProxyConfig) -> None:
        self.tracked = config.tracker is not None
        self.draining = False
        self.waiting = WaitingStreams(config.max_waiting, config.max_waiting_per_address)
        self.offers = ProxyOffers(self.waiting)
        #: Pairs by their server's stream: the name that an rpcsys server keeps while the pair exists, else "".
        self.joined: dict[int, str] = {}
        self._client_s = EARLY_S if self.tracked else config.timeout_client
        self._server_s = None if self.tracked else config.timeout_server

    @property
    def next_deadline(self) -> float | None:
        """When `expire` is to be called at the latest, None for never."""
        return self.waiting.next_deadline

    def apply(self, event: ev.Event) -> list[ev.Action]:
        """Handle an event; the actions, in order."""
        match event:
            case ev.StreamOpened():
                return self._opened(event)
            case ev.StreamEnded():
                return self._ended(event)
            case ev.TrackerUp():
                return self.offers.tracker_up(event)
            case ev.TrackerDown():
                self.offers.tracker_down()
                return []
            case ev.KeysPending():
                return self.offers.pending(event)
            case ev.Draining():
                return self._drain()

    def expire(self, now: float) -> list[ev.Action]:
        """Refuse the streams whose deadline has passed."""
        actions: list[ev.Action] = []
        for stream in self.waiting.expired(now):
            self.waiting.remove(stream)
            reason = f"no partner for {stream.name!r} within {now - stream.since:.0f} s"
            actions.append(ev.RefuseStream(stream.conn, MISMATCH, reason))
        return actions

    def counts(self) -> Counter[tuple[str, str]]:
        """The number of waiting streams by role and key."""
        return Counter((stream.role, stream.key) for stream in self.waiting)

    def _opened(self, event: ev.StreamOpened) -> list[ev.Action]:
        if self.draining:
            return [ev.RefuseStream(event.conn, "", _STOPPING)]
        if not event.key.isprintable():
            return [ev.RefuseStream(event.conn, MISMATCH, "its key holds what cannot be printed")]
        return self._server(event) if event.role == SERVER else self._client(event)

    def _client(self, event: ev.StreamOpened) -> list[ev.Action]:
        # One that says its secret is in the clear; its server may allow that.
        name = pinned_keys.public_name(event.key)
        servers = self.waiting.named(SERVER, name)
        if servers:
            newest = servers[next(reversed(servers))]
            self.waiting.remove(newest)
            self.offers.joined(newest)
            return [self._join(event.conn, newest)]
        if not (self.tracked or self.waiting.owned[name]) and self.waiting.named(CLIENT, name):
            return [ev.RefuseStream(event.conn, DUPLICATE, f"another client waits for {name!r}")]
        key = keys.split_match_key(event.key)[0] if self.tracked and ":" in event.key else event.key
        return self._wait(_stream(event, key, name, self._client_s))

    def _server(self, event: ev.StreamOpened) -> list[ev.Action]:
        to_offer = self.tracked and not event.offered
        key = keys.split_match_key(event.key)[0] if event.offered and ":" in event.key else event.key
        if to_offer and not keys.is_key(key):  # the tracker would hang up, which ends all offers of the proxy
            return [ev.RefuseStream(event.conn, MISMATCH, f"{key!r:.60} is no key that a tracker takes")]
        name = f"{key}:{event.fresh[0]}" if to_offer else event.key
        others = self.waiting.named(SERVER, name)
        if any(not event.server or other.server != event.server for other in others.values()):
            return [ev.RefuseStream(event.conn, DUPLICATE, f"another server has {name!r}")]
        server = _stream(event, key, name, self._server_s)
        clients = self.waiting.named(CLIENT, name)
        if clients:
            client = next(iter(clients))
            self.waiting.remove(clients[client])
            return [self._join(client, server)]
        refused = self._wait(server)
        return refused or (self.offers.add(server) if to_offer else [])

    def _wait(self, stream: WaitingStream) -> list[ev.Action]:
        reason = self.waiting.full(stream.address)
        if reason:
            return [ev.RefuseStream(stream.conn, "", reason)]
        self.waiting.add(stream)
        return []

    def _join(self, client: int, server: WaitingStream) -> ev.Action:
        self.joined[server.conn] = server.name if server.server else ""
        if server.server:
            self.waiting.owned[server.name] += 1
        return ev.JoinStreams(client, server.conn, server.key)

    def _ended(self, event: ev.StreamEnded) -> list[ev.Action]:
        name = self.joined.pop(event.conn, "")
        if name:
            self.waiting.disown(name)
        stream = self.waiting.by_conn.get(event.conn)
        if stream is not None:
            self.waiting.remove(stream)
            self.offers.ended(stream)
        return []

    def _drain(self) -> list[ev.Action]:
        self.draining = True
        streams = list(self.waiting)
        for stream in streams:
            self.waiting.remove(stream)
        self.offers = ProxyOffers(self.waiting)
        return [ev.RefuseStream(stream.conn, "", _STOPPING) for stream in streams]


def _stream(event: ev.StreamOpened, key: str, name: str, wait_s: float | None) -> WaitingStream:
    until = None if wait_s is None else event.at + wait_s
    return WaitingStream(event.conn, event.address, event.role, key, name, event.server, event.at, until)
