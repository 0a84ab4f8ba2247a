"""The tracker's records, kept consistent: what is in one place about a thing is in all places, or in none.

Nothing is decided here and nobody is told anything; that is :mod:`rpcsys.tracker.state`.
"""

from __future__ import annotations

from rpcsys.tracker.events import Started
from rpcsys.tracker.records import Deadlines, Lease, Offer, Peer, Queue, Server, Waiting
from rpcsys.wire.control import Running

GRACE_S = 6.0
"""A key whose last server left so recently is still known: servers register again within 5 s, after a
restart of theirs or of the tracker."""

POSITIONS_S = 1.0
"""Clients are told of a changed position at most so often; a queue that moves fast would flood them."""


class Book:
    """All records. Two books are equal when every record is. Dictionaries stand for ordered sets."""

    def __init__(self, started: Started) -> None:
        self.started_at = started.at
        self.instance = started.instance
        self.stop_key = started.stop_key
        self.peers: dict[int, Peer] = {}
        self.queues: dict[str, Queue] = {}
        self.waiting: dict[int, Waiting] = {}
        self.leases: dict[str, Lease] = {}
        self.server_names: dict[str, int] = {}
        self.deadlines = Deadlines()
        self.moved: dict[str, None] = {}
        self.arrivals = 0
        self.epoch = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Book) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    # Connections.

    def remove_peer(self, at: float, conn: int) -> list[Lease]:
        """Forget a connection with all that was its own; the leases it held, which outlive it."""
        peer = self.peers.pop(conn, None)
        if peer is None:
            return []
        for request in list(peer.waiting.values()):
            self.remove_request(at, peer, request)
        for offer in peer.offers.values():
            del self.queues[offer.key].offers[conn, offer.match_key]
        for lease in list(peer.serving.values()):
            self.remove_lease(lease)
        if peer.server is not None:
            self.server_names.pop(peer.server.name, None)
        for key in peer.serves:
            self._serve_no_more(at, conn, key)
        return list(peer.holding.values())

    def serve(self, peer: Peer, key: str) -> Queue:
        """The peer serves the key, until it leaves."""
        peer.serves[key] = None
        queue = self.queue(key)
        queue.servers[peer.conn] = None
        return queue

    def _serve_no_more(self, at: float, conn: int, key: str) -> None:
        queue = self.queues[key]
        queue.servers.pop(conn, None)
        if not queue.servers:
            queue.left_at = at
            self.deadlines.set(("forget", key), at + GRACE_S)

    def name_server(self, peer: Peer, server: Server) -> None:
        """Record a registration, under a name that no other server has."""
        if peer.server is not None:
            self.server_names.pop(peer.server.name, None)
        wanted, count = server.name, 1
        while server.name in self.server_names:
            count += 1
            server.name = f"{wanted}-{count}"
        self.server_names[server.name] = peer.conn
        peer.server = server

    # Queues.

    def queue(self, key: str) -> Queue:
        """The key's queue, a new one if there is none."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = Queue(key)
        return queue

    def forget_queue(self, at: float, queue: Queue) -> None:
        """Drop the queue of a key that nobody serves, wants, or served just now."""
        if not (queue.servers or queue.waiting) and at >= queue.left_at + GRACE_S:
            del self.queues[queue.key]
            self.moved.pop(queue.key, None)
            self.deadlines.drop(("forget", queue.key))

    def known_until(self, key: str) -> float | None:
        """Until when a key without a server is taken for known; None while it has one."""
        queue = self.queues.get(key)
        if queue is not None and queue.servers:
            return None
        left_at = queue.left_at if queue is not None else self.started_at
        return max(left_at, self.started_at) + GRACE_S

    def note_move(self, at: float, queue: Queue) -> None:
        """Those behind will want to know their new positions, soon."""
        if queue.waiting and queue.key not in self.moved:
            if not self.moved:
                self.deadlines.set(("positions",), at + POSITIONS_S)
            self.moved[queue.key] = None

    # Offers and requests.

    def add_offer(self, peer: Peer, offer: Offer) -> Queue:
        """A match key that can be handed out; the same one offered again takes the first one's place."""
        before = peer.offers.get(offer.match_key)
        if before is not None:
            del self.queues[before.key].offers[peer.conn, offer.match_key]
        queue = self.serve(peer, offer.key)
        peer.offers[offer.match_key] = offer
        queue.offers[peer.conn, offer.match_key] = offer
        return queue

    def take_offer(self, queue: Queue) -> Offer:
        """The queue's oldest offer, which is one no longer."""
        offer = queue.offers.popitem(last=False)[1]
        del self.peers[offer.conn].offers[offer.match_key]
        return offer

    def add_request(self, peer: Peer, request: Waiting) -> Queue:
        """A request takes its place in its queue."""
        peer.waiting[request.arrival] = request
        if request.id is not None:
            peer.requests[request.id] = request
        self.waiting[request.arrival] = request
        queue = self.queue(request.key)
        queue.add(request)
        return queue

    def take_request(self, queue: Queue) -> Waiting:
        """The request that is served next, which waits no longer."""
        request = queue.first()
        self._answered(self.peers[request.conn], request)
        return request

    def remove_request(self, at: float, peer: Peer, request: Waiting) -> None:
        """A request leaves its queue, from wherever it stands."""
        queue = self.queues[request.key]
        queue.remove(request)
        self._answered(peer, request)
        self.note_move(at, queue)
        self.forget_queue(at, queue)

    def _answered(self, peer: Peer, request: Waiting) -> None:
        del peer.waiting[request.arrival]
        del self.waiting[request.arrival]
        if request.id is not None:
            del peer.requests[request.id]
            self.deadlines.drop(("timeout", request.arrival))
            self.deadlines.drop(("unknown", request.arrival))

    # Leases.

    def add_lease(self, at: float, request: Waiting, offer: Offer) -> Lease:
        """A new lease, with an epoch above all others, those of runs before this one too."""
        client, server = self.peers[request.conn], self.peers[offer.conn]
        self.epoch = max(self.epoch + 1, int(at * 1000))
        lease = Lease(
            lease=f"{self.instance}-{self.epoch}",
            epoch=self.epoch,
            key=offer.key,
            server=offer.conn,
            server_name=server.server.name if server.server else None,
            holder=None if request.id is None else request.conn,
            user=client.user,
            address=client.address,
            since=at,
            limit_s=request.limit_s,
        )
        self.leases[lease.lease] = server.serving[lease.lease] = lease
        if request.id is not None:
            client.holding[lease.lease] = lease
        return lease

    def restore_lease(self, at: float, peer: Peer, server: Server, running: Running) -> None:
        """A lease that went on while the server had no tracker. Who holds it is not known any more."""
        old = self.leases.get(running.lease)
        if old is not None:
            self.remove_lease(old)
        self.epoch = max(self.epoch, running.epoch)
        lease = Lease(
            lease=running.lease,
            epoch=running.epoch,
            key=server.key,
            server=peer.conn,
            server_name=server.name,
            holder=None,
            user="",
            address="",
            since=at - running.since_s,
            limit_s=None,
            started=True,
        )
        self.leases[lease.lease] = peer.serving[lease.lease] = lease

    def remove_lease(self, lease: Lease) -> None:
        """A lease is over."""
        del self.leases[lease.lease]
        server = self.peers.get(lease.server)
        if server is not None:
            server.serving.pop(lease.lease, None)
        holder = None if lease.holder is None else self.peers.get(lease.holder)
        if holder is not None:
            holder.holding.pop(lease.lease, None)
