"""Every decision of the tracker, as plain synchronous code: an event goes in, actions come out.

Rules this file keeps:

- A match key is handed out once, and only while the connection that offered it lives.
- A request is answered once, and only while the connection that asked it lives.
- What a connection offered and asked for goes with it, in the same event.
- Nothing depends on a clock, on chance or on the order of a hash table: the same events give the same actions.
- What one connection can make the tracker remember is bounded.

Known weakness: a TVM server never says when a session ends, so its lease is taken to last until it offers its
next match key.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcsys import __version__
from rpcsys.tracker import views
from rpcsys.tracker.book import Book
from rpcsys.tracker.events import (
    Action,
    Close,
    Connected,
    Disconnected,
    Event,
    Received,
    Send,
    StopTracker,
    Tick,
)
from rpcsys.tracker.records import Lease, Offer, Peer, Queue, Server, Waiting
from rpcsys.wire import control, keys, tracker
from rpcsys.wire.control import Answer

MAX_OFFERS = 4096
"""Match keys and leases, and keys served, of one connection: no proxy has so many servers."""

MAX_WAITING = 4096
"""Requests that one connection may have waiting at a time."""

CAPABILITIES = ("session/1",)


class State(Book):
    """The tracker between two events."""

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is wanted at the latest, None if nothing is due."""
        return self.deadlines.next

    def apply(self, event: Event) -> list[Action]:
        """Take an event in; what has to be done about it, in order."""
        if type(event) is Received:
            peer = self.peers.get(event.conn)
            return _ON_MESSAGE[type(event.message)](self, event.at, peer, event.message) if peer else []
        return _ON_EVENT[type(event)](self, event)

    def _connected(self, event: Connected) -> list[Action]:
        self.peers[event.conn] = Peer(event.conn, event.address, event.local)
        return []

    def _disconnected(self, event: Disconnected) -> list[Action]:
        actions: list[Action] = []
        for lease in self.remove_peer(event.at, event.conn):
            lease.holder = None
            if not lease.started:
                actions += self._end(lease, control.UNUSED)
        return actions

    # TVM's messages.

    def _ping(self, at: float, peer: Peer, message: tracker.Ping) -> list[Action]:
        if message.hello is None:
            return [Send(peer.conn, tracker.SUCCESS)]
        peer.user = message.hello.user or ""
        welcome = {"tracker": "rpcsys", "version": __version__, "capabilities": list(CAPABILITIES)}
        return [Send(peer.conn, {"ok": True, **welcome})]

    def _stop(self, at: float, peer: Peer, message: tracker.Stop) -> list[Action]:
        if self.stop_key is None or not keys.same(self.stop_key, message.stop_key):
            return [Send(peer.conn, tracker.FAIL)]
        return [Send(peer.conn, tracker.SUCCESS), StopTracker()]

    def _put(self, at: float, peer: Peer, message: tracker.Put) -> list[Action]:
        if message.match_key not in peer.offers:  # TVM's Java server offers the same one again
            if max(len(peer.offers) + len(peer.serving), len(peer.serves)) >= MAX_OFFERS:
                return [Send(peer.conn, tracker.FAIL)]
            if peer.server is None:
                self._end_by_next_offer(peer, message.key)
        host = message.address or peer.address
        queue = self.add_offer(peer, Offer(peer.conn, message.key, message.match_key, host, message.port))
        return [Send(peer.conn, tracker.SUCCESS), *self._match(at, queue)]

    def _end_by_next_offer(self, peer: Peer, key: str) -> None:
        """A TVM server that offers again is done with the oldest session of that key."""
        for lease in peer.serving.values():
            if lease.key == key:
                self.remove_lease(lease)
                return

    def _tvm_request(self, at: float, peer: Peer, message: tracker.TvmRequest) -> list[Action]:
        if len(peer.waiting) >= MAX_WAITING:
            return [
                Send(peer.conn, [tracker.FAIL, f"{MAX_WAITING} requests wait on this connection already"])
            ]
        if message.user:
            peer.user = message.user
        request = Waiting(self._arrival(), peer.conn, None, message.key, message.priority)
        return self._match(at, self.add_request(peer, request))

    def _update_info(self, at: float, peer: Peer, message: tracker.UpdateInfo) -> list[Action]:
        served = keys.served_keys(message.key)
        if len(peer.serves) + len(served) > MAX_OFFERS:
            return [Send(peer.conn, tracker.FAIL)]
        peer.report = (message.key, message.host or peer.address, message.port)
        for key in served:
            self.serve(peer, key)
        return [Send(peer.conn, tracker.SUCCESS)]

    def _tvm_summary(self, at: float, peer: Peer, message: tracker.TvmSummary) -> list[Action]:
        return [Send(peer.conn, [tracker.SUCCESS, views.tvm_summary(self, peer)])]

    def _get_pending(self, at: float, peer: Peer, message: tracker.GetPending) -> list[Action]:
        return [Send(peer.conn, list(peer.offers))]

    # Requests.

    def _request(self, at: float, peer: Peer, message: control.Request) -> list[Action]:
        problem = _unfit(peer, message)
        if problem:
            return [_refusal(peer, message.id, "BadRequest", problem)]
        known_until = None if message.wait_for_key else self.known_until(message.key)
        if known_until is not None and at >= known_until:
            return [_refusal(peer, message.id, "UnknownKey", views.unknown_key(self, message.key))]
        limit = message.session_timeout or None  # 0 is TVM's way to say: no limit
        request = Waiting(self._arrival(), peer.conn, message.id, message.key, message.priority, limit)
        queue = self.add_request(peer, request)
        granted = self._match(at, queue)
        if request.arrival not in self.waiting:
            return granted
        if known_until is not None:
            self.deadlines.set(("unknown", request.arrival), known_until)
        if message.wait_timeout is not None:
            self.deadlines.set(("timeout", request.arrival), at + message.wait_timeout)
        if queue.waiting[-1][2] is not request:
            self.note_move(at, queue)
        return [_position(request, queue.index(request))]

    def _arrival(self) -> int:
        self.arrivals += 1
        return self.arrivals

    def _match(self, at: float, queue: Queue) -> list[Action]:
        actions: list[Action] = []
        while queue.waiting and queue.offers:
            actions += self._grant(at, self.take_request(queue), self.take_offer(queue))
            self.note_move(at, queue)
        return actions

    def _grant(self, at: float, request: Waiting, offer: Offer) -> list[Action]:
        lease = self.add_lease(at, request, offer)
        client, server = self.peers[request.conn], self.peers[offer.conn]
        host = views.reachable(offer.host, client)
        if request.id is None:
            reply = Send(client.conn, [tracker.SUCCESS, [host, offer.port, offer.match_key]])
        else:
            reply = Send(client.conn, _granted(request.id, lease, offer, host))
        return [reply] if server.server is None else [_taken(server, lease, offer), reply]

    def _cancel(self, at: float, peer: Peer, message: control.Cancel) -> list[Action]:
        request = peer.requests.get(message.request)
        if request is None:
            return [_done(peer, message.id, cancelled=False)]
        self.remove_request(at, peer, request)
        refusal = _refusal(peer, message.request, "Cancelled", "the request was taken back")
        return [refusal, _done(peer, message.id, cancelled=True)]

    # Leases.

    def _end(self, lease: Lease, reason: str) -> list[Action]:
        """Have the server end a lease, which is over when the server says so. TVM's servers cannot be told."""
        server = self.peers[lease.server]
        if server.server is None:
            return []
        return [Send(server.conn, control.End(_ask(server), lease.lease, lease.epoch, reason).to_json())]

    def _release(self, at: float, peer: Peer, message: control.Release) -> list[Action]:
        lease = peer.holding.get(message.lease)
        ended = [] if lease is None else self._end(lease, "released")
        return [*ended, _done(peer, message.id)]

    def _lease_started(self, at: float, peer: Peer, message: control.LeaseStarted) -> list[Action]:
        lease = peer.serving.get(message.lease)
        if lease is not None and lease.epoch == message.epoch:
            lease.started = True
        return [_done(peer, message.id)]

    def _lease_ended(self, at: float, peer: Peer, message: control.LeaseEnded) -> list[Action]:
        lease = peer.serving.get(message.lease)
        if lease is not None and lease.epoch == message.epoch:
            self.remove_lease(lease)
        return [_done(peer, message.id)]

    # Servers.

    def _register(self, at: float, peer: Peer, message: control.Register) -> list[Action]:
        if len(peer.serves) + len(peer.serving) + len(message.running) > MAX_OFFERS:
            problem = f"more than {MAX_OFFERS} keys and leases on one connection"
            return [_refusal(peer, message.id, "BadRequest", problem)]
        host = message.address or peer.address
        actions = self._supersede(at, peer, message, host)
        labels = dict(message.labels)
        server = Server(message.name, message.key, message.slots, host, message.port, labels, message.loads)
        self.name_server(peer, server)
        self.serve(peer, message.key)
        for running in message.running:
            self.restore_lease(at, peer, server, running)
        return [*actions, _done(peer, message.id, server=server.name)]

    def _supersede(self, at: float, peer: Peer, message: control.Register, host: str) -> list[Action]:
        """Drop the same server's connection from before, if the tracker has not noticed its end yet.

        Two servers cannot listen on one port of one host; behind a proxy there is no telling.
        """
        conn = self.server_names.get(message.name)
        before = None if conn is None else self.peers[conn].server
        if conn is None or conn == peer.conn or before is None or message.port is None:
            return []
        if (before.key, before.host, before.port) != (message.key, host, message.port):
            return []
        ended = self._disconnected(Disconnected(at, conn))
        return [*ended, Close(conn, f"{message.name} has registered again, over another connection")]

    def _summary(self, at: float, peer: Peer, message: control.Summary) -> list[Action]:
        return [_done(peer, message.id, summary=views.summary(self, at, peer))]

    def _not_yet(self, at: float, peer: Peer, message: control.Ask) -> list[Action]:
        return [_refusal(peer, message.id, "BadRequest", f"this tracker does not support {message.op!r}")]

    def _acknowledged(self, at: float, peer: Peer, message: Answer) -> list[Action]:
        return []

    # Time.

    def _tick(self, event: Tick) -> list[Action]:
        actions: list[Action] = []
        for kind, *details in self.deadlines.take(event.at):
            actions += _ON_DEADLINE[kind](self, event.at, *details)
        return actions

    def _timed_out(self, at: float, arrival: int) -> list[Action]:
        request = self.waiting[arrival]
        message = f"no device of {request.key!r} became free in the time allowed for waiting"
        return [self._give_up(at, request, "WaitTimeout", message)]

    def _still_unknown(self, at: float, arrival: int) -> list[Action]:
        request = self.waiting[arrival]
        if self.queues[request.key].servers:
            return []
        return [self._give_up(at, request, "UnknownKey", views.unknown_key(self, request.key))]

    def _give_up(self, at: float, request: Waiting, error: str, message: str) -> Action:
        assert request.id is not None, "TVM's requests have no deadline"
        peer = self.peers[request.conn]
        self.remove_request(at, peer, request)
        return _refusal(peer, request.id, error, message)

    def _forget(self, at: float, key: str) -> list[Action]:
        self.forget_queue(at, self.queues[key])
        return []

    def _tell_positions(self, at: float) -> list[Action]:
        moved, self.moved = self.moved, {}
        return [
            _position(request, index)
            for key in moved
            for index, (_, _, request) in enumerate(self.queues[key].waiting)
            if request.id is not None and request.told != index + 1
        ]


