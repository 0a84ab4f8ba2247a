"""A session as its server knows it, and its states. It has a slot until its processes are dead and its directory is gone::

    opening ──child──> running ──end in sight──> ending ──dead──> cleaning ──removed──> (slot free)
                                                   └─TVM, time over─> overdue ─child─> explaining ─┘

Another child sends a TVM client the reason for the end: its own cannot.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from rpcsys.server.sandbox.messages import TVM
from rpcsys.server.supervisor.parking import ParkedConnection

LATE_S = 0.5  # an rpcsys/1 session tells its client about the limit itself; after so long it is ended regardless


class SessionState(str, Enum):
    """A session between two events."""

    OPENING = "opening"
    RUNNING = "running"
    ENDING = "ending"
    OVERDUE = "overdue"
    EXPLAINING = "explaining"
    CLEANING = "cleaning"


class SessionEvent(str, Enum):
    """What happens to a session."""

    STARTED = "a child has it"
    END_SEEN = "its client has hung up, its child is done, or it is to be ended"
    UNEXPLAINED = "its child is dead, and another is to send its client the reason"
    OVER = "nothing runs any more, or nothing is to"


OPENING, RUNNING, ENDING, OVERDUE, EXPLAINING, CLEANING = SessionState
STARTED, END_SEEN, UNEXPLAINED, OVER = SessionEvent

TRANSITIONS = {
    OPENING: {STARTED: RUNNING, OVER: CLEANING},
    RUNNING: {END_SEEN: ENDING, UNEXPLAINED: OVERDUE, OVER: CLEANING},
    ENDING: {END_SEEN: ENDING, UNEXPLAINED: OVERDUE, OVER: CLEANING},
    OVERDUE: {STARTED: EXPLAINING, OVER: CLEANING},
    EXPLAINING: {END_SEEN: EXPLAINING, OVER: CLEANING},
    CLEANING: {},
}

CHILDLESS = (OPENING, OVERDUE)  # states in which a session waits for a child


@dataclass
class SessionRecord:
    """A client with its lease, and, once admitted, its slot (``number``).

    ``early_until``: held back until the tracker's word about its lease is here; ``due``: when the next thing has to be done
    about it; ``gone``: its client hung up; ``outcome``: how it ended; ``cleaned``: what else had to be killed; ``removed``:
    what had to be removed; ``parked``: where its connection waited, at a proxy; ``opened``: its process has greeted the
    client; ``renewed``: its limit is the tracker's last word; ``fault``: why it failed, if this server is to blame;
    ``unanswered``: no process ever had it.
    """

    conn: int
    peer: str
    kind: str
    parked: ParkedConnection | None = None
    matchkey: str = ""
    lease: str | None = None
    epoch: int = 0
    limit_s: float | None = None
    early_until: float | None = None
    number: int = 0
    slot: int = 0
    state: SessionState = OPENING
    child: int | None = None
    started: float = 0.0
    due: float | None = None
    gone: bool = False
    outcome: str = ""
    cleaned: tuple[str, ...] = ()
    removed: tuple[str, ...] = ()
    opened: bool = False
    renewed: bool = False
    fault: str = ""
    unanswered: bool = False

    def move(self, event: SessionEvent) -> None:
        """The session's state changes."""
        self.state = TRANSITIONS[self.state][event]

    @property
    def opening(self) -> bool:
        """Whether its process has it and has not greeted its client (TVM's client is greeted unseen)."""
        return self.state is RUNNING and self.kind != TVM and not self.opened

    def leased(self, lease: str | None, epoch: int, limit_s: float | None) -> None:
        """The tracker's word about it."""
        self.lease, self.epoch = lease, epoch
        self.limit(limit_s)

    def limit(self, seconds: float | None) -> None:
        """Of all limits the shortest holds."""
        if seconds is not None:
            self.limit_s = seconds if self.limit_s is None else min(self.limit_s, seconds)
        self.keep_limit()

    def keep_limit(self) -> None:
        """While it runs, it is due when it has to be ended from outside."""
        if self.state is RUNNING:
            late_s = 0.0 if self.kind == TVM else LATE_S
            self.due = None if self.limit_s is None else self.started + self.limit_s + late_s

    def began_text(self) -> str:
        """A line for the log."""
        limit = "" if self.limit_s is None else f", for at most {self.limit_s:g} s"
        return f"session {self.number} of {self.peer} begins: {self.kind}{limit}{self._lease_text}"

    def ended_text(self, lasted_s: float) -> str:
        """A line for the log."""
        killed = "; had to be killed: " + ", ".join(self.cleaned) if self.cleaned else ""
        removed = "; had to be removed: " + ", ".join(self.removed) if self.removed else ""
        end = f"session {self.number} of {self.peer} ended after {lasted_s:.1f} s: {self.outcome}"
        return f"{end}{killed}{removed}{self._lease_text}"

    @property
    def _lease_text(self) -> str:
        return "" if self.lease is None else f" lease={self.lease}"

    def fields(self, **more: Any) -> tuple[tuple[str, Any], ...]:
        """The same for programs."""
        return (("lease", self.lease), ("session", self.number), ("peer", self.peer), *more.items())
