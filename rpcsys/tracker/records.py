"""The tracker's records and their indexes, which change together. Nothing is decided here."""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any

from rpcsys.tracker.addresses import ProxyNetworks
from rpcsys.tracker.board_speed import BoardSpeed
from rpcsys.tracker.entities import Condition, GoneServer, LeaseRecord, Peer, Queue, Server, SlotOffer, WaitingRequest
from rpcsys.tracker.events import Action, HistoryEntry, TrackerStarted
from rpcsys.tracker.labels import Pair, Wants, facts_of_key
from rpcsys.tracker.matching import OfferIndex, Subqueues
from rpcsys.tracker.quotas import Places, WaitingMemory
from rpcsys.tracker.settling import Settling
from rpcsys.tracker.shares import Shares
from rpcsys.tracker.transitions import OURS
from rpcsys.wire.control import DeployedModule

#: How long a key stays known after its last server left. Servers register again within 5 s of a restart, theirs or the
#: tracker's.
GRACE_S = 6.0
TICKET_S = 60.0  # for which a ticket keeps a place in the queue
#: Servers that are gone, and keys without one, are listed for so long, and so many at most; beyond, the first that left
#: is dropped.
GONE_S, MAX_GONE = 7 * 86400.0, 1024
POSITIONS_S = 1.0  # the shortest time between two position events of a request, so that a fast queue floods no client
STEP_S, STEPS = 600.0, 3  # a request's effective priority rises by one every STEP_S, STEPS times: nothing starves
#: The most milliseconds by which an epoch of another run may be above this clock: the clock was set back by a day.
#: Higher epochs are refused: epochs that rise from there would exceed the wire's numbers, and servers refuse those.
EPOCHS_AHEAD = 86_400_000
MAX_UNHEARD = 4096  # grants that are kept until their clients have opened a session


@dataclass
class Deadlines:
    """Named deadlines in a heap. To drop or move one costs no search."""

    next: float | None = field(default=None, compare=False)  # the first deadline, None if there is none
    _due: dict[tuple[Any, ...], float] = field(default_factory=dict)
    #: Stale entries are skipped. They are removed when they are the majority, so that requests which are made and
    #: cancelled repeatedly take no memory.
    _heap: list[tuple[float, int, tuple[Any, ...]]] = field(default_factory=list, compare=False)
    _count: int = field(default=0, compare=False)

    def set(self, what: tuple[Any, ...], at: float) -> None:
        """Set the deadline ``what`` to ``at``, or move it there."""
        if self._due.get(what) == at:
            return  # a second entry with the same time would never count as stale
        self._due[what] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, what))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)
        self._find_next()

    def drop(self, what: tuple[Any, ...]) -> None:
        """Drop the deadline ``what``, if there is one."""
        at = self._due.pop(what, None)
        if at is not None and at == self.next:
            self._find_next()

    def take(self, now: float) -> Iterator[tuple[Any, ...]]:
        """Yield what is due by ``now``, in order. The caller may drop or move later ones meanwhile."""
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


def _add_last(table: dict[str, Any], name: str, value: object) -> None:
    """Add an entry as the last one of at most `MAX_GONE`."""
    table.pop(name, None)
    table[name] = value
    while len(table) > MAX_GONE:
        del table[next(iter(table))]


