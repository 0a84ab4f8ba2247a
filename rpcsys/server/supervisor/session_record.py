"""A client's session, as the supervisor sees it: its lease, its limits, its state and its end. Decisions only."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Any

from rpcsys.server.sandbox.messages import TVM
from rpcsys.server.supervisor.parking import ParkedConnection

LATE_S = 0.5  # after its limit, time for an rpcsys/1 session to send its client the error; then it is killed

# A session has its slot until its processes are dead and its directory is gone:
#
#     opening ──child──> running ──end in sight──> ending ──dead──> cleaning ──removed──> (slot free)
#                                                    └─TVM, time over─> overdue ─child─> explaining ─┘
#
# Another child sends a TVM client the reason for the end: the session's own child is dead.


SessionState = Enum("SessionState", "OPENING RUNNING ENDING OVERDUE EXPLAINING CLEANING")  # between two events


class SessionEvent(str, Enum):
    """What happens to a session."""

    STARTED = "a child serves it"
    END_SEEN = "its client has hung up, its child is done, or it is to be ended"
    UNEXPLAINED = "its child is dead, and another is to send its client the reason"
    OVER = "no process of it runs, or is to run"


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
    """A client with its lease and, once admitted, its ``number`` and its slot."""

    conn: int
    peer: str
    kind: str
    parked: ParkedConnection | None = None  # its connection's record, if it waited at a proxy
    matchkey: str = ""
    encrypted: bool = False
    pinned: str = ""  # its match key, if its own process ends TLS
    seed: str = ""  # the private key for that, hexadecimal, until its process has it
    lease: str | None = None
    epoch: int = 0
    limit_s: float | None = None
    longest_s: float | None = None  # that a session of its key may last
    code: bool = False  # whether it may load more than models in ONNX's format
    clear: bool = False  # its client has said in the clear what is for encrypted sessions
    early_until: float | None = None  # it waits until then for the tracker's message about its lease
    number: int = 0
    slot: int = 0
    state: SessionState = OPENING
    child: int | None = None
    started: float = 0.0
    due: float | None = None  # the time of the next step: ending it, or killing it again
    gone: bool = False  # its client hung up
    outcome: str = ""
    why: str = ""  # why it is ended, if another than its client ends it
    cause: str = ""  # what ended it in its own process: the code that it ran
    cleaned: tuple[str, ...] = ()  # names of killed descendants
    removed: tuple[str, ...] = ()  # names of removed IPC objects and files
    held: bool = False  # it is a hold: further connections attach to it
    opened: bool = False  # its process has greeted the client
    begun: bool = False  # its start is reported: it has a child, or its child is being made
    renewed: bool = False  # its limit comes from a renewal by the tracker
    fault: str = ""  # why it failed, if that is the server's fault
    unanswered: bool = False  # no process has answered its client's greeting

    def move(self, event: SessionEvent) -> None:
        self.state = TRANSITIONS[self.state][event]

    @property
    def opening(self) -> bool:
        """Whether its process has yet to greet its client. Never for TVM's clients, whose HELLO is not seen."""
        return self.state is RUNNING and self.kind != TVM and not self.opened

    @property
    def under_way(self) -> bool:
        """Whether its start is reported, and its end not in sight."""
        return self.begun and self.state in (OPENING, RUNNING)

    def leased(
        self, lease: str | None, epoch: int, limit_s: float | None, longest_s: float | None, code: bool = True
    ) -> None:
        self.lease, self.epoch, self.longest_s, self.code = lease, epoch, longest_s, code
        self.limit(limit_s)

    def limit(self, seconds: float | None) -> None:
        """Shorten the limit to ``seconds``. The shortest limit holds."""
        if seconds is not None:
            self.limit_s = seconds if self.limit_s is None else min(self.limit_s, seconds)
        self.keep_limit()

    def keep_limit(self) -> None:
        """Set ``due`` of a running session to the time when the supervisor ends it."""
        if self.state is RUNNING:
            late_s = 0.0 if self.kind == TVM else LATE_S
            self.due = None if self.limit_s is None else self.started + self.limit_s + late_s

    def began_text(self) -> str:
        limit = "" if self.limit_s is None else f", for at most {self.limit_s:g} s"
        return f"session {self.number} of {self.peer} begins: {self.kind}{limit}{self._lease_text}"

    def ended_text(self, lasted_s: float) -> str:
        killed = "; had to be killed: " + ", ".join(self.cleaned) if self.cleaned else ""
        removed = "; had to be removed: " + ", ".join(self.removed) if self.removed else ""
        why = f" ({self.cause})" if self.cause else ""
        end = f"session {self.number} of {self.peer} ended after {lasted_s:.1f} s: {self.outcome}{why}"
        return f"{end}{killed}{removed}{self._lease_text}"

    @property
    def _lease_text(self) -> str:
        return "" if self.lease is None else f" lease={self.lease}"

    def fields(self, **more: Any) -> tuple[tuple[str, Any], ...]:
        """The fields of its log lines."""
        return (("lease", self.lease), ("session", self.number), ("peer", self.peer), *more.items())
