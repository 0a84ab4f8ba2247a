"""The tracker's records, kept whole: what is in one place is in all places, or in none. Nothing is decided here."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from rpcsys.tracker import entities
from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.tracker.entities import Condition, LeaseRecord, Peer, Queue, Server, SlotOffer, WaitingRequest
from rpcsys.tracker.events import TrackerStarted
from rpcsys.tracker.labels import Pair, Wants, facts_of_key
from rpcsys.tracker.matching import OfferIndex, Subqueues
from rpcsys.tracker.quotas import Places, WaitingMemory
from rpcsys.tracker.shares import Shares
from rpcsys.tracker.transitions import OURS
from rpcsys.wire.control import DeployedModule

#: A key whose last server left so recently is still known: servers register again within 5 s, after a restart of theirs
#: or of the tracker.
GRACE_S = 6.0
POSITIONS_S = 1.0  # clients are told of a changed position at most so often: a queue that moves fast would flood them
STEP_S, STEPS = 600.0, 3  # every so long a request's effective priority rises by one, so many times: nothing starves
#: How far above the time in milliseconds an epoch of another run may be: a clock that was set back by a day. Beyond, it
#: is not believed: epochs that rise from there would reach what the wire's numbers hold, and no server took a lease.
EPOCHS_AHEAD = 86_400_000


@dataclass
class Deadlines:
    """Times at which something is due, by what it is. What is dropped or moved costs no search."""

    next: float | None = field(default=None, compare=False)  # when the first is due, None if nothing is
    _due: dict[tuple[Any, ...], float] = field(default_factory=dict)
    #: Entries that are out of date are passed over, and swept out when they are the greater part, so that requests made
    #: and cancelled over and over take no memory.
    _heap: list[tuple[float, int, tuple[Any, ...]]] = field(default_factory=list, compare=False)
    _count: int = field(default=0, compare=False)

    def set(self, what: tuple[Any, ...], at: float) -> None:
        """``what`` is due at ``at``, and at no other time."""
        if self._due.get(what) == at:
            return  # a second entry would outlive every sweep
        self._due[what] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, what))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        self._find_next()

    def drop(self, what: tuple[Any, ...]) -> None:
        """``what`` is no longer due; nothing happens if it never was."""
        at = self._due.pop(what, None)
        if at is not None and at == self.next:
            self._find_next()

    def take(self, now: float) -> Iterator[tuple[Any, ...]]:
        """What is due by ``now``, in order, unless what came before it has dropped or moved it."""
        due = []
        while self.next is not None and self.next <= now:
            at, _, what = heapq.heappop(self._heap)
            due.append((at, what))
            self._find_next()
        for at, what in due:
            if self._due.get(what) == at:
                del self._due[what]
                yield what

    def _find_next(self) -> None:
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        self.next = self._heap[0][0] if self._heap else None


class Records:
    """All records, as of ``now``, the time of the last event. Two of them are equal when every record is."""

    def __init__(self, started: TrackerStarted) -> None:
        self.now = self.started_at = self.left_at = started.at
        self.proxy_networks = ProxyNetworks.of(started.proxy_from)
        self.instance = started.instance
        self.stop_key = started.stop_key
        self.limits = dict(started.limits)
        self.peers: dict[int, Peer] = {}
        self.queues: dict[str, Queue] = {}
        self.waiting: dict[int, WaitingRequest] = {}
        self.gatherers: dict[int, WaitingRequest] = {}  # requests for several devices
        self.gathering: dict[int, WaitingRequest] = {}  # those of them that have claimed some
        self.gatherers_of: Counter[str] = Counter()  # by address
        self.leases: dict[str, LeaseRecord] = {}
        self.server_names: dict[str, int] = {}
        self.identities: dict[str, int] = {}
        self.heirs: dict[str, int] = {}
        self.not_named: dict[str, None] = {}
        self.by_fact: dict[Pair, dict[int, None]] = {}
        self.conditions: dict[str, Condition] = {}
        self.missed: dict[str, str] = {}
        self.absent: dict[str, None] = {}
        self.modules: dict[str, dict[int, DeployedModule]] = {}
        self.places = Places()
        self.tickets: dict[str, WaitingRequest] = {}
        self.memory = WaitingMemory()
        self.free_offers = OfferIndex()
        self.shares = Shares(started.at)
        self.subqueues = Subqueues(self.shares)
        self.deadlines = Deadlines()
        self.moved: dict[str, None] = {}
        self.settling: entities.Settling | None = None
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
        server, peer.server = peer.server, None
        if server is None:
            return
        if self.identities.get(server.identity) == peer.conn:
            del self.identities[server.identity]
        for pair in server.facts.pairs:
            del self.by_fact[pair][peer.conn]
            if not self.by_fact[pair]:
                del self.by_fact[pair]

    def servers(self, wants: Wants) -> list[Peer]:
        """The servers that some request could be served by."""
        if wants.bare:
            queue = self.queues.get(wants.key)
            return [] if queue is None else [self.peers[conn] for conn in queue.servers]
        fewest: dict[int, None] = min((self.by_fact.get(pair, {}) for pair in wants.exact), key=len)
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
        """A server of the key has left."""
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
        if epoch > int(self.now * 1000) + EPOCHS_AHEAD:
            return False
        self.epoch = max(self.epoch, epoch)
        return True

    def condition(self, peer: Peer) -> Condition | None:
        """What is wrong with a server, None for nothing."""
        return self.conditions.get(peer.name) if peer.name else None

    # Queues.

    def queue(self, key: str) -> Queue:
        """The key's queue, a new one if there is none."""
        return self.queues.get(key) or self.queues.setdefault(key, Queue(key))

    def forget_queue(self, queue: Queue) -> None:
        """Drop the queue of a key that nobody serves, wants or holds, or served just now."""
        if not (queue.servers or queue.waiting or queue.leases) and self.now >= queue.left_at + GRACE_S:
            del self.queues[queue.key]
            self.moved.pop(queue.key, None)
            self.deadlines.drop(("forget", queue.key))

    def known_until(self, wants: Wants) -> float | None:
        """Until when what no server has is taken for known, as servers come back; None while one has it."""
        queue = self.queues.get(wants.key) if wants.key else None
        if (queue is not None and queue.servers) if wants.bare else self.servers(wants):
            return None
        left_at = queue.left_at if queue is not None else self.started_at if wants.bare else self.left_at
        return max(left_at, self.started_at) + GRACE_S

    def note_move(self, key: str) -> None:
        """Those who wait will want to know their new positions, soon."""
        queue = self.queues.get(key)
        if queue is not None and queue.waiting and key not in self.moved:
            if not self.moved:
                self.deadlines.set(("positions",), self.now + POSITIONS_S)
            self.moved[key] = None

    # Offers and requests.

    def new_offer(self, peer: Peer, key: str, match_key: str, host: str, port: int) -> SlotOffer:
        """A match key, on offer from now on but not free yet; the same one offered again replaces the first."""
        if match_key in peer.offers:
            self.withdraw(peer.offers[match_key])
        server = peer.server
        facts = server.facts if server is not None and server.key == key else facts_of_key(key)
        offer = SlotOffer(peer.conn, key, match_key, host, port, facts)
        if key not in peer.serves:
            self.serve(peer, key)
        peer.offers[match_key] = offer
        return offer

    def withdraw(self, offer: SlotOffer) -> None:
        """A match key is no longer free, nor anybody's."""
        if offer.free:
            self.free_offers.remove(offer)
        elif offer.claimed:
            self.waiting[offer.claimed].gathered.remove(offer)
            offer.claimed = 0  # its gatherer goes on with the others

    def add_request(self, peer: Peer, request: WaitingRequest) -> None:
        """A request takes its place in its queue."""
        steps = request.steps = min(STEPS, int((self.now - request.since) // STEP_S))
        peer.waiting[request.arrival] = request
        if request.id is not None:
            peer.requests[request.id] = request
        self.waiting[request.arrival] = request
        request.address = peer.address
        self.memory.count(request, 1)
        self.queue(request.key).waiting[request.arrival] = request
        if request.ticket is not None:
            self.tickets[request.ticket] = request
        if request.count > 1:
            self.gatherers[request.arrival] = request
            self.gatherers_of[request.address] += 1
        self.shares.waits(self.now, request.user)
        self.subqueues.add(request)
        if steps < STEPS:
            self.remind(request, "age", request.since + (steps + 1) * STEP_S)

    def remind(self, request: WaitingRequest, what: str, due: float) -> None:
        """Something is due of a request that waits, unless it has left by then."""
        request.timers = (*request.timers, what) if what not in request.timers else request.timers
        self.deadlines.set((what, request.arrival), due)

    def remove_request(self, request: WaitingRequest) -> None:
        """A request leaves its queue, from wherever it stands. What it has gathered must be taken back before."""
        peer, queue = self.peers[request.conn], self.queues[request.key]
        if not request.parked:
            self.subqueues.remove(request)
        for table in (peer.waiting, self.waiting, queue.waiting):
            del table[request.arrival]
        self.memory.count(request, -1)
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

    # Leases.

    def add_lease(self, lease: LeaseRecord) -> None:
        """A lease that runs from ``lease.since`` on."""
        name = lease.lease
        queue = self.queues.get(lease.key) or self.queue(lease.key)
        self.leases[name] = queue.leases[name] = lease
        self.shares.begin(lease.since, lease.user)
        if lease.server is not None:
            self.peers[lease.server].serving[name] = lease
        if lease.holder is not None:
            self.peers[lease.holder].holding[name] = lease

    def remove_lease(self, lease: LeaseRecord) -> None:
        """A lease is over."""
        name, queue = lease.lease, self.queues[lease.key]
        del self.leases[name], queue.leases[name]
        self.shares.end(self.now, lease.user)
        if lease.user and (lease.opened or lease.how != OURS):  # others began when their server says
            queue.lengths.append(self.now - lease.since)
        if lease.server in self.peers:
            self.peers[lease.server].serving.pop(name, None)
        else:
            self.deadlines.drop(("away", name))
        if lease.holder in self.peers:
            self.peers[lease.holder].holding.pop(name, None)
        self.forget_queue(queue)
