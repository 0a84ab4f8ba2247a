"""Connections that wait at a proxy for a client. Decisions only.

A server that nobody can reach dials its proxies instead, says which key it serves, and waits there::

    dialling ──its greeting is out──> parked ──a client's greeting begins──> answering ──> paired: a client's
        └───────────────┴────────────────────────┴─ lost, refused, late: dialled again       connection, as if accepted

Which places are wanted is decided elsewhere, as (proxy, key) pairs; this part makes it so. A proxy that refuses or is away
is tried again for ever, with growing pauses of its own, and by one connection before the others.
"""

from __future__ import annotations

import collections
from dataclasses import dataclass

from rpcsys.link.backoff import Backoff
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev

CONNECT_S = 8.0
"""From dialling to a greeting that is out."""

ANSWER_S = 8.0
"""From the first byte of a client's greeting to its last: the proxy sends it in one piece."""

FIRST_PAUSE_S, PAUSE_S = 0.1, 5.0
"""First and longest pause before a proxy is tried again: one that was away for a night has its boards back in seconds."""

LASTED_S = 5.0
"""A place that was parked for so long was not refused: what ended it says nothing about the next."""

LOST, DUPLICATE, MISMATCH = "lost", "duplicate", "mismatch"
"""How a place ends: no connection (any more), or the proxy's answer."""


@dataclass(frozen=True)
class KeyMade(ev.Event):
    """Here is a new match key, which nobody knows yet: it is offered when a place waits under it."""

    matchkey: str


@dataclass(frozen=True)
class Parked(ev.Event):
    """A place's greeting is out: the proxy can pair it."""

    place: int


@dataclass(frozen=True)
class Answering(ev.Event):
    """A place hears the first bytes of an answer."""

    place: int


@dataclass(frozen=True)
class Unparked(ev.Event):
    """A place is no more; ``how`` as above, ``why`` for a person. ``jitter``, in [0, 1), shortens the next pause."""

    place: int
    how: str
    why: str
    jitter: float = 0.0


@dataclass(frozen=True)
class Paired(ev.Event):
    """A place has got a client, whose greeting this is, and is the connection ``conn`` from now on."""

    place: int
    conn: int
    peer: str
    role: str
    key: str
    session: str | None = None
    serve: str | None = None
    timeout_s: float | None = None


@dataclass(frozen=True)
class MakeKey(do.Action):
    """Make a match key: :class:`KeyMade` follows."""


@dataclass(frozen=True)
class Park(do.Action):
    """Dial a proxy and say which key is served: Parked, Answering, and Paired or Unparked follow.

    ``offered``: the key is a match key that the tracker knows from this server itself.
    """

    place: int
    proxy: int
    key: str
    offered: bool


@dataclass(frozen=True)
class Unpark(do.Action):
    """Close a place without a word; nothing more is heard of it."""

    place: int


@dataclass
class Place:
    """``until``: when it is given up, None while it may wait; ``parked_at``: since when it does."""

    proxy: int
    key: str
    until: float | None
    parked_at: float | None = None
    answering: bool = False


