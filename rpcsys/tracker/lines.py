"""Requests that wait, in the order in which they are served.

A `Line` holds those that want the same things; a `Band` those of a line with the same effective priority. In a band
the user goes first who has had the least device time (:mod:`rpcsys.tracker.shares`), and of a user's requests
the oldest. Finding who is next looks at one user for each number of leases that users run, not at every request.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Iterable
from heapq import heapify, heappop, heappush
from typing import Any

from rpcsys.tracker.labels import Facts, Pair, Wants
from rpcsys.tracker.records import Waiting
from rpcsys.tracker.shares import Share, Shares, lead

Rank = tuple[float, float, int]
"""Lower goes first: minus effective priority, device time, arrival."""


class Band:
    """Requests of one line and one effective priority.

    ``turns`` has each user's arrivals in order. ``_heaps`` has, by the number of leases a user runs, entries of
    base, first arrival and user; those that are out of date are passed over.
    """

    def __init__(self, shares: Shares, name: tuple[Wants, float]) -> None:
        self.name = name
        self.turns: dict[str, list[int]] = {}
        self._shares = shares
        self._requests: dict[int, Waiting] = {}
        self._heaps: dict[int, list[tuple[float, int, str]]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Band) and (self.name, self._requests) == (other.name, other._requests)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return len(self._requests)

    def add(self, request: Waiting) -> None:
        """A request takes its place."""
        share = self._shares.of(request.user)
        self._requests[request.arrival] = request
        turns = self.turns.get(request.user)
        if turns is None:
            turns = self.turns[request.user] = []
            share.bands[self.name] = self
        insort(turns, request.arrival)
        if turns[0] == request.arrival:
            self.reorder(share)

    def remove(self, request: Waiting) -> None:
        """A request leaves its place."""
        del self._requests[request.arrival]
        share, turns = self._shares.of(request.user), self.turns[request.user]
        place = bisect_left(turns, request.arrival)
        del turns[place]
        if not turns:
            del self.turns[request.user], share.bands[self.name]
        elif place == 0:
            self.reorder(share)

    def reorder(self, share: Share) -> None:
        """A user's first request, or the user's device time, has changed."""
        heap = self._heaps.setdefault(share.running, [])
        heappush(heap, (share.base, self.turns[share.user][0], share.user))
        if len(heap) > 2 * len(self.turns) + 16:
            self.rebuild()

    def rebuild(self) -> None:
        """Sort everybody anew."""
        self._heaps = {}
        for user, turns in self.turns.items():
            share = self._shares.of(user)
            self._heaps.setdefault(share.running, []).append((share.base, turns[0], user))
        for heap in self._heaps.values():
            heapify(heap)

    def best(self, x: float) -> tuple[float, int]:
        """Device time, to be compared with others at the same ``x``, and arrival of who is next."""
        weight = lead(x)
        ranks = []
        for running in list(self._heaps):
            heap = self._heaps[running]
            while heap and not self._holds(running, *heap[0]):
                heappop(heap)
            if heap:
                ranks.append((heap[0][0] + running * weight, heap[0][1]))
            else:
                del self._heaps[running]
        return min(ranks)

    def _holds(self, running: int, base: float, arrival: int, user: str) -> bool:
        turns = self.turns.get(user)
        share = self._shares.users.get(user)
        return bool(
            turns and turns[0] == arrival and share and share.running == running and share.base == base
        )


class Line:
    """Requests that want the same things, by effective priority."""

    def __init__(self, shares: Shares, wants: Wants) -> None:
        self.wants = wants
        self.bands: dict[float, Band] = {}
        self._order: list[float] = []
        self._shares = shares

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Line) and (self.wants, self.bands) == (other.wants, other.bands)

    __hash__ = None  # type: ignore[assignment]

    def add(self, request: Waiting) -> None:
        """A request takes its place."""
        band = self.bands.get(request.standing)
        if band is None:
            band = self.bands[request.standing] = Band(self._shares, (self.wants, request.standing))
            insort(self._order, -request.standing)
        band.add(request)

    def remove(self, request: Waiting) -> None:
        """A request leaves its place."""
        band = self.bands[request.standing]
        band.remove(request)
        if not band:
            del self.bands[request.standing]
            del self._order[bisect_left(self._order, -request.standing)]

    def best(self, x: float) -> Rank:
        """Who is next. There must be somebody."""
        highest = self._order[0]
        return (highest, *self.bands[-highest].best(x))


class Lines:
    """All lines, found by what a device is."""

    def __init__(self, shares: Shares) -> None:
        self.all: dict[Wants, Line] = {}
        self._shares = shares
        self._by_anchor: dict[Pair, dict[Wants, Line]] = {}
        self._by_key: dict[str, dict[Wants, Line]] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Lines) and self.all == other.all

    __hash__ = None  # type: ignore[assignment]

    def add(self, request: Waiting) -> None:
        """A request takes its place."""
        line = self.all.get(request.wants)
        if line is None:
            line = self.all[request.wants] = Line(self._shares, request.wants)
            self._by_anchor.setdefault(request.wants.anchor, {})[request.wants] = line
            self._by_key.setdefault(request.key, {})[request.wants] = line
        line.add(request)

    def remove(self, request: Waiting) -> None:
        """A request leaves its place."""
        line = self.all[request.wants]
        line.remove(request)
        if not line.bands:
            del self.all[request.wants]
            _drop(self._by_anchor, request.wants.anchor, request.wants)
            _drop(self._by_key, request.key, request.wants)

    def fitting(self, facts: Facts) -> list[Line]:
        """The lines whose requests a device with these facts can serve, in no order."""
        found = []
        for pair in facts.pairs:
            beside = self._by_anchor.get(pair)
            if beside is not None:
                found += [line for line in beside.values() if line.wants.fit(facts)]
        return found

    def of_key(self, key: str) -> Iterable[Line]:
        """The lines of requests that name a key ("": that name none)."""
        return self._by_key.get(key, {}).values()


def _drop(index: dict[Any, dict[Wants, Line]], name: Any, wants: Wants) -> None:
    del index[name][wants]
    if not index[name]:
        del index[name]
