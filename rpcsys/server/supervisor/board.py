"""The board: its slots, the sessions in them, and the processes that serve these. Decisions only.

A session has a slot until its processes are dead and its directory is gone::

    opening ──child──> running ──end in sight──> ending ──dead──> cleaning ──removed──> (slot free)
                                                   └─TVM, time over─> overdue ─child─> telling ─┘

A child waits for every slot that has no running session, so that opening one forks nothing; and one
waits while all slots are taken, so that the next session does not wait for a fork when one ends.

A board that could not be cleaned after a session (``unclean`` says why) has no free slot: for good if files are left, else
until the processes that no signal ended have ended.
"""

from __future__ import annotations

from rpcsys.link.backoff import Backoff
from rpcsys.server.sandbox.limits import breach
from rpcsys.server.sandbox.messages import TVM, TVM_END
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.imports import Imports
from rpcsys.server.supervisor.sessions import Child, Session

GRACE_GONE_S = 0.4
"""For a session process to end by itself after its client hung up."""

GRACE_DONE_S = 2.0
"""For a session process to exit after it said that it is done, and for a TVM client to be told its time is over."""

FIRST_CALL_S = 0.005
"""Nothing is forked for so long after a session was opened: its client makes its first call."""

TVM_QUIET_S = 0.01
"""The same for TVM's clients, who are greeted unseen: half of them have made their first call by then."""

KILL_AGAIN_S = 5.0
"""A killed process is dead within milliseconds, unless the kernel holds it."""

ZYGOTE_PROVEN_S = 10.0
"""A zygote that lived so long is not one that dies at start."""

FROM_CPUS = "threads from other CPUs than its slot's"
"""What had to be removed of a session that changed its own affinity."""


RESTART_S = (0.1, 10.0)
"""First and longest pause before a child, or the zygote, is started again."""