def _unfit(peer: Peer, message: control.Request) -> str | None:
    """Why a request cannot be taken, None if it can."""
    if message.id in peer.requests:
        return f"id {message.id} is in use by a request that waits"
    if len(peer.waiting) >= MAX_WAITING:
        return f"{MAX_WAITING} requests wait on this connection already"
    if message.labels or message.count > 1 or message.ticket is not None:
        return "this tracker does not support labels, a count above 1, or tickets"
    return None


def _done(peer: Peer, asked: int, **fields: Any) -> Send:
    return Send(peer.conn, Answer(asked, True, fields=fields).to_json())


def _refusal(peer: Peer, asked: int, error: str, message: str) -> Send:
    return Send(peer.conn, Answer(asked, False, error, message).to_json())


def _position(request: Waiting, ahead: int) -> Send:
    assert request.id is not None, "TVM's clients are not told"
    request.told = ahead + 1
    return Send(request.conn, control.Queued(request.id, ahead + 1, ahead).to_json())


def _granted(asked: int, lease: Lease, offer: Offer, host: str) -> dict[str, Any]:
    place = control.Lease(
        lease=lease.lease,
        epoch=lease.epoch,
        key=lease.key,
        host=host,
        port=offer.port,
        matchkey=offer.match_key,
        server=lease.server_name,
        limit_s=lease.limit_s,
    )
    return {"id": asked, "ok": True, "leases": [place.to_json()]}


