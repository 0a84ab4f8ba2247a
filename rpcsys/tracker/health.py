"""Which servers can be trusted with a request: drained by hand, unhealthy by their own word or silent, or set aside.

A server is set aside when sessions on it failed `FAILURES` times in a row for reasons of its own, and tried again
after a pause; the first failure then sets it aside again, for twice as long. What a client did wrong never
counts, and neither does a client that reaches no server at all. Conditions go by the server's name: they outlive its
connection and, by their records, the tracker's run.
"""

from __future__ import annotations

from rpcsys.tracker.entities import Condition, Lease, Peer
from rpcsys.tracker.events import Action, Record
from rpcsys.tracker.scheduler import Scheduler

FAILURES = 3

MAX_ABSENT = 1024
"""Servers that are gone of which is remembered what was wrong with them; the first to go is forgotten first."""

FIRST_PAUSE_S, LONGEST_PAUSE_S = 30.0, 3600.0

MAX_MISSED = 4096
"""Addresses remembered whose clients could open no session. Beyond, the first is forgotten."""


class Health(Scheduler):
    """A book in which servers are judged. Every method returns what has to be done about it."""

    def failed(self, at: float, name: str, reason: str) -> list[Action]:
        """A session failed for a reason of the server's own."""
        condition = self.conditions.setdefault(name, Condition())
        if name not in self.server_names:
            self.absent.setdefault(name)
        if condition.until is not None:
            return []  # one of the sessions that ran before
        condition.failures += 1
        condition.reason = reason
        if condition.failures < FAILURES and not condition.pause_s:
            return []
        condition.pause_s = min(max(FIRST_PAUSE_S, 2 * condition.pause_s), LONGEST_PAUSE_S)
        condition.until = at + condition.pause_s
        self.deadlines.set(("trial", name), condition.until)
        details = {
            "server": name,
            "reason": reason,
            "failures": condition.failures,
            "pause_s": condition.pause_s,
            "until": condition.until,
        }
        return [Record(at, "set_aside", details), *self._shut(at, name)]

    def unreached(self, at: float, lease: Lease, reason: str) -> list[Action]:
        """A client could not open its session. If that happens to it elsewhere too, the client is the cause."""
        if len(self.missed) >= MAX_MISSED and lease.address not in self.missed:
            del self.missed[next(iter(self.missed))]
        before = self.missed.setdefault(lease.address, lease.server_name)
        if before != lease.server_name:
            return []
        return self.failed(at, lease.server_name, f"a client could not open a session: {reason}")

    def worked(self, at: float, name: str) -> list[Action]:
        """A session ended as sessions should."""
        condition = self.conditions.get(name)
        if condition is None or not (condition.failures or condition.pause_s):
            return []
        was_set_aside = condition.pause_s > 0
        actions: list[Action] = [Record(at, "trusted", {"server": name})] if was_set_aside else []
        return actions + self._trust(at, name, condition)

    def trial(self, at: float, name: str) -> list[Action]:
        """A pause is over."""
        condition = self.conditions[name]
        condition.until = None
        return self._reopen(at, name)

    def drain(self, at: float, name: str, by: str) -> list[Action]:
        """Hand out nothing more of a server; what runs goes on."""
        condition = self.conditions.setdefault(name, Condition())
        condition.drained = True
        return [Record(at, "drained", {"server": name, "by": by}), *self._shut(at, name)]

    def enable(self, at: float, name: str, by: str) -> list[Action]:
        """Undo a drain, and forget all failures."""
        condition = self.conditions.setdefault(name, Condition())
        condition.drained = False
        record = Record(at, "enabled", {"server": name, "by": by})
        return [record, *self._trust(at, name, condition)]

    def healthy(self, at: float, name: str, problem: str) -> list[Action]:
        """What a server's own check says: "" if all is well."""
        condition = self.conditions.setdefault(name, Condition())
        before, condition.unhealthy = condition.problem, problem
        return self._examined(at, name, condition, before)

    def answers(self, at: float, name: str, problem: str) -> list[Action]:
        """Whether a server answers: "" if it does, else a sentence."""
        condition = self.conditions.setdefault(name, Condition())
        before, condition.silent = condition.problem, problem
        return self._examined(at, name, condition, before)

    def _examined(self, at: float, name: str, condition: Condition, before: str) -> list[Action]:
        problem = condition.problem
        self._tidy(name)
        if problem == before:
            return []
        if problem:
            return [Record(at, "unhealthy", {"server": name, "reason": problem}), *self._shut(at, name)]
        return [Record(at, "healthy", {"server": name}), *self._reopen(at, name)]

    def leave_condition(self, at: float, name: str) -> list[Action]:
        """A server is gone; if it comes back it will say how its health is."""
        condition = self.conditions.get(name)
        if condition is None:
            return []
        condition.unhealthy = condition.silent = ""
        self.absent.pop(name, None)
        self.absent[name] = None
        self._tidy(name)
        return self._forget_some(at)

    def _forget_some(self, at: float) -> list[Action]:
        """Forget the servers that have been gone for longest, those that are back aside."""
        actions: list[Action] = []
        while len(self.absent) > MAX_ABSENT:
            name = next(iter(self.absent))
            del self.absent[name]
            if name not in self.server_names and self.conditions.pop(name, None) is not None:
                self.deadlines.drop(("trial", name))
                actions.append(Record(at, "forgotten", {"server": name}))
        return actions

    def restore_condition(self, at: float, record: Record) -> list[Action]:
        """What the last run knew about a server, which is not there yet."""
        name = str(record.details["server"])
        self._restore_condition(at, name, record)
        self.absent[name] = None
        return self._forget_some(at)

    def _restore_condition(self, at: float, name: str, record: Record) -> None:
        condition = self.conditions.setdefault(name, Condition())
        if record.kind == "drained":
            condition.drained = True
            return
        condition.reason = str(record.details["reason"])
        condition.failures = int(record.details["failures"])
        condition.pause_s = min(float(record.details["pause_s"]), LONGEST_PAUSE_S)
        # At most a pause from now: the clock may have been ahead when it was written.
        condition.until = min(max(at, float(record.details["until"])), at + condition.pause_s)
        self.deadlines.set(("trial", name), condition.until)

    def _trust(self, at: float, name: str, condition: Condition) -> list[Action]:
        condition.failures, condition.reason, condition.pause_s, condition.until = 0, "", 0.0, None
        self.deadlines.drop(("trial", name))
        self._tidy(name)
        return self._reopen(at, name)

    def _tidy(self, name: str) -> None:
        if not self.conditions[name].remarkable:
            del self.conditions[name]
            self.absent.pop(name, None)

    def _shut(self, at: float, name: str) -> list[Action]:
        """Take back what the server has on offer."""
        peer = self._peer(name)
        for offer in () if peer is None else peer.offers.values():
            self.withdraw(offer)
        return self.weigh_all(at)

    def _reopen(self, at: float, name: str) -> list[Action]:
        """Let others have what the server has on offer, if nothing else is wrong with it."""
        peer, condition = self._peer(name), self.conditions.get(name)
        if peer is None or not (condition is None or condition.open):
            return []
        actions = self.weigh_all(at)
        for offer in list(peer.offers.values()):
            if not (offer.free or offer.claimed) and offer.match_key in peer.offers:
                actions += self.offer(at, offer)
        return actions

    def _peer(self, name: str) -> Peer | None:
        conn = self.server_names.get(name)
        return None if conn is None else self.peers[conn]
