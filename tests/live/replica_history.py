"""What peers of a replicated lab have seen, and the rules by which it is judged. Nothing here runs or waits.

A match key is good once, so the history needs no search: each rule is looked up. Times are seconds of the machine's
monotonic clock, which is the same in all its network namespaces.
"""

from __future__ import annotations

import collections
import itertools
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from typing import TypeVar

FLIGHT_S = 1.0  # of a message, where the network is whole
BESIDE = 100  # grants between two that are compared in their order


@dataclass(frozen=True)
class Event:
    """Something that one peer has seen."""

    at: float


Found = TypeVar("Found", bound=Event)


@dataclass(frozen=True)
class Offered(Event):
    """A server is about to offer a match key. ``server``: its name in the trackers' history."""

    key: str
    server: str = ""


@dataclass(frozen=True)
class Withdrawn(Event):
    """A server has given up a match key that no session was opened with: its link has broken, or it was not used."""

    key: str


@dataclass(frozen=True)
class Taken(Event):
    """A server was told of a grant, by the leader of ``term``."""

    key: str
    lease: str
    epoch: int
    term: int


@dataclass(frozen=True)
class Asked(Event):
    """A client is about to request. Those with the same ``queue`` are alike but for their arrival."""

    request: str
    queue: str


@dataclass(frozen=True)
class Queued(Event):
    """A client was told that its request waits."""

    request: str
    ticket: str = ""


@dataclass(frozen=True)
class Lost(Event):
    """A client has lost the connection of its request, and comes back with its ticket."""

    request: str


@dataclass(frozen=True)
class Left(Event):
    """A client has given its request up."""

    request: str


@dataclass(frozen=True)
class Granted(Event):
    """A client was told of a lease. TVM's clients are told of the match key alone."""

    request: str
    key: str
    lease: str = ""
    epoch: int = 0
    term: int = 0


@dataclass(frozen=True)
class Troubled(Event):
    """A fault begins. ``delays``: messages that were sent may arrive late."""

    fault: str
    delays: bool


@dataclass(frozen=True)
class Healed(Event):
    """The fault that began last is over. Each kind of client is to be granted something within so many seconds."""

    within_s: float


@dataclass(frozen=True)
class Known(Event):
    """The leases of which the leader of ``term`` knows, that run or are over; it was asked at ``at``."""

    term: int
    leases: frozenset[str]


@dataclass(frozen=True)
class Table(Event):
    """The leases that a replica has in its file in the end. ``servers``: of each, of those that run, too."""

    replica: str
    rows: tuple[tuple[object, ...], ...]
    servers: tuple[str, ...] = ()


@dataclass
class History:
    """All events. Each peer adds its own."""

    events: list[Event] = field(default_factory=list)

    def add(self, event: Event) -> None:
        """Note an event; from any thread."""
        self.events.append(event)

    def told(self) -> frozenset[str]:
        """The leases of which clients have been told so far."""
        seen = Seen([*self.events])
        return frozenset(seen.lease(grant).lease for grant in seen.granted) - {""}

    def broken(self) -> list[str]:
        """The rules that the history breaks: a line for each case."""
        seen = Seen(sorted(self.events, key=lambda event: event.at))
        return [f"rule {number}: {case}" for number, rule in RULES.items() for case in rule(seen)]


class Seen:
    """A history, by what the rules ask for."""

    def __init__(self, events: Iterable[Event]) -> None:
        self.all: dict[type[Event], list[Event]] = collections.defaultdict(list)
        for event in events:
            self.all[type(event)].append(event)
        self.granted = self.of(Granted)
        self.offered = {offer.key: offer for offer in self.of(Offered)}
        self.taken = {taken.key: taken for taken in self.of(Taken)}
        self.asked = {asked.request: asked for asked in self.of(Asked)}
        self.late = [*self._late()]

    def of(self, kind: type[Found]) -> list[Found]:
        """The events of a kind, in their order."""
        return self.all[kind]  # type: ignore[return-value]

    def _late(self) -> Iterator[tuple[float, float]]:
        """When messages were late: during faults that delay, and as long after them, for TCP pauses so long."""
        over = [*(healed.at for healed in self.of(Healed)), float("inf")]
        for begun, over_at in zip(self.of(Troubled), over, strict=False):
            if begun.delays:
                yield begun.at, 2 * over_at - begun.at

    def whole_s(self, since: float, until: float) -> float:
        """The seconds between two moments in which nothing delayed messages."""
        late = sum(max(0.0, min(until, end) - max(since, begin)) for begin, end in self.late)
        return until - since - late

    def lease(self, grant: Granted) -> Granted | Taken:
        """What is known of a grant: its server was told more than TVM's client."""
        return grant if grant.lease else self.taken.get(grant.key, grant)


def _once(seen: Seen) -> Iterator[str]:
    """Each match key is granted once."""
    for key, count in collections.Counter(grant.key for grant in seen.granted).items():
        if count > 1:
            yield f"{key} was granted {count} times"


def _to_an_open_request(seen: Seen) -> Iterator[str]:
    """A grant is for a request that is open."""
    left = {left.request: left.at for left in seen.of(Left)}
    answered: set[str] = set()
    for grant in seen.granted:
        asked = seen.asked.get(grant.request)
        if asked is None or grant.at < asked.at or grant.request in answered:
            yield f"{grant.key} was granted to {grant.request}, which was not open"
        elif left.get(grant.request, grant.at) < grant.at:
            yield f"{grant.key} was granted to {grant.request}, which had left"
        answered.add(grant.request)