def _ask(server: Peer) -> int:
    """The id of the tracker's next question to a server."""
    server.asked += 1
    return server.asked


def _taken(server: Peer, lease: Lease, offer: Offer) -> Send:
    told = control.Taken(
        id=_ask(server),
        lease=lease.lease,
        epoch=lease.epoch,
        matchkey=offer.match_key,
        user=lease.user,
        address=lease.address,
        limit_s=lease.limit_s,
    )
    return Send(server.conn, told.to_json())


_ON_EVENT: dict[type, Callable[..., list[Action]]] = {
    Connected: State._connected,
    Disconnected: State._disconnected,
    Tick: State._tick,
}

_ON_MESSAGE: dict[type, Callable[..., list[Action]]] = {
    tracker.Ping: State._ping,
    tracker.Stop: State._stop,
    tracker.Put: State._put,
    tracker.TvmRequest: State._tvm_request,
    tracker.UpdateInfo: State._update_info,
    tracker.TvmSummary: State._tvm_summary,
    tracker.GetPending: State._get_pending,
    control.Request: State._request,
    control.Cancel: State._cancel,
    control.Release: State._release,
    control.Summary: State._summary,
    control.Register: State._register,
    control.LeaseStarted: State._lease_started,
    control.LeaseEnded: State._lease_ended,
    control.Renew: State._not_yet,
    control.Resolve: State._not_yet,
    control.History: State._not_yet,
    control.Usage: State._not_yet,
    control.Why: State._not_yet,
    control.Drain: State._not_yet,
    control.Enable: State._not_yet,
    control.EndLease: State._not_yet,
    control.Health: State._not_yet,
    control.Answer: State._acknowledged,
}

_ON_DEADLINE: dict[str, Callable[..., list[Action]]] = {
    "timeout": State._timed_out,
    "unknown": State._still_unknown,
    "forget": State._forget,
    "positions": State._tell_positions,
}
