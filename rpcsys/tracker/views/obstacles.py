"""Why no device can serve a request now, however long it waits; and who holds the devices that fit it.

A request whose devices are all taken has no obstacle: it waits for its turn.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterable, Iterator
from itertools import islice
from typing import TYPE_CHECKING, Any, NamedTuple

from rpcsys.errors import printable, span
from rpcsys.tracker.labels import NAME, SERVER
from rpcsys.tracker.transitions import DRAINED
from rpcsys.tracker.views import rows
from rpcsys.wire.checks import MAX_TEXT

if TYPE_CHECKING:
    from rpcsys.tracker.entities import LeaseRecord, Peer, WaitingRequest
    from rpcsys.tracker.labels import Wants
    from rpcsys.tracker.records import Records

#: Servers that are compared with requests in one step, in some 20 ms. In a larger lab an obstacle may not be found.
ROOM = 10_000
NAMED = 3  # servers that a sentence names, and sentences about servers


class Obstacle(NamedTuple):
    """Why a request cannot be met now: the sentence, and what is wrong with the servers that fit it."""

    what: str = ""
    servers: str = ""

    def __str__(self) -> str:
        text = printable(": ".join(filter(None, self)))
        return text if len(text) <= MAX_TEXT else text[: MAX_TEXT - 1] + "…"


NONE = Obstacle()


class Obstacles:
    """Finds the obstacles of some requests, at one time. Each set of wants is compared with the servers once."""

    def __init__(self, records: Records, at: float) -> None:
        self.room = ROOM
        self._records = records
        self._at = at
        self._found: dict[tuple[Wants, int], Obstacle] = {}
        self._holders: dict[Wants, list[dict[str, Any]]] = {}

    def of(self, wants: Wants, count: int = 1) -> Obstacle:
        """Why ``count`` devices together cannot be had now; `NONE` if they can, or if there is no room to look."""
        found = self._found.get((wants, count))
        if found is None:
            found = NONE if self._records.settling is not None else self._find(wants, count)
            self._found[wants, count] = found
        return found

    def note(self, request: WaitingRequest) -> str:
        """Why a request cannot be served, as one line; "" if it waits for its turn."""
        return str(self.of(request.wants, request.count)) or request.parked

    def why(self, request: WaitingRequest) -> str:
        """Why a request is not served yet, as one line; "" if nothing is known."""
        users = dict.fromkeys(holder["user"] for holder in self.holders(request.wants))
        return self.note(request) or (printable(f"taken by {', '.join(users)}") if users else "")

    def holders(self, wants: Wants, most: int = rows.MAX_HOLDERS) -> list[dict[str, Any]]:
        """The holders of at most ``most`` devices that fit, the longest lease first."""
        if wants not in self._holders:
            self._holders[wants] = rows.holders(self._leases(wants, most), self._at, most)
        return self._holders[wants]

    def _leases(self, wants: Wants, most: int) -> Iterable[LeaseRecord]:
        if wants.bare:
            return self._records.queues[wants.key].leases.values()
        fitting = (lease for peer in self._serving(wants) for lease in peer.serving.values())
        return sorted(islice(fitting, most), key=lambda lease: lease.since)

    def _serving(self, wants: Wants) -> Iterator[Peer]:
        for peer in self._records.candidates(wants):
            self.room -= 1
            if self.room < 0:
                return
            if peer.fits(wants):
                yield peer

    def _find(self, wants: Wants, count: int) -> Obstacle:
        offered, shut = 0, []
        for peer in self._serving(wants):
            if not self._records.is_open(peer):
                shut.append(peer)
                continue
            offered += 1 if count == 1 else peer.slots_for(wants)  # TVM's servers have a slot only while they offer it
            if offered >= count:
                return NONE
        if self.room < 0:
            return NONE
        if not offered and not shut:
            return Obstacle(self._absent(wants))
        servers = "; ".join(out_of_use(self._records, self._at, shut))
        if count == 1:
            return Obstacle("" if wants.bare else f"no server in use is {wants}", servers)
        total = offered + sum(peer.slots_for(wants) for peer in shut)
        wanted = f"{count} devices are wanted together ({wants})"
        if total >= count:
            return Obstacle(f"{wanted}, and only {offered} of {total} are offered", servers)
        there = "there is 1" if total == 1 else f"there are {total}"
        return Obstacle(f"{wanted}, and {there}: lower the count to {max(total, 1)} (--count {max(total, 1)})")

    def _absent(self, wants: Wants) -> str:
        queue = self._records.queues.get(wants.key)
        served = not wants.key or (queue is not None and queue.servers)
        what = f"no server is {wants} now" if served else f"no server offers {wants.key!r} now"
        return what + last_left(self._records, self._at, wants)


def last_left(records: Records, at: float, wants: Wants) -> str:
    """When the last server of a key, or the one with a wanted name, left: the end of a sentence; "" for unknown."""
    names = [value for label, value in wants.exact if label in (NAME, SERVER)]
    left = [records.unserved.get(wants.key), *(records.gone[name].since for name in names if name in records.gone)]
    since = next((since for since in left if since is not None), None)
    return "" if since is None else f": the last one left {span(at - since)} ago"


def out_of_use(records: Records, at: float, peers: Iterable[Peer]) -> list[str]:
    """A sentence for each reason why servers are not offered, with what to type where a person decides that."""
    found: dict[tuple[str, str], list[tuple[str, float | None]]] = {}
    for peer in peers:
        if not records.is_open(peer):
            health = rows.health(records, at, peer)
            found.setdefault((health["state"], health["reason"]), []).append((peer.name, health["until_s"]))
    sentences = [_out_of_use(*why, servers) for why, servers in islice(found.items(), NAMED)]
    more = sum(map(len, islice(found.values(), NAMED, None)))
    return sentences + ([f"{more} more {'is' if more == 1 else 'are'} out of use"] if more else [])


def _out_of_use(state: str, reason: str, servers: list[tuple[str, float | None]]) -> str:
    names = ", ".join(name for name, _ in servers[:NAMED])
    more = f" and {len(servers) - NAMED} more" if len(servers) > NAMED else ""
    text = f"{names}{more} {'is' if len(servers) == 1 else 'are'} {state}"
    if state == DRAINED.value:
        return f"{text}{reason and f' {reason}'}: type rpcsys enable {shlex.quote(servers[0][0])}"
    again = min((until for _, until in servers if until is not None), default=None)
    return text + (f": {reason}" if reason else "") + ("" if again is None else f" (again in {span(again)})")