def _within_the_offer(seen: Seen) -> Iterator[str]:
    """A grant is within the life of its offer, as its server saw it."""
    withdrawn = {withdrawn.key: withdrawn.at for withdrawn in seen.of(Withdrawn)}
    for grant in seen.granted:
        offer, until = seen.offered.get(grant.key), withdrawn.get(grant.key, grant.at)
        if offer is None or grant.at < offer.at:
            yield f"{grant.key} was granted before it was offered"
        elif seen.whole_s(until, grant.at) > FLIGHT_S:
            yield f"{grant.key} was granted {grant.at - until:.1f} s after its server gave it up"


def _by_the_leader(seen: Seen) -> Iterator[str]:
    """No tracker grants after a later term has granted."""
    heard = [grant for grant in (*seen.granted, *seen.of(Taken)) if grant.term]
    highest = 0
    for grant in sorted(heard, key=lambda grant: grant.epoch):
        if grant.term < highest:
            yield f"{grant.key}: term {grant.term} has given the lease {grant.epoch}, after term {highest}"
        highest = max(highest, grant.term)
    latest, since = 0, 0.0
    for grant in sorted(heard, key=lambda grant: grant.at):
        if grant.term > latest:
            latest, since = grant.term, grant.at
        elif grant.term < latest and seen.whole_s(since, grant.at) > FLIGHT_S:
            yield f"{grant.key}: term {grant.term} spoke {grant.at - since:.1f} s after term {latest}"


@dataclass
class _Wait:
    """A request's time in the queue, until it was granted as ``epoch``."""

    request: str
    queue: str
    asked: float
    queued: float  # when it first was
    back: float  # when it was since the last loss of its connection
    offered: float  # what it was granted: the decision came later than this,
    granted: float  # and earlier than this
    epoch: int


def _waits(seen: Seen) -> Iterator[_Wait]:
    queued: dict[str, list[float]] = collections.defaultdict(list)
    for event in seen.of(Queued):
        queued[event.request].append(event.at)
    lost = {event.request: event.at for event in seen.of(Lost)}
    for grant in seen.granted:
        asked, told = seen.asked.get(grant.request), queued[grant.request]
        if asked is not None and grant.epoch:
            last = lost.get(grant.request, 0.0)
            back = next((at for at in told if at > last), grant.at)
            first = told[0] if told else grant.at
            offered = seen.offered[grant.key].at if grant.key in seen.offered else 0.0
            granted = min(grant.at, seen.taken[grant.key].at) if grant.key in seen.taken else grant.at
            yield _Wait(grant.request, asked.queue, asked.at, first, back, offered, granted, grant.epoch)


def _in_order(seen: Seen) -> Iterator[str]:
    """Who waits is not passed by who comes later."""
    waits = sorted(_waits(seen), key=lambda wait: wait.epoch)
    for number, wait in enumerate(waits):
        for later in itertools.islice(waits, number + 1, number + BESIDE):
            waited = later.queue == wait.queue and later.queued < wait.asked
            there = later.back < wait.offered or seen.whole_s(later.back, wait.granted) > FLIGHT_S
            if waited and there:
                yield f"{wait.request} was served before {later.request}, which was in the queue before it"


def _known_to_the_next(seen: Seen) -> Iterator[str]:
    """Each lease that a client was told of is known to whoever leads then."""
    for known in seen.of(Known):
        told = {seen.lease(grant).lease for grant in seen.granted if grant.at < known.at}
        for lease in sorted(told - known.leases - {""}):
            yield f"the leader of term {known.term} does not know the lease {lease}"
    offers = [seen.offered[grant.key] for grant in seen.granted if grant.key in seen.offered]
    used = collections.Counter(offer.server for offer in offers)  # where no name is told, by number
    del used[""]
    for table in seen.of(Table):
        for server, missing in (used - collections.Counter(table.servers)).items():
            yield f"{table.replica} lacks {missing} leases of {server}"


def _same_tables(seen: Seen) -> Iterator[str]:
    """All replicas have the same history in the end."""
    tables = seen.of(Table)
    for table in tables[1:]:
        differs = {*table.rows} ^ {*tables[0].rows}
        if differs or len(table.rows) != len(tables[0].rows):
            row = min(differs, key=str, default="one row twice")
            yield f"{table.replica} has {len(table.rows)} leases, {tables[0].replica} {len(tables[0].rows)}: {row}"


def _goes_on(seen: Seen) -> Iterator[str]:
    """A grant follows each healing."""
    queues = sorted({asked.queue for asked in seen.asked.values()})
    for number, healed in enumerate(seen.of(Healed)):
        for queue in queues:
            then = [g.at for g in seen.granted if g.at > healed.at and seen.asked[g.request].queue == queue]
            if not then or then[0] - healed.at > healed.within_s:
                took = f"{then[0] - healed.at:.1f} s" if then else "nothing"
                fault = seen.of(Troubled)[number].fault
                yield f"after {fault}, {queue} clients got something in {took}, not in {healed.within_s:g} s"


RULES: dict[int, Callable[[Seen], Iterator[str]]] = {
    1: _once,
    2: _to_an_open_request,
    3: _within_the_offer,
    4: _by_the_leader,
    5: _in_order,
    6: _known_to_the_next,
    7: _same_tables,
    8: _goes_on,
}
