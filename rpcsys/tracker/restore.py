"""After a restart: what the last run's records say, until its servers and clients are back.

Leases go on, their servers being away; places wait for their tickets; what was set aside stays so. Nothing is handed
out until all servers and tickets are back, or `SETTLE_S` have passed: else the first to return would pass all others.
The clock may have been set back since: what began later than now began now.
"""

from __future__ import annotations

from collections.abc import Callable

from rpcsys.tracker.entities import Lease, Place, Settling
from rpcsys.tracker.events import Action, Record, Restored
from rpcsys.tracker.health import Health
from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.lease_states import GRANTED_AWAY, OPENED, OURS
from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.records import GRACE_S, Records
from rpcsys.tracker.requests import TICKET_S
from rpcsys.tracker.scheduler import Scheduler

SETTLE_S = 3.0


class Restore:
    """Begins where another run ended."""

    def __init__(self, records: Records, scheduler: Scheduler, health: Health) -> None:
        self.records = records
        self.scheduler = scheduler
        self._on_record: dict[str, Callable[[Record], list[Action] | None]] = {
            "granted": self._granted,
            "begun": self._begun,
            "limited": self._limited,
            "over": self._over,
            "waiting": self._waiting,
            "joined": self._joined,
            "set_aside": health.restore,
            "drained": health.restore,
        }

    def restored(self, event: Restored) -> list[Action]:
        """Take the records of the last run in."""
        records = self.records
        settling = records.settling = Settling()
        actions: list[Action] = []
        for record in event.records:
            restore = self._on_record.get(record.kind)
            if restore is not None:
                actions += restore(record) or ()
        settling.arrival = max((place.arrival for place in records.places.values()), default=0)
        settling.tickets = dict.fromkeys(records.places)
        records.arrivals = max(records.arrivals, settling.arrival)
        for lease in records.leases.values():
            records.deadlines.set(("away", lease.lease), records.now + AWAY_S)
        for ticket in records.places:
            records.deadlines.set(("ticket", ticket), records.now + TICKET_S)
        records.deadlines.set(("settle",), records.now + SETTLE_S)
        return [*actions, *self.scheduler.settle_if_complete()]

    # Records.

    def _granted(self, record: Record) -> None:
        details = record.details
        if details["how"] != OURS.value:
            return  # nobody can say whether it still is
        self.records.believe(details["epoch"])
        lease = Lease(
            lease=details["lease"],
            epoch=details["epoch"],
            key=details["key"],
            server=None,
            server_name=details["server"],
            holder=None,
            user=details["user"],
            address=details["address"],
            since=min(record.at, self.records.now),
            limit_s=details["limit_s"],
            identity=details.get("identity", ""),
            state=GRANTED_AWAY,
        )
        self.records.add_lease(lease)

    def _begun(self, record: Record) -> None:
        lease = self.records.leases.get(record.details["lease"])
        if lease is not None:
            lease.move(OPENED)
            lease.started_at = min(record.at, self.records.now)

    def _limited(self, record: Record) -> None:
        lease = self.records.leases.get(record.details["lease"])
        if lease is not None:
            lease.limit_s = record.details["limit_s"]

    def _over(self, record: Record) -> None:
        details = record.details
        if record.at > self.records.now:
            return  # it was written by a clock that was ahead: nobody has had device time that is still to come
        self.records.shares.remember(details["user"], details["since"], details["since"] + details["held_s"])
        if details["outcome"] != "unused":
            queue = self.records.queue(details["key"])
            queue.lengths.append(details["held_s"])
            queue.left_at = self.records.now
            self.records.deadlines.set(("forget", queue.key), self.records.now + GRACE_S)

    def _waiting(self, record: Record) -> None:
        details = record.details
        wants = wants_of(details["key"], details["labels"])
        self.records.keep_place(
            details["ticket"],
            Place(details["arrival"], min(details["since"], self.records.now), details["user"], wants),
        )

    def _joined(self, record: Record) -> None:
        assert self.records.settling is not None
        self.records.settling.servers[record.details["server"]] = None
