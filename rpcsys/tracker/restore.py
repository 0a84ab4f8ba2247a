"""After a restart: what the last run's records say, until its servers and clients are back.

Leases go on, their servers being away; places wait for their tickets; what was set aside stays so. Nothing is handed
out until all servers and tickets are back, or `SETTLE_S` have passed: else the first to return would pass all others.
The clock may have been set back since: what began later than now began now.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcsys.tracker.entities import OURS, Lease, Place, Settling
from rpcsys.tracker.events import Action, Record, Restored
from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.records import GRACE_S
from rpcsys.tracker.requests import TICKET_S, Requests

SETTLE_S = 3.0


class Restore(Requests):
    """A book that can begin where another ended."""

    def restored(self, event: Restored) -> list[Action]:
        """Take the records of the last run in."""
        settling = self.settling = Settling()
        actions: list[Action] = []
        for record in event.records:
            restore = _ON_RECORD.get(record.kind)
            if restore is not None:
                actions += restore(self, event.at, record) or ()
        settling.arrival = max((place.arrival for place in self.places.values()), default=0)
        settling.tickets = dict.fromkeys(self.places)
        self.arrivals = max(self.arrivals, settling.arrival)
        for lease in self.leases.values():
            self.deadlines.set(("away", lease.lease), event.at + AWAY_S)
        for ticket in self.places:
            self.deadlines.set(("ticket", ticket), event.at + TICKET_S)
        self.deadlines.set(("settle",), event.at + SETTLE_S)
        return [*actions, *self.settle_if_complete(event.at)]

    def settle_if_complete(self, at: float) -> list[Action]:
        """Go on at once when everything is back."""
        if self.settling is None or self.settling.servers or self.settling.tickets:
            return []
        return self.settle(at)

    def settle(self, at: float) -> list[Action]:
        """Hand out what has come together."""
        self.settling = None
        self.deadlines.drop(("settle",))
        actions: list[Action] = []
        free = {id(offer): offer for index in self.pool.by_fact.values() for offer in index.values()}
        for offer in sorted(free.values(), key=lambda offer: (offer.conn, offer.match_key)):
            if offer.free:
                self.pool.remove(offer)
                actions += self.offer(at, offer)
        return actions

    # Records.

    def _granted(self, at: float, record: Record) -> None:
        details = record.details
        if details["how"] != OURS:
            return  # nobody can say whether it still is
        self.believe(at, details["epoch"])
        lease = Lease(
            lease=details["lease"],
            epoch=details["epoch"],
            key=details["key"],
            server=None,
            server_name=details["server"],
            holder=None,
            user=details["user"],
            address=details["address"],
            since=min(record.at, at),
            limit_s=details["limit_s"],
            identity=details.get("identity", ""),
        )
        self.add_lease(lease)

    def _begun(self, at: float, record: Record) -> None:
        lease = self.leases.get(record.details["lease"])
        if lease is not None:
            lease.started, lease.started_at = True, min(record.at, at)

    def _limited(self, at: float, record: Record) -> None:
        lease = self.leases.get(record.details["lease"])
        if lease is not None:
            lease.limit_s = record.details["limit_s"]

    def _over(self, at: float, record: Record) -> None:
        details = record.details
        if record.at > at:
            return  # it was written by a clock that was ahead: nobody has had device time that is still to come
        self.shares.remember(details["user"], details["since"], details["since"] + details["held_s"])
        if details["outcome"] != "unused":
            queue = self.queue(details["key"])
            queue.lengths.append(details["held_s"])
            queue.left_at = at
            self.deadlines.set(("forget", queue.key), at + GRACE_S)

    def _waiting(self, at: float, record: Record) -> None:
        details = record.details
        wants = wants_of(details["key"], details["labels"])
        self.keep_place(
            details["ticket"],
            Place(details["arrival"], min(details["since"], at), details["user"], wants),
        )

    def _joined(self, at: float, record: Record) -> None:
        assert self.settling is not None
        self.settling.servers[record.details["server"]] = None

    def _condition(self, at: float, record: Record) -> list[Action]:
        return self.restore_condition(at, record)


_ON_RECORD: dict[str, Callable[[Any, float, Record], list[Action] | None]] = {
    "granted": Restore._granted,
    "begun": Restore._begun,
    "limited": Restore._limited,
    "over": Restore._over,
    "waiting": Restore._waiting,
    "joined": Restore._joined,
    "set_aside": Restore._condition,
    "drained": Restore._condition,
}
