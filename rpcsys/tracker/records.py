"""The tracker's records, kept consistent: what is in one place about a thing is in all places, or in none.

Nothing is decided here and nobody is told anything; that is :mod:`rpcsys.tracker.state`.
"""

from __future__ import annotations

from collections import Counter

from rpcsys.tracker.deadlines import Deadlines
from rpcsys.tracker.entities import Condition, Lease, Offer, Peer, Place, Queue, Server, Settling, Waiting
from rpcsys.tracker.events import Started
from rpcsys.tracker.held import Held, size_of
from rpcsys.tracker.labels import Facts, Pair, Wants, facts_of_key
from rpcsys.tracker.lease_states import OURS
from rpcsys.tracker.lines import Lines
from rpcsys.tracker.pool import Pool
from rpcsys.tracker.relays import Relays
from rpcsys.tracker.shares import Shares
from rpcsys.wire.control import DeployedModule

GRACE_S = 6.0
"""A key whose last server left so recently is still known: servers register again within 5 s, after a
restart of theirs or of the tracker."""

POSITIONS_S = 1.0
"""Clients are told of a changed position at most so often; a queue that moves fast would flood them."""

STEP_S = 600.0
STEPS = 3
"""Every so long a request's effective priority rises by one, so many times: nothing starves."""

MAX_PLACES = 100_000
MAX_PLACES_BYTES = 160 << 20
"""Places kept for clients that are away. Beyond, the first to have left loses its place."""

EPOCHS_AHEAD = 86_400_000
"""How far above the time in milliseconds an epoch of another run may be: a clock that was set back by a day. Beyond,
it is not believed: epochs that rise from there would reach what the wire's numbers hold, and no server took a lease."""


