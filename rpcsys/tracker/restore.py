"""Restores the last run's leases, places and servers. The tracker then settles, for `SETTLE_S` at most: it reserves
the offers that fit a ticket whose client is not back, so that the first client to come back passes no others.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from operator import itemgetter
from typing import Any

from rpcsys.tracker.canaries import Canaries
from rpcsys.tracker.entities import GoneServer, LeaseRecord, QueuePlace, Sender
from rpcsys.tracker.events import Action, HistoryEntry, Restored
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.labels import wants_of
from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.records import GRACE_S, TICKET_S, Records
from rpcsys.tracker.requests import TVM_TICKET_S
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.tracker.settling import Settling
from rpcsys.tracker.transitions import GRANTED_AWAY, OPENED, OURS

SETTLE_S = 3.0


class Restore:
    """Restores the records of the last run."""

    def __init__(self, records: Records, scheduler: Scheduler, health: ServerHealth, canaries: Canaries) -> None:
        self.records = records
        self.scheduler = scheduler
        self._on_entry: dict[str, Callable[[HistoryEntry], list[Action] | None]] = {
            "granted": self._granted,
            "begun": self._changed,
            "limited": self._changed,
            "over": self._over,
            "unheard": self._unheard,
            "joined": self._joined,
            "set_aside": health.restore,
            "drained": health.restore,
            "canary": canaries.restore,
        }

    def restored(self, event: Restored) -> list[Action]:
        """Apply the entries of the last run and begin to settle."""
        records = self.records
        settling = records.settling = Settling()
        actions: list[Action] = []
        for entry in event.entries:
            restore = self._on_entry.get(entry.kind)
            if restore is not None:
                actions += restore(entry) or ()
        self._places(event.entries)
        records.allow_epoch(event.epoch)
        records.arrivals = max(records.arrivals, settling.arrival, event.arrivals)
        for lease in records.leases.values():
            records.deadlines.set(("away", lease.lease), records.now + AWAY_S)
        records.deadlines.set(("settle",), records.now + SETTLE_S)
        return [*actions, *self.scheduler.settle_if_complete()]

    def _granted(self, entry: HistoryEntry) -> list[Action] | None:
        details = entry.details
        arrival = details.get("arrival", 0)  # earlier versions wrote none
        if arrival:
            self.records.note_unheard(arrival, details["user"])
        if details["how"] != OURS:
            return self.records.keep_unheard(arrival)  # TVM's servers do not report whether it goes on
        self.records.allow_epoch(details["epoch"])
        name, epoch, key, server = (details[field] for field in ("lease", "epoch", "key", "server"))
        since = min(entry.at, self.records.now)
        user, address, limit_s = details["user"], details["address"], details["limit_s"]
        lease = LeaseRecord(name, epoch, key, None, server, None, user, address, since, limit_s)
        lease.identity, lease.state, lease.arrival = details.get("identity", ""), GRANTED_AWAY, arrival
        self.records.add_lease(lease)
        return None

    def _unheard(self, entry: HistoryEntry) -> list[Action]:
        arrival = int(entry.details["request"])
        self.records.note_unheard(arrival, entry.details["user"])
        return self.records.keep_unheard(arrival)

    def _changed(self, entry: HistoryEntry) -> None:
        lease = self.records.leases.get(entry.details["lease"])
        if lease is not None and entry.kind == "limited":
            lease.limit_s = entry.details["limit_s"]
        elif lease is not None:
            self.records.note_heard(lease)
            lease.move(OPENED)
            lease.started_at = min(entry.at, self.records.now)

    def _over(self, entry: HistoryEntry) -> None:
        details = entry.details
        if entry.at > self.records.now:
            return  # a clock that was ahead dated it after now
        self.records.shares.remember(details["user"], details["since"], details["since"] + details["held_s"])
        if details["outcome"] != "unused":
            queue = self.records.queue(details["key"])
            queue.lengths.append(details["held_s"])
            queue.left_at = self.records.now
            self.records.deadlines.set(("forget", queue.key), self.records.now + GRACE_S)

    def _places(self, entries: Iterable[HistoryEntry]) -> None:
        """Keep the places, in their order: whoever has several in TVM's protocol gets the first one first."""
        waiting = [entry.details for entry in entries if entry.kind == "waiting"]
        absent = {entry.details["ticket"] for entry in entries if entry.kind == "absent"}
        for details in sorted(waiting, key=itemgetter("arrival")):
            place = _place(details, self.records.now)
            place.absent = place.ticket in absent
            self._keep(place)

    def _keep(self, place: QueuePlace) -> None:
        records, settling = self.records, self.records.settling
        assert settling is not None
        records.places.keep(place)
        records.deadlines.set(("ticket", place.ticket), records.now + (TVM_TICKET_S if place.sender else TICKET_S))
        if not place.absent:
            settling.wait_for(place.ticket, place.wants)
        settling.arrival = max(settling.arrival, place.arrival)

    def _joined(self, entry: HistoryEntry) -> None:
        assert self.records.settling is not None
        details = entry.details
        self.records.settling.servers[details["server"]] = None
        if details.get("how") == OURS:
            key, host, port = (details.get(field) for field in ("key", "address", "port"))
            gone = GoneServer(str(key), str(host), port, "", self.records.now, "it has not come back after a restart")
            self.records.note_gone(details["server"], gone)


def _place(details: Mapping[str, Any], now: float) -> QueuePlace:
    ticket, arrival, user, key = (details[field] for field in ("ticket", "arrival", "user", "key"))
    sender, wants = None, wants_of(key, details["labels"])
    if details.get("tvm"):
        sender = Sender(details["address"], user, key, details["priority"])
    return QueuePlace(ticket, arrival, min(details["since"], now), user, wants, sender)