class Parking:
    """Places by number, and what is known of the ``proxies``, given as people write them. ``key``: the plain one."""

    def __init__(self, key: str, proxies: tuple[str, ...]) -> None:
        self.places: dict[int, Place] = {}
        self._key = key
        self._proxies = proxies
        self._pauses = [Backoff(FIRST_PAUSE_S, PAUSE_S) for _ in proxies]
        self._takes_one = [False for _ in proxies]
        self._works = [False for _ in proxies]
        self._told = [False for _ in proxies]
        self._put_off: set[int] = set()
        self._last = 0

    def parked(self, now: float, number: int) -> list[do.Action]:
        """A place waits from now on."""
        place = self.places.get(number)
        if place is None:
            return []
        place.until, place.parked_at = None, now
        self._works[place.proxy] = True
        if self._told[place.proxy]:
            return []
        self._told[place.proxy] = True
        return [do.Log("info", f"waiting for clients at the proxy at {self._proxies[place.proxy]}")]

    @property
    def waiting(self) -> int:
        """How many places a client could come to now."""
        return sum(place.parked_at is not None for place in self.places.values())

    def answering(self, now: float, number: int) -> None:
        """A client's greeting begins, or goes on."""
        place = self.places.get(number)
        if place is not None and not place.answering:
            place.until, place.answering = now + ANSWER_S, True

    def paired(self, number: int) -> Place | None:
        """A place has become a client's connection."""
        return self.places.pop(number, None)

    def over(self, now: float, place: Place, served: bool) -> None:
        """A paired place's client is gone; ``served``: it had a session. Who sends nobody is not asked in a hurry."""
        if served:
            self._pauses[place.proxy].worked()
        else:
            self._pause(now, place)

    def lost(self, event: Unparked) -> list[do.Action]:
        """A place is no more."""
        place = self.places.pop(event.place, None)
        if place is None:
            return []
        if event.how == DUPLICATE and self._others_wait(place):
            # TVM's proxy takes one connection of a key. The next is dialled when a client has taken this one.
            self._takes_one[place.proxy] = True
            return []
        return self._failed(event.now, place, event.why, event.jitter, takes_one=event.how == DUPLICATE)

    def _others_wait(self, place: Place) -> bool:
        return any((other.proxy, other.key) == (place.proxy, place.key) for other in self.places.values())

    def _is_dialled(self, proxy: int) -> bool:
        return any(place.proxy == proxy and place.parked_at is None for place in self.places.values())

    def _failed(
        self, now: float, place: Place, why: str, jitter: float = 0.0, *, takes_one: bool = False
    ) -> list[do.Action]:
        if not takes_one:
            # It may be another one when it is back; one connection is to find that out.
            self._takes_one[place.proxy] = self._works[place.proxy] = False
        if not self._pause(now, place, jitter):
            return []
        self._told[place.proxy] = False
        name = self._proxies[place.proxy]
        return [do.Log("warning", f"the proxy at {name}: {why}; trying again until it works")]

    def _pause(self, now: float, place: Place, jitter: float = 0.0) -> bool:
        """Leave a place's proxy alone for a while. Whether this is the first time in a row."""
        pause = self._pauses[place.proxy]
        if not pause.allows(now):  # all places of a proxy end together when it does: that is one failure
            return False
        if place.parked_at is not None and now - place.parked_at >= LASTED_S:
            pause.worked()
        return pause.failed(now, jitter)

    # What is wanted, and when

    def settle(self, now: float, wanted: list[tuple[int, str]]) -> list[do.Action]:
        """Bring the places to what is ``wanted``: (proxy, key), as often as it should be there."""
        missing = collections.Counter(wanted)
        actions: list[do.Action] = []
        for number, place in list(self.places.items()):
            if missing[place.proxy, place.key]:
                missing[place.proxy, place.key] -= 1
            elif not place.answering:  # a client that is nearly here is let in, or told
                del self.places[number]
                actions.append(Unpark(number))
        self._put_off.clear()
        for (proxy, key), count in missing.items():
            actions += self._dial(now, proxy, key, count)
        return actions

    def _dial(self, now: float, proxy: int, key: str, count: int) -> list[do.Action]:
        if self._takes_one[proxy]:
            count = min(count, 0 if self._others_wait(Place(proxy, key, None)) else 1)
        elif not self._works[proxy]:
            count = min(count, 0 if self._is_dialled(proxy) else 1)
        if count and not self._pauses[proxy].allows(now):
            self._put_off.add(proxy)
            return []
        actions: list[do.Action] = []
        for _ in range(count):
            self._last += 1
            self.places[self._last] = Place(proxy, key, now + CONNECT_S)
            actions.append(Park(self._last, proxy, key, key != self._key))
        return actions

    def close(self) -> list[do.Action]:
        """Wait for nobody any more."""
        numbers = list(self.places)
        self.places.clear()
        self._put_off.clear()
        return [Unpark(number) for number in numbers]

    def deadline(self) -> float | None:
        """When :meth:`tick` or :meth:`settle` has something to do."""
        times = [place.until for place in self.places.values()]
        times += [self._pauses[proxy].until for proxy in self._put_off]
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> list[do.Action]:
        """Give up what takes too long."""
        actions: list[do.Action] = []
        for number, place in list(self.places.items()):
            if place.until is not None and now >= place.until:
                del self.places[number]
                what = "it sent half an answer" if place.answering else "it takes no connection"
                actions += [Unpark(number), *self._failed(now, place, what)]
        return actions