class Board:
    """Sessions, children and the zygote. Methods note what happened and return what to do."""

    def __init__(
        self, slots: int, import_s: float = 60.0, memory: int | None = None, spares: int = 1, quiet_s: float = 0.0
    ) -> None:
        self.slots = slots
        self.spares = spares
        self._quiet_s = quiet_s
        self._spoilt = ""
        self._unkilled: dict[int | None, tuple[str, ...]] = {}
        self.shared = False
        self.sessions: dict[int, Session] = {}
        self.children: dict[int, Child] = {}
        self.zygote = "starting"
        self._imports = Imports(import_s)
        self._memory = memory
        self._zygote_since = 0.0
        self._child_pause = Backoff(*RESTART_S)
        self._quiet_until: float | None = None
        self._zygote_pause = Backoff(*RESTART_S)
        self._last_session = 0
        self._last_child = 0

    @property
    def unclean(self) -> str:
        """Why nobody is to get this board; empty if it is clean."""
        names = sorted({name for group in self._unkilled.values() for name in group})
        return self._spoilt or (f"no signal ends {', '.join(names)}" if names else "")

    @property
    def free(self) -> int:
        """Slots without a session."""
        return 0 if self.unclean else self.slots - len(self.sessions)

    def admit(self, session: Session) -> None:
        """Give a session a slot. There must be a free one."""
        self._last_session += 1
        session.number = self._last_session
        taken = {other.slot for other in self.sessions.values()}
        session.slot = next(slot for slot in range(self.slots) if slot not in taken)
        self.sessions[session.number] = session

    def by_conn(self, conn: int) -> Session | None:
        """The session of a connection."""
        return next((session for session in self.sessions.values() if session.conn == conn), None)

    # What happened to the processes

    def zygote_up(self, now: float, shared: bool) -> list[do.Action]:
        """Children can be made from now on; ``shared``: without namespaces of their own."""
        self.shared = shared
        self.zygote = "up"
        self._imports.done(None)
        self._zygote_since = now
        return []

    def importing(self, now: float, child: int | None, what: str) -> None:
        """A zygote or a child has begun an import, which has its time."""
        if child is None or child in self.children:
            self._imports.begun(now, child, what)

    def zygote_down(self, now: float, cleaned: tuple[str, ...]) -> list[do.Action]:
        """The zygote died, and with it every session."""
        self._imports.done(None)
        if self.zygote == "up" and now - self._zygote_since >= ZYGOTE_PROVEN_S:
            self._zygote_pause.worked()
        self.zygote = "down"
        actions: list[do.Action] = []
        for child in self.children:
            actions += self.unkilled(child, ())
        if self._zygote_pause.failed(now):
            actions.append(do.Log("error", "the zygote died, and its sessions with it; starting another"))
        for number in list(self.children):
            actions += self._buried(now, number, cleaned)
        return actions

    def child_ready(self, number: int) -> bool:
        """A child waits for a session; False if it is not one of ours."""
        child = self.children.get(number)
        if child is None or child.state != "starting":
            return False
        child.state = "waiting"
        self._imports.done(number)
        return True

    def limit_asked(self, number: int, limit_s: float) -> list[do.Action]:
        """A session is to be shorter than its lease, unless that was renewed since it was asked for."""
        session = self._served_by(number)
        if session is None:
            return []
        if session.renewed:
            until = None if session.limit_s is None else session.started + session.limit_s
            return [do.Extend(number, until)]
        session.limit(limit_s)
        if session.state == "running":
            session.due = session.overdue_at()
        return []

    def session_opened(self, now: float, number: int) -> None:
        """A session's process has greeted its client: what goes wrong from now on may be the client's doing."""
        session = self._served_by(number)
        if session is not None:
            session.opened = True
        if not any(other.opening for other in self.sessions.values()):
            self._quiet_until = now + min(FIRST_CALL_S, self._quiet_s)

    def child_done(self, now: float, event: ev.ChildDone) -> None:
        """A session is over, its process about to exit."""
        session = self._served_by(event.child)
        if session is not None and session.state in ("running", "ending"):
            session.outcome = session.outcome or event.outcome
            session.removed += event.removed
            self._expect_end(session, now + GRACE_DONE_S)

    def memory_exceeded(self, now: float, number: int) -> list[do.Action]:
        """The session of a child has more memory than it may."""
        session = self._served_by(number)
        if session is None or session.state != "running":
            return []
        return self.end(now, session, "memory")

    def cpus_left(self, number: int) -> list[do.Action]:
        """The session of a child was on CPUs that its slot has not. Said once for a session."""
        session = self._served_by(number)
        if session is None or FROM_CPUS in session.removed:
            return []
        session.removed += (FROM_CPUS,)
        line = f"session {session.number} of {session.peer} left the CPUs of its slot (--cpus) and is set back to them"
        return [do.Log("warning", line)]

    def child_dead(self, now: float, event: ev.ChildDead) -> list[do.Action]:
        """A child and everything below it is dead."""
        clean = self.unkilled(event.child, ())
        child = self.children.get(event.child)
        if child is None:
            return clean
        session = self._served_by(event.child)
        if session is not None:
            session.removed += event.removed
            if event.starved and not session.gone:
                session.outcome = session.outcome or "memory"
        if child.state in ("starting", "waiting") and self._child_pause.failed(now):
            how = f"signal {-event.status}" if event.status < 0 else f"status {event.status}"
            line = f"a waiting session process died ({how}); making another, with growing pauses"
            return [*clean, do.Log("error", line), *self._buried(now, event.child, event.cleaned)]
        return clean + self._buried(now, event.child, event.cleaned)

    def hung_up(self, now: float, session: Session) -> list[do.Action]:
        """The client of a session is gone."""
        session.gone = True
        if session.state == "running":
            self._expect_end(session, now + GRACE_GONE_S)
        elif session.state == "ending" and session.due is not None:
            session.due = min(session.due, now + GRACE_GONE_S)
        elif session.state in ("opening", "overdue"):
            session.outcome = session.outcome or "lost"
            return self._clean(session)
        return []

    def end(self, now: float, session: Session, outcome: str) -> list[do.Action]:
        """End a session now, whatever it does."""
        session.outcome = session.outcome or outcome
        if session.state in ("opening", "overdue"):
            return self._clean(session)
        if session.child is None:
            return []
        if session.state == "running":
            session.state = "ending"
        session.due = now + KILL_AGAIN_S
        return [do.Kill(session.child)]

    def unkilled(self, child: int | None, names: tuple[str, ...]) -> list[do.Action]:
        """Processes of a child, or of dead ones, have survived a SIGKILL; none: they have ended after all."""
        before = self.unclean
        self._unkilled.pop(child, None)
        if names:
            self._unkilled[child] = names
        if self.unclean and not before:
            return [do.Log("error", f"this board is not clean and is not offered until it is: {self.unclean}")]
        if before and not self.unclean:
            return [do.Log("info", "this board is clean again and is offered: what no signal ended has ended")]
        return []

    def spoil(self, why: str) -> list[do.Action]:
        """The board is not clean, and will not be: nobody is to get it."""
        if self._spoilt:
            return []
        self._spoilt = why
        line = f"this board is not clean and is not offered any more: {why}; see to it, then start this server again"
        return [do.Log("error", line)]

    def start_failed(self, number: int, why: str) -> list[do.Action]:
        """A session got no process. The child it was meant for is of no use any more."""
        session = self.sessions.get(number)
        if session is None or session.child is None:
            return []
        child, session.child = session.child, None
        self.children[child] = Child("doomed")
        session.outcome, session.fault = "crashed", f"a session could not start: {why}"
        session.unanswered = True
        return [do.Kill(child), *self._clean(session)]

    def removed(self, number: int) -> Session | None:
        """Nothing of a session is left: its slot is free."""
        return self.sessions.pop(number, None)

    def _served_by(self, number: int) -> Session | None:
        child = self.children.get(number)
        return None if child is None or child.session is None else self.sessions.get(child.session)

    def _expect_end(self, session: Session, due: float) -> None:
        session.state = "ending"
        session.due = due if session.due is None else min(session.due, due)

    def _buried(self, now: float, number: int, cleaned: tuple[str, ...]) -> list[do.Action]:
        session = self._served_by(number)
        del self.children[number]
        self._imports.done(number)
        if session is None:
            return []
        session.child = session.due = None
        session.cleaned += cleaned
        session.outcome = session.outcome or ("lost" if session.gone else "crashed")
        if session.outcome == "crashed" and session.kind != TVM and not session.opened:
            session.fault = "its process died before the session was open"
        if session.kind == TVM and not session.gone and session.state != "telling" and self._last_words(session):
            session.state = "overdue"
            session.due = now + GRACE_DONE_S
            return []
        return self._clean(session)

    def _clean(self, session: Session) -> list[do.Action]:
        session.state = "cleaning"
        session.due = None
        idle = "idle" if len(self.sessions) == 1 else "busy"
        words = () if session.kind == TVM else self._last_words(session)
        return [do.Finish(session.number, session.conn, words, idle if self.shared else "", session.unanswered)]

    def _last_words(self, session: Session) -> tuple[str, ...]:
        """The error that a client is told of, type and text, in case that its session could not do so itself."""
        if session.outcome == "timeout" and session.kind == TVM:
            limit = f"{session.limit_s or 0.0:g} s and was ended; ask for a longer session_timeout"
            return ("RPCSessionTimeoutError", f"the session reached its time limit of {limit}")
        if session.outcome == "timeout":
            limit = f"{session.limit_s:g} s is over; ask for more with session_timeout="
            return ("SessionTimeout", f"the session's time limit of {limit}")
        if session.unanswered:
            return ("SessionLost", f"{session.fault} (on the device; its server's log may say more)")
        if session.outcome == "memory" and self._memory is not None:
            return ("MemoryLimit", breach(self._memory) + ", and its processes were ended")
        return ()

    # What is due

    def deadline(self, spares: bool) -> float | None:
        """When :meth:`tick` or :meth:`settle` has something to do."""
        times = [session.due for session in self.sessions.values()]
        times.append(self._imports.deadline())
        if not spares:
            pass
        elif self.zygote == "down":
            times.append(self._zygote_pause.until)
        elif self.zygote == "up" and self._missing() > 0:
            waits = [time for time in (self._child_pause.until, self._quiet_until) if time is not None]
            times.append(max(waits, default=None))
        return min((time for time in times if time is not None), default=None)

    def tick(self, now: float) -> list[do.Action]:
        """End what is over its time."""
        actions: list[do.Action] = []
        for session in list(self.sessions.values()):
            if session.due is not None and now >= session.due:
                actions += self._overdue(now, session)
        return actions

    def hanging(self, now: float) -> tuple[list[do.Action], list[str]]:
        """End what imports for too long; also what that was, in a line each."""
        actions: list[do.Action] = []
        lines = []
        for child, line in self._imports.hanging(now):
            actions.append(do.KillZygote() if child is None else do.Kill(child))
            lines.append(line)
        return actions, lines

    def _overdue(self, now: float, session: Session) -> list[do.Action]:
        if session.state == "running":
            return self.end(now, session, "timeout")
        if session.state == "overdue":
            return self._clean(session)
        return self.end(now, session, "lost" if session.gone else "ended")

    def settle(self, now: float, spares: bool) -> tuple[list[do.Action], list[Session]]:
        """Hand sessions to waiting children, and with ``spares`` make the children that are missing.

        Also returns the sessions that have begun by this.
        """
        actions: list[do.Action] = []
        begun = []
        waiting = [number for number, child in self.children.items() if child.state == "waiting"]
        for session in self.sessions.values():
            if waiting and session.state in ("opening", "overdue"):
                actions.append(self._assign(now, session, waiting.pop(0)))
                if session.state == "running":
                    begun.append(session)
        if not spares:
            return actions, begun
        if self.zygote == "down" and self._zygote_pause.allows(now):
            self.zygote = "starting"
            actions.append(do.StartZygote())
        if self.zygote == "up" and self._child_pause.allows(now) and not self._quiet(now):
            actions += [self._spawn() for _ in range(self._missing())]
        return actions, begun

    def _assign(self, now: float, session: Session, number: int) -> do.Action:
        child = self.children[number]
        child.state, child.session = "serving", session.number
        session.child = number
        self._child_pause.worked()
        words = ""
        if session.state == "overdue":
            session.state, kind = "telling", TVM_END
            words = ": ".join(self._last_words(session))  # TVM's client raises the type, if it knows it
            session.due = now + GRACE_DONE_S
        else:
            session.state, kind = "running", session.kind
            session.started = now
            quiet_s = self._quiet_s if session.opening else min(TVM_QUIET_S, self._quiet_s)
            self._quiet_until = now + quiet_s
            session.due = session.overdue_at()
        return do.Start(
            session.number,
            session.conn,
            number,
            kind,
            session.peer,
            session.limit_s,
            session.lease,
            session.slot,
            self.shared and len(self.sessions) == 1,
            words,
        )

    def _quiet(self, now: float) -> bool:
        """Whether a session is just being opened, whose client is not to wait for a fork as well."""
        if self._quiet_until is not None and (now >= self._quiet_until or self._wanting()):
            self._quiet_until = None
        return self._quiet_until is not None

    def _wanting(self) -> bool:
        """Whether a client waits for a child. Asked when those that wait have been given away."""
        return any(session.state in ("opening", "overdue") for session in self.sessions.values())

    def _missing(self) -> int:
        running = sum(session.state == "running" for session in self.sessions.values())
        unused = sum(child.state in ("starting", "waiting") for child in self.children.values())
        return max(max(self.slots - running, self.spares) - unused, 0)

    def _spawn(self) -> do.Action:
        child = self.next_child()
        self.children[child] = Child()
        return do.Spawn(child)

    def next_child(self) -> int:
        """The number of a new child, of whatever kind."""
        self._last_child += 1
        return self._last_child