class Records:
    """All records, as of ``now``, the time of the last event. Two are equal when all their records are equal."""

    def __init__(self, started: TrackerStarted) -> None:
        self.now = self.started_at = self.left_at = started.at
        self.proxy_networks = ProxyNetworks.of(started.proxy_from)
        self.replicas: tuple[str, ...] = ()  # the addresses of the tracker's replicas, which may relay
        self.replicas_text = ""  # and these in a line for people
        self.sites_text = ""  # the other sites, in a line for people
        self.term = started.term
        self.instance = started.instance
        self.stop_key = started.stop_key
        self.limits = dict(started.limits)
        self.canary_aside = started.canary_aside
        self.lab = started.lab
        self._secret = bytes.fromhex(started.secret)
        self._secrets = 0  # made of it
        self.peers: dict[int, Peer] = {}
        self.queues: dict[str, Queue] = {}
        self.waiting: dict[int, WaitingRequest] = {}
        self.gatherers: dict[int, WaitingRequest] = {}  # requests for several devices
        self.gathering: dict[int, WaitingRequest] = {}  # gatherers that have claimed an offer
        self.gatherers_of: Counter[str] = Counter()  # by address
        self.leases: dict[str, LeaseRecord] = {}
        self.server_names: dict[str, int] = {}
        self.identities: dict[str, int] = {}
        self.heirs: dict[str, int] = {}
        self.proxies_at: Counter[str] = Counter()  # addresses from which proxies have proven their tokens
        self.not_named: dict[str, None] = {}
        self.by_fact: dict[Pair, dict[int, None]] = {}
        self.conditions: dict[str, Condition] = {}
        self.speeds: dict[str, BoardSpeed] = {}
        self.missed: dict[str, str] = {}
        self.absent: dict[str, None] = {}
        self.gone: dict[str, GoneServer] = {}
        self.unserved: dict[str, float] = {}  # keys that had servers -> when the last one left
        self.modules: dict[str, dict[int, DeployedModule]] = {}
        self.places = Places()
        self.tickets: dict[str, WaitingRequest] = {}
        #: Grants with which no session was opened, so that their clients may not have heard of them: the user and the
        #: time, by the request's arrival. Those of requests that had tickets.
        self.unheard: dict[int, tuple[str, float]] = {}
        self.kept_unheard: dict[str, None] = {}  # of these, those that the history keeps
        self.unrecorded: dict[int, None] = {}  # arrivals of TVM's requests that wait, and that the history lacks
        self.memory = WaitingMemory()
        self.free_offers = OfferIndex()
        self.shares = Shares(started.at)
        self.subqueues = Subqueues(self.shares)
        self.deadlines = Deadlines()
        self.moved: dict[str, bool] = {}  # queues that get position events -> whether their notes may have changed
        self.settling: Settling | None = None
        self.arrivals = 0
        self.epoch = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Records) and self.__dict__ == other.__dict__

    __hash__ = None  # type: ignore[assignment]

    # Connections.

    def claimed(self, user: str) -> str:
        """The user that a peer without a credential claims to be. In a lab, it is told apart from the member."""
        return f"{user} (unproven)" if self.lab is not None and user else user

    def to_trust(self, address: str) -> str:
        """What to do so that the proxy at an address is believed."""
        if self.lab is None or self.lab.open:
            return f"start the tracker with --proxy-from {address}"
        return (
            f"type rpcsys lab enrol --proxy NAME, and start it with --lab (one behind others: --proxy-from {address})"
        )

    def serve(self, peer: Peer, key: str) -> Queue:
        """Note that the peer serves the key, until its connection ends."""
        peer.serves[key] = None
        self.unserved.pop(key, None)
        queue = self.queue(key)
        queue.servers[peer.conn] = None
        self.note_devices([key])
        return queue

    def describe(self, peer: Peer, server: Server) -> None:
        """Note how one of our servers has registered."""
        self.forget_server(peer)
        peer.server = server
        if server.identity:
            self.identities[server.identity] = peer.conn
        for pair in server.facts.pairs:
            self.by_fact.setdefault(pair, {})[peer.conn] = None

    def note_gone(self, name: str, gone: GoneServer) -> None:
        """Note that a server has gone."""
        _add_last(self.gone, name, gone)

    def note_back(self, server: Server) -> None:
        """Note that a server has registered: it is not gone, under this name or an earlier one."""
        if self.gone:
            names = [name for name, gone in self.gone.items() if name == server.name or gone.is_now(server)]
            for name in names:
                del self.gone[name]

    def gone_lately(self, at: float) -> dict[str, GoneServer]:
        """The servers that have been gone for at most `GONE_S`, by name, the first to leave first."""
        return {name: gone for name, gone in self.gone.items() if at - gone.since <= GONE_S}

    def unserved_lately(self, at: float) -> list[str]:
        """The keys whose last server has been gone for at most `GONE_S`, the first to lose it first."""
        return [key for key, since in self.unserved.items() if at - since <= GONE_S]

    def forget_server(self, peer: Peer) -> None:
        """Remove a server's registration from the indexes."""
        server, peer.server = peer.server, None
        if server is None:
            return
        if self.identities.get(server.identity) == peer.conn:
            del self.identities[server.identity]
        for pair in server.facts.pairs:
            del self.by_fact[pair][peer.conn]
            if not self.by_fact[pair]:
                del self.by_fact[pair]

    def candidates(self, wants: Wants) -> Iterator[Peer]:
        """The servers among which are all that fit a request."""
        if wants.bare:
            queue = self.queues.get(wants.key)
            conns = {} if queue is None else queue.servers
        else:
            conns = min((self.by_fact.get(pair, {}) for pair in wants.exact), key=len)
        return (self.peers[conn] for conn in conns)

    def serving(self, wants: Wants) -> Iterator[Peer]:
        """The servers that fit a request, whatever their condition."""
        return (peer for peer in self.candidates(wants) if peer.fits(wants))

    def deploy(self, peer: Peer, modules: tuple[DeployedModule, ...], key: str) -> None:
        """Replace the list of modules that are deployed on a server."""
        for module in peer.deployed:
            served = self.modules.get(module.name, {})
            served.pop(peer.conn, None)
            if not served:
                self.modules.pop(module.name, None)
        for module in modules:
            self.modules.setdefault(module.name, {})[peer.conn] = module
        peer.deployed, peer.deployed_key = modules, key

    def new_secret(self) -> str:
        """A new secret, 32 hexadecimal digits: as random as the run's own, of which it says nothing."""
        self._secrets += 1
        return blake2b(b"%d" % self._secrets, key=self._secret, digest_size=16).hexdigest()

    def serve_no_more(self, conn: int, key: str) -> None:
        """Note that a server of the key has left."""
        queue = self.queues[key]
        queue.servers.pop(conn, None)
        queue.left_at = self.left_at = self.now
        if not queue.servers:
            self.deadlines.set(("forget", key), self.now + GRACE_S)
            _add_last(self.unserved, key, self.now)
        self.note_devices([key])

    def name_peer(self, peer: Peer, wanted: str, spare: str = "") -> str:
        """Give a server a unique name and return it: ``wanted``, else ``spare``, else one of them with a number."""
        self.unname_peer(peer)
        wanted = spare if spare and wanted in self.server_names else wanted
        name, count = wanted, 1
        while name in self.server_names:
            count += 1
            name = f"{wanted}-{count}"
        self.server_names[name] = peer.conn
        peer.name = name
        return name

    def unname_peer(self, peer: Peer) -> None:
        """Free a server's name."""
        if self.server_names.get(peer.name) == peer.conn:
            del self.server_names[peer.name]
        peer.name = ""

    def allow_epoch(self, epoch: int) -> bool:
        """Keep the next epochs above one of an earlier run. False: it is too high to be one."""
        if epoch > int(self.now * 1000) + EPOCHS_AHEAD:
            return False
        self.epoch = max(self.epoch, epoch)
        return True

    def condition(self, peer: Peer) -> Condition | None:
        """What is wrong with a server, None if nothing is."""
        return self.conditions.get(peer.name) if peer.name else None

    def is_open(self, peer: Peer) -> bool:
        """Whether a server's condition lets it be offered."""
        condition = self.condition(peer)
        return condition is None or condition.open

    def note_unheard(self, arrival: int, user: str) -> None:
        """Note that a request was granted, until its client opens a session. The first of many are forgotten."""
        self.unheard[arrival] = user, self.now
        if len(self.unheard) > MAX_UNHEARD:
            del self.unheard[next(iter(self.unheard))]

    def note_heard(self, lease: LeaseRecord) -> None:
        """Note that a lease's client knows of it."""
        self.unheard.pop(lease.arrival, None)

    def keep_unheard(self, arrival: int) -> list[Action]:
        """Have the history keep, for `TICKET_S` after a grant, that it is over and its client may not have heard."""
        user, at = self.unheard.get(arrival, ("", 0.0))
        if not user or self.now >= at + TICKET_S:
            return []
        self.deadlines.set(("unheard", str(arrival)), at + TICKET_S)
        self.kept_unheard[str(arrival)] = None
        over = self.forget_unheard(next(iter(self.kept_unheard))) if len(self.kept_unheard) > MAX_UNHEARD else []
        return [HistoryEntry(self.now, "unheard", {"request": str(arrival), "user": user}), *over]

    def forget_unheard(self, request: str) -> list[Action]:
        """End what `keep_unheard` keeps: the client is back in its place, or has not come in time."""
        self.unheard.pop(int(request), None)
        self.kept_unheard.pop(request, None)
        self.deadlines.drop(("unheard", request))
        return [HistoryEntry(self.now, "heard", {"request": request})]

    # Queues.

    def queue(self, key: str) -> Queue:
        """The key's queue; a new one if there is none."""
        return self.queues.get(key) or self.queues.setdefault(key, Queue(key))

    def forget_queue(self, queue: Queue) -> None:
        """Drop the queue of a key without servers, requests and leases, `GRACE_S` after its last server left."""
        if not (queue.servers or queue.waiting or queue.leases) and self.now >= queue.left_at + GRACE_S:
            del self.queues[queue.key]
            self.moved.pop(queue.key, None)
            self.deadlines.drop(("forget", queue.key))

    def known_until(self, wants: Wants) -> float | None:
        """Until when what no server has is taken for known, as servers come back; None while one has it."""
        queue = self.queues.get(wants.key) if wants.key else None
        if (queue is not None and queue.servers) if wants.bare else any(self.serving(wants)):
            return None
        left_at = queue.left_at if queue is not None else self.started_at if wants.bare else self.left_at
        return max(left_at, self.started_at) + GRACE_S

    def note_move(self, key: str, notes: bool = False) -> None:
        """Schedule position events for the requests of a queue: they moved, or their ``notes`` may have changed."""
        queue = self.queues.get(key)
        if queue is not None and queue.waiting and (notes or key not in self.moved):
            if not self.moved:
                self.deadlines.set(("positions",), self.now + POSITIONS_S)
            self.moved[key] = notes or self.moved.get(key, False)

    def note_devices(self, keys: Iterable[str]) -> None:
        """Schedule events for the requests that servers of these keys may serve: one has come, has left or is shut."""
        for key in (*keys, ""):
            self.note_move(key, notes=True)

    # Offers and requests.

    def new_offer(self, peer: Peer, key: str, match_key: str, host: str, port: int) -> SlotOffer:
        """Add an offer, which is not free yet. It replaces an earlier offer of the same match key."""
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
        """Make an offer neither free nor claimed."""
        if offer.index is not None:
            offer.index.remove(offer)
        elif offer.claimed:
            self.waiting[offer.claimed].gathered.remove(offer)
            offer.claimed = 0  # the gatherer keeps its other offers

    def free(self, key: str) -> int:
        """How many offers of a key are free, or reserved after a restart."""
        reserved = 0 if self.settling is None else self.settling.reserved.count(key)
        return self.free_offers.count(key) + reserved

    def add_request(self, peer: Peer, request: WaitingRequest) -> None:
        """Add a request to its queue."""
        steps = request.steps = min(STEPS, int((self.now - request.since) // STEP_S))
        peer.waiting[request.arrival] = request
        if request.id is not None:
            peer.requests[request.id] = self.tickets[request.ticket] = request
        self.waiting[request.arrival] = request
        request.address = peer.address
        self.memory.count(request, 1)
        self.queue(request.key).waiting[request.arrival] = request
        if request.count > 1:
            self.gatherers[request.arrival] = request
            self.gatherers_of[request.address] += 1
        self.shares.waits(self.now, request.user, request.count)
        self.subqueues.add(request)
        if steps < STEPS:
            self.remind(request, "age", request.since + (steps + 1) * STEP_S)

    def remind(self, request: WaitingRequest, what: str, due: float) -> None:
        """Set a deadline of a waiting request. It is dropped with the request."""
        request.timers = (*request.timers, what) if what not in request.timers else request.timers
        self.deadlines.set((what, request.arrival), due)

    def remove_request(self, request: WaitingRequest) -> None:
        """Remove a request from its queue. The caller has taken back its gathered offers."""
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
        self.shares.waits_no_more(request.user, request.count)
        if request.id is not None:
            del peer.requests[request.id], self.tickets[request.ticket]
        else:
            self.unrecorded.pop(request.arrival, None)
        for timer in request.timers:
            self.deadlines.drop((timer, request.arrival))
        self.note_move(request.key)
        self.forget_queue(queue)

    # Leases.

    def add_lease(self, lease: LeaseRecord) -> None:
        """Add a lease, which runs from ``lease.since`` on."""
        name = lease.lease
        queue = self.queues.get(lease.key) or self.queue(lease.key)
        self.leases[name] = queue.leases[name] = lease
        self.shares.begin(lease.since, lease.user)
        if lease.server is not None:
            self.peers[lease.server].serving[name] = lease
        if lease.holder is not None:
            self.peers[lease.holder].holding[name] = lease

    def remove_lease(self, lease: LeaseRecord) -> None:
        """Remove a lease that is over."""
        name, queue = lease.lease, self.queues[lease.key]
        del self.leases[name], queue.leases[name]
        self.shares.end(self.now, lease.user)
        if lease.user and (lease.opened or lease.how != OURS):  # the length of the others is not known
            queue.lengths.append(self.now - lease.since)
        if lease.server in self.peers:
            self.peers[lease.server].serving.pop(name, None)
            self.peers[lease.server].since = self.now
        else:
            self.deadlines.drop(("away", name))
        if lease.holder in self.peers:
            self.peers[lease.holder].holding.pop(name, None)
        self.forget_queue(queue)
