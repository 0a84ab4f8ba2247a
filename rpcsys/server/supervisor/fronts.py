"""The front and the connections that it opens. Decisions only; :mod:`rpcsys.server.front` is the process.

It is made when the first client needs it, and again after its death, with which all its connections end.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.parking import ParkedConnection
from rpcsys.server.supervisor.process_table import ProcessTable

MAX_UNTAKEN = 64  # orders that the front has not taken yet: its socket holds more


@dataclass
class FrontOpening:
    """A client whose TLS the front ends, until it has said its whole match key."""

    opened: ev.Opened
    matchkey: str
    seed: str
    parked: ParkedConnection | None
    sent: bool = False  # the front has it


class Fronts:
    """At most one front, the child with the number ``child``; ``openings`` by connection."""

    def __init__(self, processes: ProcessTable) -> None:
        self.openings: dict[int, FrontOpening] = {}
        self.child: int | None = None
        self._processes = processes
        self._ready = False
        self._untaken = 0
        self._ends: list[tuple[tuple[int, ...], str, str]] = []  # connections to end, with the fields of the action

    def ready(self, child: int) -> list[do.Action]:
        """The front waits for its job."""
        if child != self.child:
            return []
        self._ready = True
        return [do.BeFront(child)]

    def gone(self, child: int | None = None) -> list[int]:
        """The front is dead (None: every child is); the connections that end with it."""
        if child not in (None, self.child):
            return []
        self.child, self._ready, self._untaken = None, False, 0
        self._ends.clear()
        return [conn for conn, opening in self.openings.items() if opening.sent]

    def took(self, event: ev.FrontTook) -> list[do.Action]:
        """The front has taken an order."""
        self._untaken -= 1
        return []

    def end(self, conns: tuple[int, ...], matchkey: str, why: str) -> None:
        """End connections that the front has opened with a match key."""
        self._ends.append((conns, matchkey, why))

    def settle(self) -> list[do.Action]:
        """Give the front its orders, above all the waiting connections. It is made for these if there is none."""
        waiting = {conn: opening for conn, opening in self.openings.items() if not opening.sent}
        if waiting and self.child is None and self._processes.can_spawn:
            spawned = self._processes.spawn(ChildKind.FRONT)
            self.child = spawned.child
            return [spawned]
        if self.child is None or not self._ready:
            return []
        actions: list[do.Action] = []
        while self._ends and self._untaken < MAX_UNTAKEN:
            self._untaken += 1
            actions.append(do.EndSecured(self.child, *self._ends.pop(0)))
        for conn, opening in waiting.items():
            if self._untaken >= MAX_UNTAKEN:
                break
            self._untaken += 1
            opening.sent = True
            session = opening.opened.session is not None
            seed, opening.seed = opening.seed, ""
            actions.append(do.Secure(self.child, conn, opening.matchkey, seed, session))
        return actions
