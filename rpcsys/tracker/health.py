"""Which servers are offered: not those that are drained, unhealthy, silent, or set aside after failures.

Each pause after failures in a row is twice as long as the one before. A condition belongs to a server's name.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpcsys.tracker.entities import Condition, LeaseRecord, Peer
from rpcsys.tracker.events import Action, HistoryEntry
from rpcsys.tracker.records import Records
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.tracker.transitions import CLEARED, FAILED, FAILURES, OK, PAUSE_OVER, SET_ASIDE, ServerState

#: Conditions kept of servers that have left; beyond, the one that left first is dropped.
MAX_ABSENT = 1024
FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 3600.0
MAX_MISSED = 4096  # client addresses kept that could not open a session; beyond, the first is dropped


@dataclass(eq=False)
class ServerHealth:
    """Changes the health of servers; every method returns the actions that follow."""

    records: Records
    scheduler: Scheduler

    def failed(self, name: str, reason: str) -> list[Action]:
        """Count a session that failed by the server's own fault."""
        condition = self._condition(name)
        if name not in self.records.server_names:
            self.records.absent.setdefault(name)
        if condition.trust is SET_ASIDE:
            return []  # the session began before the pause
        condition.failures += 1
        condition.reason = reason
        if condition.failures < FAILURES and condition.trust is OK:
            return []
        condition.move(FAILED)
        condition.pause_s = min(max(FIRST_PAUSE_S, 2 * condition.pause_s), LONGEST_PAUSE_S)
        condition.until = self.records.now + condition.pause_s
        self.records.deadlines.set(("trial", name), condition.until)
        details = {
            "server": name,
            "reason": reason,
            "failures": condition.failures,
            "pause_s": condition.pause_s,
            "until": condition.until,
        }
        return [HistoryEntry(self.records.now, "set_aside", details), *self._shut(name)]

    def unreached(self, lease: LeaseRecord, reason: str) -> list[Action]:
        """Count a session that a client could not open, but only against the first such server of its address."""
        missed = self.records.missed
        if len(missed) >= MAX_MISSED and lease.address not in missed:
            del missed[next(iter(missed))]
        before = missed.setdefault(lease.address, lease.server_name)
        if before != lease.server_name:
            return []
        return self.failed(lease.server_name, f"a client could not open a session: {reason}")

    def worked(self, name: str) -> list[Action]:
        """Count a session that worked: it ends a pause or a trial."""
        condition = self.records.conditions.get(name)
        if condition is None or (not condition.failures and condition.trust is OK):
            return []
        entries = [] if condition.trust is OK else [HistoryEntry(self.records.now, "trusted", {"server": name})]
        return [*entries, *self._trust(name, condition)]

    def trial(self, name: str) -> list[Action]:
        """End a server's pause and begin its trial."""
        condition = self.records.conditions[name]
        condition.move(PAUSE_OVER)
        condition.until = None
        return self._reopen(name)

    def drain(self, name: str, by: str) -> list[Action]:
        """Drain a server: its offers are withdrawn, and its sessions go on."""
        condition = self._condition(name)
        if condition.drained:
            return []
        condition.drained, condition.drained_by, condition.since = True, by, self.records.now
        return [HistoryEntry(self.records.now, "drained", {"server": name, "by": by}), *self._shut(name)]

    def enable(self, name: str, by: str) -> list[Action]:
        """Undo a drain, and clear all failures."""
        condition = self._condition(name)
        if not (condition.drained or condition.failures) and condition.trust is OK:
            self._tidy(name)
            return []
        condition.drained = False
        return [HistoryEntry(self.records.now, "enabled", {"server": name, "by": by}), *self._trust(name, condition)]

    def state(self, name: str) -> ServerState:
        """The state of a server that is shown to people."""
        return self.records.conditions.get(name, Condition()).state

    def healthy(self, name: str, problem: str) -> list[Action]:
        """Note the result of a server's own health check: "" or a problem."""
        condition = self._condition(name)
        before, condition.unhealthy = condition.problem, problem
        return self._examined(name, condition, before)

    def answers(self, name: str, problem: str) -> list[Action]:
        """Note whether a server answers heartbeats: "" if it does, else a sentence."""
        condition = self._condition(name)
        before, condition.silent = condition.problem, problem
        return self._examined(name, condition, before)

    def slowed(self, name: str, problem: str) -> list[Action]:
        """Note whether a server's canary sets it aside: "" if it does not, else a sentence."""
        condition = self._condition(name)
        before, condition.slow = condition.problem, problem
        return self._examined(name, condition, before)

    def _condition(self, name: str) -> Condition:
        return self.records.conditions.setdefault(name, Condition())

    def _examined(self, name: str, condition: Condition, before: str) -> list[Action]:
        problem = condition.problem
        self._tidy(name)
        if problem == before:
            return []
        if problem:
            unhealthy = HistoryEntry(self.records.now, "unhealthy", {"server": name, "reason": problem})
            return [unhealthy, *self._shut(name)]
        return [HistoryEntry(self.records.now, "healthy", {"server": name}), *self._reopen(name)]

    def leave(self, name: str) -> list[Action]:
        """Note that a server has left; it reports its health again when it comes back."""
        condition = self.records.conditions.get(name)
        if condition is None:
            return []
        condition.unhealthy = condition.silent = condition.slow = ""
        self.records.absent.pop(name, None)
        self.records.absent[name] = None
        self._tidy(name)
        return self._forget_some()

    def _forget_some(self) -> list[Action]:
        actions: list[Action] = []
        records = self.records
        while len(records.absent) > MAX_ABSENT:
            name = next(iter(records.absent))
            del records.absent[name]
            if name not in records.server_names and records.conditions.pop(name, None) is not None:
                records.deadlines.drop(("trial", name))
                actions.append(HistoryEntry(records.now, "forgotten", {"server": name}))
        return actions

    def restore(self, entry: HistoryEntry) -> list[Action]:
        """Restore the last run's condition of a server, which has not registered yet."""
        details, now = entry.details, self.records.now
        name = str(details["server"])
        condition = self._condition(name)
        if entry.kind == "drained":
            condition.drained, condition.drained_by = True, str(details.get("by", ""))
        else:
            condition.reason, condition.failures = str(details["reason"]), int(details["failures"])
            condition.move(FAILED)
            condition.pause_s = min(float(details["pause_s"]), LONGEST_PAUSE_S)
            # At most one pause from now: the clock of the last run may have been ahead.
            condition.until = min(max(now, float(details["until"])), now + condition.pause_s)
            self.records.deadlines.set(("trial", name), condition.until)
        condition.since = min(entry.at, now)
        self.records.absent[name] = None
        return self._forget_some()

    def _trust(self, name: str, condition: Condition) -> list[Action]:
        condition.move(CLEARED)
        condition.failures, condition.reason, condition.pause_s, condition.until = 0, "", 0.0, None
        self.records.deadlines.drop(("trial", name))
        self._tidy(name)
        return self._reopen(name)

    def _tidy(self, name: str) -> None:
        if self.records.conditions[name] == Condition():
            del self.records.conditions[name]
            self.records.absent.pop(name, None)

    def _shut(self, name: str) -> list[Action]:
        peer, condition = self._peer(name), self.records.conditions[name]
        if not condition.drained:  # a drain is shown before all else, so its beginning stays
            condition.since = self.records.now
        if peer is not None:
            self.records.note_devices(peer.serves)
        for offer in () if peer is None else peer.offers.values():
            self.records.withdraw(offer)
        return self.scheduler.weigh_all()

    def _reopen(self, name: str) -> list[Action]:
        """Offer what the server has withdrawn, if its condition allows."""
        peer, condition = self._peer(name), self.records.conditions.get(name)
        if peer is None or not (condition is None or condition.open):
            return []
        self.records.note_devices(peer.serves)
        actions = self.scheduler.weigh_all()
        for offer in list(peer.offers.values()):
            if not (offer.free or offer.claimed) and offer.match_key in peer.offers:
                actions += self.scheduler.offer(offer)
        return actions

    def _peer(self, name: str) -> Peer | None:
        conn = self.records.server_names.get(name)
        return None if conn is None else self.records.peers[conn]
