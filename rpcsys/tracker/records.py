"""What a tracker remembers: connections, offers, requests that wait, leases, and a queue for each key."""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections import OrderedDict
from dataclasses import dataclass, field
from typing import Any


@dataclass(slots=True)
class Offer:
    """A match key that a server holds ready: the right to one session there."""

    conn: int
    key: str
    match_key: str
    host: str
    port: int


@dataclass(slots=True)
class Waiting:
    """A request without a device. ``id`` is None for TVM's clients, which give none."""

    arrival: int
    conn: int
    id: int | None
    key: str
    priority: float
    limit_s: float | None = None
    told: int = 0

    @property
    def place(self) -> tuple[float, int]:
        """Where it stands in its queue: higher priority first, then by arrival."""
        return (-self.priority, self.arrival)


@dataclass(slots=True)
class Lease:
    """A match key that was handed out. ``server`` and ``holder`` are connections; the holder may have left."""

    lease: str
    epoch: int
    key: str
    server: int
    server_name: str | None
    holder: int | None
    user: str
    address: str
    since: float
    limit_s: float | None
    started: bool = False


@dataclass(slots=True)
class Server:
    """How one of our servers has registered itself."""

    name: str
    key: str
    slots: int
    host: str
    port: int | None
    labels: dict[str, str]
    loads: tuple[str, ...]


@dataclass(slots=True)
class Peer:
    """A connection, with all that vanishes when it ends.

    ``local`` is the address at which it reached the tracker; ``report`` what a TVM server calls itself, and where
    it is; ``asked`` counts the questions that the tracker has put to it. Dictionaries stand for ordered sets.
    """

    conn: int
    address: str
    local: str
    user: str = ""
    report: tuple[str, str, int] | None = None
    server: Server | None = None
    asked: int = 0
    serves: dict[str, None] = field(default_factory=dict)
    offers: dict[str, Offer] = field(default_factory=dict)
    waiting: dict[int, Waiting] = field(default_factory=dict)
    requests: dict[int, Waiting] = field(default_factory=dict)
    serving: dict[str, Lease] = field(default_factory=dict)
    holding: dict[str, Lease] = field(default_factory=dict)


@dataclass(slots=True)
class Queue:
    """One key: its free match keys in the order offered, and its requests in the order they will be served.

    ``left_at`` is when its last server left. Waiting requests are kept sorted, so that a position is a
    binary search; taking the first out moves at most some thousand pointers.
    """

    key: str
    servers: dict[int, None] = field(default_factory=dict)
    offers: OrderedDict[tuple[int, str], Offer] = field(default_factory=OrderedDict)
    waiting: list[tuple[float, int, Waiting]] = field(default_factory=list)
    left_at: float = float("-inf")

    def add(self, request: Waiting) -> None:
        """Put a request in its place."""
        insort(self.waiting, (*request.place, request))

    def remove(self, request: Waiting) -> None:
        """Take a request out, wherever it stands."""
        del self.waiting[self.index(request)]

    def index(self, request: Waiting) -> int:
        """How many requests are served before this one."""
        return bisect_left(self.waiting, request.place)

    def first(self) -> Waiting:
        """Take out the request that is served next."""
        return self.waiting.pop(0)[2]


class Deadlines:
    """Times at which something is due, by what it is. What is dropped or moved costs no search.

    Entries of the heap that are out of date are passed over, and swept out when they are the greater part, so
    that requests made and cancelled over and over take no memory.
    """

    def __init__(self) -> None:
        self._due: dict[tuple[Any, ...], float] = {}
        self._heap: list[tuple[float, int, tuple[Any, ...]]] = []
        self._count = 0

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Deadlines) and self._due == other._due

    __hash__ = None  # type: ignore[assignment]

    def set(self, what: tuple[Any, ...], at: float) -> None:
        """``what`` is due at ``at``, and at no other time."""
        self._due[what] = at
        self._count += 1
        heapq.heappush(self._heap, (at, self._count, what))
        if len(self._heap) > 2 * len(self._due) + 64:
            self._heap = [entry for entry in self._heap if self._due.get(entry[2]) == entry[0]]
            heapq.heapify(self._heap)

    def drop(self, what: tuple[Any, ...]) -> None:
        """``what`` is no longer due; nothing happens if it never was."""
        self._due.pop(what, None)

    @property
    def next(self) -> float | None:
        """When the first thing is due, None if nothing is."""
        while self._heap and self._due.get(self._heap[0][2]) != self._heap[0][0]:
            heapq.heappop(self._heap)
        return self._heap[0][0] if self._heap else None

    def take(self, now: float) -> list[tuple[Any, ...]]:
        """What is due by ``now``, in order; it is no longer due afterwards."""
        taken = []
        while (at := self.next) is not None and at <= now:
            what = heapq.heappop(self._heap)[2]
            del self._due[what]
            taken.append(what)
        return taken
