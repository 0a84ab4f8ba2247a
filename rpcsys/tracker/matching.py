"""Indexes of free offers and of waiting requests, by the facts of a device, in the order of service.

A `Subqueue` holds the requests with equal wants, a `Band` those of them with one effective priority. In a band, the
user with the least device time is first; of a user's requests, the oldest.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from collections import OrderedDict
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Generic, TypeVar

from rpcsys.tracker.entities import SlotOffer, WaitingRequest
from rpcsys.tracker.labels import KEY, NAME, SERVER, DeviceFacts, Pair, Wants
from rpcsys.tracker.shares import Share, Shares, lead

T = TypeVar("T")
Entry = tuple[float, int, str]
#: The most waiting sets of labels under one pair, in all and of each address. Each device that becomes free is compared
#: with all sets under its pairs, in 4 us each. A set with a unique value stands under that value alone.
MAX_BESIDE = 256
MAX_BESIDE_OF_ADDRESS = 64
Rank = tuple[float, float, int]  # minus effective priority, device time, arrival; the lowest is served first


@dataclass
class OfferIndex:
    """Free offers by each fact of their devices; each index is in the order of offering."""

    by_fact: dict[Pair, OrderedDict[tuple[int, str], SlotOffer]] = field(default_factory=dict)

    def add(self, offer: SlotOffer) -> None:
        """Add an offer that is in no index."""
        offer.index = self
        for pair in offer.facts.pairs:
            index = self.by_fact.get(pair)
            if index is None:
                index = self.by_fact[pair] = OrderedDict()
            index[offer.conn, offer.match_key] = offer

    def remove(self, offer: SlotOffer) -> None:
        """Remove an offer."""
        offer.index = None
        for pair in offer.facts.pairs:
            index = self.by_fact[pair]
            del index[offer.conn, offer.match_key]
            if not index:
                del self.by_fact[pair]

    def count(self, key: str) -> int:
        """How many offers of a key are free."""
        return len(self.by_fact.get((KEY, key), ()))

    def all(self) -> list[SlotOffer]:
        """All offers: each is under one key."""
        return [offer for pair, index in self.by_fact.items() if pair[0] == KEY for offer in index.values()]

    def find(self, wants: Wants) -> SlotOffer | None:
        """The oldest offer that fits, None if there is none."""
        if wants.bare:  # the usual case: every offer of the key fits
            index = self.by_fact.get((KEY, wants.key))
            return next(iter(index.values())) if index else None
        return next(self.fitting(wants), None)

    def fitting(self, wants: Wants) -> Iterator[SlotOffer]:
        """The offers that fit, the oldest first."""
        rarest: OrderedDict[tuple[int, str], SlotOffer] | None = None
        for pair in wants.exact:
            index = self.by_fact.get(pair)
            if index is None:
                return
            if rarest is None or len(index) < len(rarest):
                rarest = index
        if rarest is not None:
            yield from (offer for offer in rarest.values() if wants.fit(offer.facts))


@dataclass
class WantsIndex(Generic[T]):
    """Values by the wants of requests, each indexed by one of the pairs that are wanted."""

    _by_anchor: dict[Pair, dict[Wants, T]] = field(default_factory=dict)
    _anchors: dict[Wants, Pair] = field(default_factory=dict)

    def add(self, wants: Wants, value: T) -> None:
        """Add the value of wants that have none."""
        anchor = self._anchors[wants] = self.anchor(wants)
        self._by_anchor.setdefault(anchor, {})[wants] = value

    def remove(self, wants: Wants) -> None:
        """Remove the value of wants."""
        anchor = self._anchors.pop(wants)
        beside = self._by_anchor[anchor]
        del beside[wants]
        if not beside:
            del self._by_anchor[anchor]

    def anchor(self, wants: Wants) -> Pair:
        """The wanted pair under which wants belong: the fewest others are there; of equals, the fewest devices."""
        if len(wants.exact) == 1:
            return next(iter(wants.exact))

        def crowd(pair: Pair) -> tuple[int, bool, bool, Pair]:
            return len(self._by_anchor.get(pair, ())), pair[0] not in (SERVER, NAME), pair[0] == KEY, pair

        return min(wants.exact, key=crowd)

    def under(self, anchor: Pair) -> Collection[T]:
        """The values that are indexed by a pair."""
        return self._by_anchor.get(anchor, {}).values()

    def fitting(self, facts: DeviceFacts) -> list[T]:
        """The values of all wants that a device with these facts fits, in no order."""
        beside = [self._by_anchor[pair] for pair in facts.pairs if pair in self._by_anchor]
        return [value for values in beside for wants, value in values.items() if wants.fit(facts)]


@dataclass
class Band:
    """Requests of one subqueue and one effective priority.

    Users with equally many running leases are a class, in which time does not change the order. So the next user is the
    lowest of the first users of all classes.
    """

    shares: Shares = field(compare=False, repr=False)
    name: tuple[Wants, float]
    turns: dict[str, list[int]] = field(default_factory=dict)  # each user's arrivals, in order
    levels: list[int] = field(default_factory=list)  # [n]: users with more than n requests
    _count: int = 0
    _entries: dict[str, tuple[int, Entry]] = field(default_factory=dict, compare=False)
    #: By the number of running leases: base, first arrival and user, sorted.
    _classes: dict[int, list[Entry]] = field(default_factory=dict, compare=False)
    #: Users whose entry is stale. They are sorted in when the order is read next: the end of a lease and the beginning
    #: of another move a user twice.
    _moved: dict[str, Share] = field(default_factory=dict, compare=False)

    def __len__(self) -> int:
        return self._count

    def add(self, request: WaitingRequest) -> None:
        share = self.shares.of(request.user)
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

    def remove(self, request: WaitingRequest) -> None:
        share, turns = self.shares.of(request.user), self.turns[request.user]
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
        """Mark a user's entry as stale: the first request, or the device time, has changed."""
        self._moved[share.user] = share

    def _sorted(self) -> dict[int, list[Entry]]:
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
        """The next request: its user's device time, which is comparable at the same ``x``, and its arrival."""
        weight = lead(x)
        return min((entries[0][0] + running * weight, entries[0][1]) for running, entries in self._sorted().items())

    def ranks(self, x: float) -> Iterator[Entry]:
        """Device time, first arrival and name of each user, in no order; the lowest is served first."""
        weight = lead(x)
        for running, entries in self._sorted().items():
            for base, arrival, user in entries:
                yield base + running * weight, arrival, user

    def ahead(self, x: float, share: Share, arrival: int) -> int:
        """About how many requests are served before one of a user's, which may be of another band.

        Users take turns. Each other user is served as often as the user has requests before this one, and once more if
        it is before the user now. That share of users is also assumed among those with more requests.
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


@dataclass
class Subqueue:
    """Requests with equal wants, by effective priority."""

    shares: Shares = field(compare=False, repr=False)
    wants: Wants
    address: str = field(compare=False)  # the address of its first request
    bands: dict[float, Band] = field(default_factory=dict)
    _order: list[float] = field(default_factory=list, compare=False)

    def add(self, request: WaitingRequest) -> None:
        standing = request.standing
        band = self.bands.get(standing)
        if band is None:
            band = self.bands[standing] = Band(self.shares, (self.wants, standing))
            insort(self._order, -standing)
        band.add(request)

    def remove(self, request: WaitingRequest) -> None:
        band = self.bands[request.standing]
        band.remove(request)
        if not band:
            del self.bands[request.standing]
            del self._order[bisect_left(self._order, -request.standing)]

    def best(self, x: float) -> Rank:
        """The rank of the next request. The subqueue must not be empty."""
        highest = self._order[0]
        return (highest, *self.bands[-highest].best(x))


@dataclass
class Subqueues:
    """All subqueues, by their wants."""

    shares: Shares = field(compare=False, repr=False)
    all: dict[Wants, Subqueue] = field(default_factory=dict)
    index: WantsIndex[Subqueue] = field(default_factory=WantsIndex, compare=False)
    _by_key: dict[str, dict[Wants, Subqueue]] = field(default_factory=dict, compare=False)

    def add(self, request: WaitingRequest) -> None:
        wants = request.wants
        queue = self.all.get(wants)
        if queue is None:
            queue = self.all[wants] = Subqueue(self.shares, wants, request.address)
            self.index.add(wants, queue)
            self._by_key.setdefault(wants.key, {})[wants] = queue
        queue.add(request)

    def remove(self, request: WaitingRequest) -> None:
        wants = request.wants
        queue = self.all[wants]
        queue.remove(request)
        if not queue.bands:
            del self.all[wants]
            self.index.remove(wants)
            of_key = self._by_key[wants.key]
            del of_key[wants]
            if not of_key:
                del self._by_key[wants.key]

    def full(self, address: str, wants: Wants) -> str:
        """Why a request with these wants cannot wait, for its client; "" if it can. One for a key alone always can."""
        if wants.bare or wants in self.all:
            return ""
        anchor = self.index.anchor(wants)
        beside = self.index.under(anchor)
        if sum(other.address == address for other in beside) >= MAX_BESIDE_OF_ADDRESS:
            sets = f"{MAX_BESIDE_OF_ADDRESS} sets of labels"
            return f"requests of {address} for {anchor[1]!r} with {sets} wait already: cancel some"
        if len(beside) >= MAX_BESIDE:
            return f"requests for {anchor[1]!r} with {MAX_BESIDE} sets of labels wait already: try again later"
        return ""

    def of_key(self, key: str) -> Collection[Subqueue]:
        """The subqueues of requests for a key ("": of requests without one)."""
        return self._by_key.get(key, {}).values()
