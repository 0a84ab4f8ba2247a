"""What the board knows of each session, and of each process that serves one."""

from __future__ import annotations

from dataclasses import dataclass

from rpcsys.server.sandbox.messages import TVM
from rpcsys.server.supervisor.parking import Place

LATE_S = 0.5
"""An rpcsys/1 session tells its client about the limit itself; after so long it is ended regardless."""


@dataclass
class Child:
    """A process for one session: ``starting``, ``waiting``, ``serving`` it, or ``doomed``."""

    state: str = "starting"
    session: int | None = None


@dataclass
class Session:
    """A client with its lease, and, once admitted, its slot (``number``).

    ``early_until``: held back until the tracker's word about its lease is here; ``due``: when the next
    thing has to be done about it; ``gone``: its client hung up; ``outcome``: how it ended; ``cleaned``: what else had to be killed; ``removed``: what had to be removed;
    ``place``: where it waited for its client, at a proxy; ``opened``: its process has greeted the client; ``renewed``: its limit is the tracker's last word; ``fault``: why it failed, if this server is to blame; ``unanswered``: no process ever had it.
    """

    conn: int
    peer: str
    kind: str
    matchkey: str = ""
    lease: str | None = None
    epoch: int = 0
    limit_s: float | None = None
    early_until: float | None = None
    number: int = 0
    slot: int = 0
    state: str = "opening"
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
    place: Place | None = None

    @property
    def opening(self) -> bool:
        """Whether its process has it and has not greeted its client (TVM's client is greeted unseen)."""
        return self.state == "running" and self.kind != TVM and not self.opened

    def leased(self, lease: str | None, epoch: int, limit_s: float | None) -> None:
        """The tracker's word about it."""
        self.lease, self.epoch = lease, epoch
        self.limit(limit_s)

    def limit(self, seconds: float | None) -> None:
        """Of all limits the shortest holds."""
        if seconds is not None:
            self.limit_s = seconds if self.limit_s is None else min(self.limit_s, seconds)

    def overdue_at(self) -> float | None:
        """When a running session has to be ended from outside."""
        if self.limit_s is None:
            return None
        return self.started + self.limit_s + (0.0 if self.kind == TVM else LATE_S)