class Records:
    """All records, as of ``now``, the time of the last event. Two of them are equal when every record is.

    Dictionaries stand for ordered sets.
    """

    def __init__(self, started: Started) -> None:
        self.now = self.started_at = self.left_at = started.at
        self.relays = Relays.of(started.proxy_from)
        self.instance = started.instance
        self.stop_key = started.stop_key
        self.limits = dict(started.limits)
        self.peers: dict[int, Peer] = {}
        self.queues: dict[str, Queue] = {}
        self.waiting: dict[int, Waiting] = {}
        self.gatherers: dict[int, Waiting] = {}
        self.gathering: dict[int, Waiting] = {}
        self.gatherers_of: Counter[str] = Counter()
        self.leases: dict[str, Lease] = {}
        self.server_names: dict[str, int] = {}
        self.identities: dict[str, int] = {}
        self.heirs: dict[str, int] = {}
        self.not_named: dict[str, None] = {}
        self.by_fact: dict[Pair, dict[int, None]] = {}
        self.conditions: dict[str, Condition] = {}
        self.missed: dict[str, str] = {}
        self.absent: dict[str, None] = {}
        self.modules: dict[str, dict[int, DeployedModule]] = {}
        self.places: dict[str, Place] = {}
        self.tickets: dict[str, Waiting] = {}
        self.held = Held()
        self.places_bytes = 0
        self.pool = Pool()
        self.shares = Shares(started.at)
        self.lines = Lines(self.shares)
        self.deadlines = Deadlines()
        self.moved: dict[str, None] = {}
        self.settling: Settling | None = None
        self.arrivals = 0
        self.epoch = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    # Connections.

    def serve(self, peer: Peer, key: str) -> Queue:
        """The peer serves the key, until it leaves."""
        peer.serves[key] = None
        queue = self.queue(key)
        queue.servers[peer.conn] = None
        return queue

    def describe(self, peer: Peer, server: Server) -> None:
        """The peer is one of our servers."""
        self.forget_server(peer)
        peer.server = server
        if server.identity:
            self.identities[server.identity] = peer.conn
        for pair in server.facts.pairs:
            self.by_fact.setdefault(pair, {})[peer.conn] = None

    def forget_server(self, peer: Peer) -> None:
        """The peer is no server of ours any more."""
        if peer.server is not None and self.identities.get(peer.server.identity) == peer.conn:
            del self.identities[peer.server.identity]
        for pair in () if peer.server is None else peer.server.facts.pairs:
            del self.by_fact[pair][peer.conn]
            if not self.by_fact[pair]:
                del self.by_fact[pair]
        peer.server = None

    def servers(self, wants: Wants) -> list[Peer]:
        """The servers that some request could be served by."""
        if wants.bare:
            queue = self.queues.get(wants.key)
            return [] if queue is None else [self.peers[conn] for conn in queue.servers]
        by_label = (self.by_fact.get(pair, {}) for pair in wants.exact)
        fewest: dict[int, None] = min(by_label, key=len)
        peers = (self.peers[conn] for conn in fewest)
        return [peer for peer in peers if peer.server is not None and wants.fit(peer.server.facts)]

    def deploy(self, peer: Peer, modules: tuple[DeployedModule, ...], key: str) -> None:
        """These are all the modules that are deployed there."""
        for module in peer.deployed:
            served = self.modules.get(module.name, {})
            served.pop(peer.conn, None)
            if not served:
                self.modules.pop(module.name, None)
        for module in modules:
            self.modules.setdefault(module.name, {})[peer.conn] = module
        peer.deployed, peer.deployed_key = modules, key

    def serve_no_more(self, conn: int, key: str) -> None:
        """The peer has left."""
        queue = self.queues[key]
        queue.servers.pop(conn, None)
        queue.left_at = self.left_at = self.now
        if not queue.servers:
            self.deadlines.set(("forget", key), self.now + GRACE_S)

    def name_peer(self, peer: Peer, wanted: str) -> str:
        """Give a server a name that no other has."""
        self.unname_peer(peer)
        name, count = wanted, 1
        while name in self.server_names:
            count += 1
            name = f"{wanted}-{count}"
        self.server_names[name] = peer.conn
        peer.name = name
        return name

    def unname_peer(self, peer: Peer) -> None:
        """Take a server's name back."""
        if self.server_names.get(peer.name) == peer.conn:
            del self.server_names[peer.name]
        peer.name = ""

    def believe(self, epoch: int) -> bool:
        """Have the next epochs be above one of a run before this; whether it can be one."""
        plausible = epoch <= int(self.now * 1000) + EPOCHS_AHEAD
        if plausible:
            self.epoch = max(self.epoch, epoch)
        return plausible

    def condition(self, peer: Peer) -> Condition | None:
        """What is wrong with a server, None for nothing."""
        return self.conditions.get(peer.name) if peer.name else None

    # Queues.

    def queue(self, key: str) -> Queue:
        """The key's queue, a new one if there is none."""
        queue = self.queues.get(key)
        if queue is None:
            queue = self.queues[key] = Queue(key)
        return queue

    def forget_queue(self, queue: Queue) -> None:
        """Drop the queue of a key that nobody serves, wants or holds, or served just now."""
        if not (queue.servers or queue.waiting or queue.leases) and self.now >= queue.left_at + GRACE_S:
            del self.queues[queue.key]
            self.moved.pop(queue.key, None)
            self.deadlines.drop(("forget", queue.key))

    def known_until(self, key: str) -> float | None:
        """Until when a key without a server is taken for known; None while it has one."""
        queue = self.queues.get(key)
        if queue is not None and queue.servers:
            return None
        return self.known_after(self.started_at if queue is None else queue.left_at)

    def known_after(self, left_at: float) -> float:
        """Until when what left at ``left_at`` is taken for known."""
        return max(left_at, self.started_at) + GRACE_S

    def note_move(self, key: str) -> None:
        """Those who wait will want to know their new positions, soon."""
        queue = self.queues.get(key)
        if queue is not None and queue.waiting and key not in self.moved:
            if not self.moved:
                self.deadlines.set(("positions",), self.now + POSITIONS_S)
            self.moved[key] = None

    # Offers and requests.

    def new_offer(self, peer: Peer, key: str, match_key: str, host: str, port: int) -> Offer:
        """A match key, on offer from now on but not free yet; the same one offered again replaces the first."""
        before = peer.offers.get(match_key)
        if before is not None:
            self.withdraw(before)
        server = peer.server
        facts: Facts = server.facts if server is not None and server.key == key else facts_of_key(key)
        offer = Offer(peer.conn, key, match_key, host, port, facts)
        if key not in peer.serves:
            self.serve(peer, key)
        peer.offers[match_key] = offer
        return offer

    def withdraw(self, offer: Offer) -> None:
        """A match key is no longer free, nor anybody's."""
        if offer.free:
            self.pool.remove(offer)
        elif offer.claimed:
            self.waiting[offer.claimed].gathered.remove(offer)
            offer.claimed = 0  # its gatherer goes on with the others

    def use(self, offer: Offer) -> None:
        """A match key is handed out: it is none any more."""
        self.withdraw(offer)
        del self.peers[offer.conn].offers[offer.match_key]

    def add_request(self, peer: Peer, request: Waiting) -> None:
        """A request takes its place in its queue."""
        steps = request.steps = min(STEPS, int((self.now - request.since) // STEP_S))
        peer.waiting[request.arrival] = request
        if request.id is not None:
            peer.requests[request.id] = request
        self.waiting[request.arrival] = request
        request.address = peer.address
        self.held.add(request)
        self.queue(request.key).waiting[request.arrival] = request
        if request.ticket is not None:
            self.tickets[request.ticket] = request
        if request.count > 1:
            self.gatherers[request.arrival] = request
            self.gatherers_of[request.address] += 1
        self.shares.waits(self.now, request.user)
        self.lines.add(request)
        if steps < STEPS:
            self.remind(request, "age", request.since + (steps + 1) * STEP_S)

    def remind(self, request: Waiting, what: str, due: float) -> None:
        """Something is due of a request that waits, unless it has left by then."""
        request.timers = (*request.timers, what) if what not in request.timers else request.timers
        self.deadlines.set((what, request.arrival), due)

    def remove_request(self, request: Waiting) -> None:
        """A request leaves its queue, from wherever it stands. What it has gathered must be taken back before."""
        peer, queue = self.peers[request.conn], self.queues[request.key]
        if not request.parked:
            self.lines.remove(request)
        for table in (peer.waiting, self.waiting, queue.waiting):
            del table[request.arrival]
        self.held.remove(request)
        if self.gatherers.pop(request.arrival, None) is not None:
            self.gatherers_of[request.address] -= 1
            if not self.gatherers_of[request.address]:
                del self.gatherers_of[request.address]
        self.shares.waits_no_more(request.user)
        if request.id is not None:
            del peer.requests[request.id]
        if request.ticket is not None:
            del self.tickets[request.ticket]
        for timer in request.timers:
            self.deadlines.drop((timer, request.arrival))
        self.note_move(request.key)
        self.forget_queue(queue)

    # Places, of requests whose clients are away.

    def room_for(self, place: Place) -> bool:
        """Whether one more can be kept."""
        return len(self.places) < MAX_PLACES and self.places_bytes + size_of(place.wants) <= MAX_PLACES_BYTES

    def keep_place(self, ticket: str, place: Place) -> None:
        """A ticket keeps a place, in place of any that it kept."""
        if ticket in self.places:
            self.take_place(ticket)
        self.places_bytes += size_of(place.wants)
        self.places[ticket] = place

    def take_place(self, ticket: str) -> Place:
        """A ticket keeps its place no longer."""
        place = self.places.pop(ticket)
        self.places_bytes -= size_of(place.wants)
        return place

    # Leases.

    def add_lease(self, lease: Lease) -> None:
        """A lease that runs from ``lease.since`` on."""
        self.leases[lease.lease] = lease
        self.queue(lease.key).leases[lease.lease] = lease
        self.shares.begin(lease.since, lease.user)
        server = None if lease.server is None else self.peers.get(lease.server)
        if server is not None:
            server.serving[lease.lease] = lease
        holder = None if lease.holder is None else self.peers.get(lease.holder)
        if holder is not None:
            holder.holding[lease.lease] = lease

    def remove_lease(self, lease: Lease) -> None:
        """A lease is over."""
        del self.leases[lease.lease]
        queue = self.queues[lease.key]
        del queue.leases[lease.lease]
        self.shares.end(self.now, lease.user)
        if lease.user and (lease.opened or lease.how is not OURS):  # others began when their server says
            queue.lengths.append(self.now - lease.since)
        server = None if lease.server is None else self.peers.get(lease.server)
        if server is not None:
            server.serving.pop(lease.lease, None)
        else:
            self.deadlines.drop(("away", lease.lease))
        holder = None if lease.holder is None else self.peers.get(lease.holder)
        if holder is not None:
            holder.holding.pop(lease.lease, None)
        self.forget_queue(queue)
