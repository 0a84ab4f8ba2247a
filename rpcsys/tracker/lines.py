"""Requests that wait, in the order in which they are served.

A `Line` holds those that want the same things; a `Band` those of a line with the same effective priority. In a band
the user goes first who has had the least device time (:mod:`rpcsys.tracker.shares`), and of a user's requests
the oldest. Finding who is next looks at one user for each number of leases that users run, not at every request.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections.abc import Collection, Iterator
from typing import Any

from rpcsys.tracker.entities import Waiting
from rpcsys.tracker.labels import KEY, NAME, SERVER, Facts, Pair, Wants
from rpcsys.tracker.shares import Share, Shares, lead

Entry = tuple[float, int, str]

MAX_BESIDE = 256
MAX_BESIDE_OF_ADDRESS = 64
"""Sets of labels, in all and of each address, that wait and can be told apart only by looking at each: every device
that becomes free is compared with them, in 4 us each. Sets with a value of their own are no such: they are found by
it."""

Rank = tuple[float, float, int]
"""Lower goes first: minus effective priority, device time, arrival."""


class Band:
    """Requests of one line and one effective priority.

    ``turns`` has each user's arrivals in order; ``levels[n]`` counts users with more than ``n`` requests.
    ``_classes`` has, by the number of leases that a user runs, base, first arrival and user, sorted: in a class the
    order stays what it is while time passes, so to compare classes is to compare their first entries. Users whose
    entry is no longer right are ``_moved``: a lease that ends and the next that begins move one twice, and only who
    looks needs the order.
    """

    def __init__(self, shares: Shares, name: tuple[Wants, float]) -> None:
        self.name = name
        self.turns: dict[str, list[int]] = {}
        self.levels: list[int] = []
        self._count = 0
        self._shares = shares
        self._entries: dict[str, tuple[int, Entry]] = {}
        self._classes: dict[int, list[Entry]] = {}
        self._moved: dict[str, Share] = {}

    def __eq__(self, other: object) -> bool:
        return isinstance(other, Band) and (self.name, self.turns) == (other.name, other.turns)

    __hash__ = None  # type: ignore[assignment]

    def __len__(self) -> int:
        return self._count

    def add(self, request: Waiting) -> None:
        """A request takes its place."""
        share = self._shares.of(request.user)
        turns = self.turns.get(request.user)
        if turns is None:
            turns = self.turns[request.user] = []
        self._count += 1
        if len(turns) == len(self.levels):
            self.levels.append(0)
        self.levels[len(turns)] += 1
        insort(turns, request.arrival)
        if turns[0] == request.arrival:
            self.reorder(share)

    def remove(self, request: Waiting) -> None:
        """A request leaves its place."""
        share, turns = self._shares.of(request.user), self.turns[request.user]
        place = bisect_left(turns, request.arrival)
        del turns[place]
        self._count -= 1
        self.levels[len(turns)] -= 1
        if not self.levels[-1]:
            self.levels.pop()
        if not turns:
            self._take_out(request.user)
            self._moved.pop(request.user, None)
            share.sorted_in.pop(self.name, None)
            del self.turns[request.user]
        elif place == 0:
            self.reorder(share)

    def reorder(self, share: Share) -> None:
        """A user's first request, or the user's device time, has changed."""
        self._moved[share.user] = share

    def _sorted(self) -> dict[int, list[Entry]]:
        """The classes, as they are now."""
        if self._moved:
            for user in self._moved:
                self._take_out(user)
            for user, share in self._moved.items():
                entry = (share.base, self.turns[user][0], user)
                share.sorted_in[self.name] = self
                self._entries[user] = (share.running, entry)
                insort(self._classes.setdefault(share.running, []), entry)
            self._moved.clear()
        return self._classes

    def _take_out(self, user: str) -> None:
        if user not in self._entries:
            return
        running, entry = self._entries.pop(user)
        entries = self._classes[running]
        del entries[bisect_left(entries, entry)]
        if not entries:
            del self._classes[running]

    def best(self, x: float) -> tuple[float, int]:
        """Device time, to be compared with others at the same ``x``, and arrival of who is next."""
        weight = lead(x)
        return min((entries[0][0] + running * weight, entries[0][1]) for running, entries in self._sorted().items())

    def ranks(self, x: float) -> Iterator[Entry]:
        """The users with their device time and first arrival, in no order: the lowest has the first turn."""
        weight = lead(x)
        for running, entries in self._sorted().items():
            for base, arrival, user in entries:
                yield base + running * weight, arrival, user

    def ahead(self, x: float, share: Share, arrival: int) -> int:
        """About how many requests are served before one of a user's, which may be of another band.

        Users take turns, so every other's first requests are, as many as the user has before this one, and one more of
        those who are before the user now. That is exact for a user's first; of later ones it is taken that among those
        with many requests as large a part is before the user.
        """
        turns = self.turns.get(share.user, [])
        own = bisect_left(turns, arrival)
        before = self._users_before(x, share, turns[0] if own else arrival)
        if not own:
            return before
        further = self.levels[own] if own < len(self.levels) else 0
        return sum(self.levels[:own]) + round(before * further / self.levels[0])

    def _users_before(self, x: float, share: Share, arrival: int) -> int:
        weight = lead(x)
        spent = share.base + share.running * weight
        count = 0
        for running, entries in self._sorted().items():
            base = share.base if running == share.running else spent - running * weight
            count += bisect_left(entries, (base, arrival, share.user))
        return count


class Line:
    """Requests that want the same things, by effective priority. ``anchor`` is one of those, by which it is found;
    ``address`` is where the first of them came from.
    """

    def __init__(self, shares: Shares, wants: Wants, anchor: Pair, address: str) -> None:
        self.wants = wants
        self.anchor = anchor
        self.address = address
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
            anchor = self._anchor(request.wants)
            line = self.all[request.wants] = Line(self._shares, request.wants, anchor, request.address)
            self._by_anchor.setdefault(anchor, {})[request.wants] = line
            self._by_key.setdefault(request.key, {})[request.wants] = line
        line.add(request)

    def remove(self, request: Waiting) -> None:
        """A request leaves its place."""
        line = self.all[request.wants]
        line.remove(request)
        if not line.bands:
            del self.all[request.wants]
            _drop(self._by_anchor, line.anchor, request.wants)
            _drop(self._by_key, request.key, request.wants)

    def _anchor(self, wants: Wants) -> Pair:
        """The pair with the fewest lines so far; among those with as many, one that few devices have."""
        if len(wants.exact) == 1:
            return next(iter(wants.exact))
        return min(wants.exact, key=self._crowd)

    def _crowd(self, pair: Pair) -> tuple[int, bool, bool, Pair]:
        return len(self._by_anchor.get(pair, ())), pair[0] not in (SERVER, NAME), pair[0] == KEY, pair

    def full(self, address: str, wants: Wants) -> str:
        """Why nobody may wait who wants this, in a sentence for the client; "" if one may. For a key alone one
        always may.
        """
        if wants.bare or wants in self.all:
            return ""
        anchor = self._anchor(wants)
        beside = self._by_anchor.get(anchor, {}).values()
        if sum(line.address == address for line in beside) >= MAX_BESIDE_OF_ADDRESS:
            sets = f"{MAX_BESIDE_OF_ADDRESS} sets of labels"
            return f"requests of {address} for {anchor[1]!r} with {sets} wait already: cancel some"
        if len(beside) >= MAX_BESIDE:
            return f"requests for {anchor[1]!r} with {MAX_BESIDE} sets of labels wait already: try again later"
        return ""

    def fitting(self, facts: Facts) -> list[Line]:
        """The lines whose requests a device with these facts can serve, in no order."""
        found = []
        for pair in facts.pairs:
            beside = self._by_anchor.get(pair)
            if beside is not None:
                found += [line for line in beside.values() if line.wants.fit(facts)]
        return found

    def of_key(self, key: str) -> Collection[Line]:
        """The lines of requests that name a key ("": that name none)."""
        return self._by_key.get(key, {}).values()


def _drop(index: dict[Any, dict[Wants, Line]], name: Any, wants: Wants) -> None:
    del index[name][wants]
    if not index[name]:
        del index[name]
