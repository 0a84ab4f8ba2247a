"""The processes below the supervisor: the zygote, its children, and processes that survived a SIGKILL. Decisions only.

A board that is not clean after a session has no free slot. ``unclean`` is the reason. The state is permanent if files
are left; otherwise it ends with the processes that survived.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from rpcsys.link.backoff import Backoff
from rpcsys.server.sandbox.messages import ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.records import STARTING as SERVER_STARTING
from rpcsys.server.supervisor.records import ServerRecords, earliest

ZYGOTE_PROVEN_S = 10.0  # a zygote that lived this long resets its backoff
RESTART_S = (0.1, 10.0)  # first and longest pause before a child, or the zygote, is started again


ZygoteState = Enum("ZygoteState", "STARTING UP DOWN")  # between two events
ChildState = Enum("ChildState", "STARTING WAITING SERVING DOOMED")  # between two events


class ChildEvent(str, Enum):
    """What happens to a child."""

    READY = "it waits for its job"
    GIVEN = "it is given its job"
    GIVEN_UP = "its session could not start"


STARTING, WAITING, SERVING, DOOMED = ChildState
READY, GIVEN, GIVEN_UP = ChildEvent

TRANSITIONS = {STARTING: {READY: WAITING}, WAITING: {GIVEN: SERVING}, SERVING: {GIVEN_UP: DOOMED}, DOOMED: {}}

UNUSED = (STARTING, WAITING)  # states of a child without a job


@dataclass
class Child:
    """A child process; ``session``: the number of the session that it serves."""

    kind: ChildKind
    state: ChildState = STARTING
    session: int | None = None
    failed: str = ""  # the import that has failed

    def move(self, event: ChildEvent) -> None:
        self.state = TRANSITIONS[self.state][event]


class ProcessTable:
    """The zygote, and ``children`` by number. ``shared``: sessions have no namespaces of their own."""

    def __init__(self, records: ServerRecords) -> None:
        self.records = records
        self.children: dict[int, Child] = {}
        self.child_pause = Backoff(*RESTART_S)
        self.zygote_pause = Backoff(*RESTART_S)
        self.zygote = ZygoteState.STARTING
        self.shared = False
        self.unclean = ""  # why this board is not clean; empty if it is
        self._shared_logged = False
        self._zygote_since = 0.0
        self._imports: dict[int | None, tuple[str, float]] = {}
        self._spoilt = ""
        self._unkilled: dict[int | None, tuple[str, ...]] = {}
        self._last_child = 0

    @property
    def wanted(self) -> bool:
        """Whether this server is to have a zygote and waiting children."""
        return not (self.records.stopping or self.unclean)

    @property
    def can_spawn(self) -> bool:
        """Whether children for sessions are wanted and the zygote can make them."""
        return self.wanted and self.zygote is ZygoteState.UP

    def for_sessions(self) -> list[tuple[int, Child]]:
        return [(number, child) for number, child in self.children.items() if child.kind.of_session]

    # The zygote

    def zygote_up(self, event: ev.ZygoteUp) -> list[do.Action]:
        self.shared = bool(event.shared)
        self.zygote = ZygoteState.UP
        self._imports.pop(None, None)
        self._zygote_since = event.now
        if not event.shared or self._shared_logged:
            return []
        self._shared_logged = True
        return [do.Log("info", f"sessions share /tmp, /dev/shm and System V IPC with all else here ({event.shared})")]

    def zygote_down(self, now: float) -> list[do.Action]:
        """Record the death of the zygote, and of its children. The caller then removes the children."""
        self._imports.pop(None, None)
        if self.zygote is ZygoteState.UP and now - self._zygote_since >= ZYGOTE_PROVEN_S:
            self.zygote_pause.worked()
        self.zygote = ZygoteState.DOWN
        actions = [action for child in self.children for action in self.died(child)]
        if self.zygote_pause.failed(now):
            actions.append(do.Log("error", "the zygote died, and its sessions with it; starting another"))
        return actions

    def restart(self) -> list[do.Action]:
        """Start the zygote again if it is down and its pause is over."""
        if self.zygote is not ZygoteState.DOWN or not self.wanted or not self.zygote_pause.allows(self.records.now):
            return []
        self.zygote = ZygoteState.STARTING
        return [do.StartZygote()]

    # Children

    def spawn(self, kind: ChildKind, at_once: bool = False) -> do.Spawn:
        self._last_child += 1
        self.children[self._last_child] = Child(kind)
        return do.Spawn(self._last_child, kind, at_once)

    def ready(self, number: int) -> Child | None:
        """Record that a child waits for its job; the child, None if it was not starting."""
        child = self.children.get(number)
        if child is None or child.state is not STARTING:
            return None
        child.move(READY)
        self._imports.pop(number, None)
        return child

    def remove(self, number: int) -> Child | None:
        self._imports.pop(number, None)
        return self.children.pop(number, None)

    # Imports

    def importing(self, event: ev.Importing) -> list[do.Action]:
        if event.child is None or event.child in self.children:
            self._imports[event.child] = event.what, event.now + self.records.policy.import_s
        return []

    def tick(self) -> list[do.Action]:
        """Kill processes whose import takes too long. During the server's start, end the server."""
        actions: list[do.Action] = []
        lines = []
        for child, (what, until) in list(self._imports.items()):
            if self.records.now >= until:
                del self._imports[child]
                actions.append(do.KillZygote() if child is None else do.Kill(child))
                late = f"the import is not done after {self.records.policy.import_s:g} s"
                lines.append(f"{what}: {late} (does it wait for something? --import-timeout gives it longer)")
                if child is not None:
                    self.children[child].failed = lines[-1]
        if lines and self.records.phase is SERVER_STARTING:
            return actions + self.records.exit(lines[0])
        return actions + [do.Log("error", line) for line in lines]

    def deadline(self) -> float | None:
        """When :meth:`tick` or :meth:`restart` has something to do."""
        restart = self.zygote_pause.until if self.zygote is ZygoteState.DOWN and self.wanted else None
        return earliest([restart, *(until for _, until in self._imports.values())]) if self._imports else restart

    # Processes and files that are left behind

    def unkilled(self, event: ev.Unkilled) -> list[do.Action]:
        """Record processes that survived a SIGKILL; no names: they have ended."""
        return self.died(event.child, event.names)

    def died(self, child: int | None, names: tuple[str, ...] = ()) -> list[do.Action]:
        """Record a child's death. ``names`` are its processes that survived a SIGKILL."""
        before = self.unclean
        self._unkilled.pop(child, None)
        if names:
            self._unkilled[child] = names
        self._judge()
        if self.unclean and not before:
            return [do.Log("error", f"this board is not clean and is not offered until it is: {self.unclean}")]
        if before and not self.unclean:
            return [do.Log("info", "this board is clean again and is offered: its stuck processes have ended")]
        return []

    def spoil(self, why: str) -> list[do.Action]:
        """Record that the board is not clean, for the rest of the server's life."""
        if self._spoilt:
            return []
        self._spoilt = why
        self._judge()
        line = f"this board is not clean and is not offered any more: {why}; fix this, then start this server again"
        return [do.Log("error", line)]

    def _judge(self) -> None:
        names = sorted({name for group in self._unkilled.values() for name in group})
        self.unclean = self._spoilt or (f"no signal ends {', '.join(names)}" if names else "")
