"""The slots of a board, their sessions, and the children that serve them. Decisions only.

A child waits for every slot without a running session, so that a session opens without a fork. One child waits even
while all slots are taken, so that the next session needs no fork either; but while a client of TVM may measure, none is
made before a session ends.
"""

from __future__ import annotations

import signal
from collections import Counter

from rpcsys.server.sandbox.limits import breach, longer
from rpcsys.server.sandbox.messages import TVM, TVM_END, ChildKind
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.process_table import GIVEN, GIVEN_UP, UNUSED, WAITING, Child, ProcessTable
from rpcsys.server.supervisor.records import ServerRecords, earliest
from rpcsys.server.supervisor.session_record import (
    CHILDLESS,
    END_SEEN,
    ENDING,
    EXPLAINING,
    OVER,
    OVERDUE,
    RUNNING,
    STARTED,
    UNEXPLAINED,
    SessionRecord,
)
from rpcsys.wire.keys import same
from rpcsys.wire.pinned_keys import public_name

GRACE_GONE_S = 0.4  # time for a session process to end by itself after its client hung up
#: Time for a session process to exit after its last message, and for sending a TVM client the timeout error.
GRACE_DONE_S = 2.0
FIRST_CALL_S = 0.005  # no fork for this long after a session was opened: its client makes its first call
KILL_AGAIN_S = 5.0  # pause between two kills. A killed process is dead within milliseconds, unless the kernel holds it
#: Why a stopping server ends its sessions.
STOPPED = "its server was stopped"
#: The entry in ``removed`` for a session that changed its own CPU affinity.
FROM_CPUS = "threads from other CPUs than its slot's"


class Slots:
    """``waiting``: clients that have greeted and have no slot; ``sessions``: clients with a slot, by number."""

    def __init__(self, records: ServerRecords, processes: ProcessTable) -> None:
        self.records = records
        self.processes = processes
        self.waiting: list[SessionRecord] = []
        self.sessions: dict[int, SessionRecord] = {}
        self.handshakes: Counter[str] = Counter()  # of encrypted clients, with the greeting inside, by outcome
        self._quiet_until: float | None = None
        self._last = 0
        self._tvm_at_once = 0  # the most sessions of TVM's clients that there were at once

    @property
    def free(self) -> int:
        return 0 if self.processes.unclean else self.records.policy.slots - len(self.sessions)

    def clients(self) -> list[SessionRecord]:
        return [*self.waiting, *self.sessions.values()]

    def admit(self) -> None:
        """Give free slots to waiting clients, except those that wait for the tracker's message."""
        for session in [session for session in self.waiting if session.early_until is None][: max(self.free, 0)]:
            self.waiting.remove(session)
            self._last += 1
            session.number = self._last
            taken = {other.slot for other in self.sessions.values()}
            session.slot = next(slot for slot in range(self.records.policy.slots) if slot not in taken)
            self.sessions[session.number] = session

    def _kind(self, session: SessionRecord) -> ChildKind:
        """The kind of child that a session needs."""
        return ChildKind.TVM if session.kind == TVM and self.records.policy.tvm_apart else ChildKind.SESSION

    def _of_tvm(self) -> list[SessionRecord]:
        return [session for session in self.sessions.values() if self._kind(session) is ChildKind.TVM]

    # Events of sessions

    def limit_asked(self, event: ev.LimitAsked) -> list[do.Action]:
        """Set the limit that a client requested. If its lease was renewed meanwhile, the renewal holds."""
        session = self._served_by(event.child)
        if session is None:
            return []
        if session.renewed:
            until = None if session.limit_s is None else session.started + session.limit_s
            return [do.Extend(event.child, until)]
        session.limit(event.limit_s)
        return []

    def session_opened(self, event: ev.SessionOpened) -> list[do.Action]:
        """Record that a session is open: a later failure may be the client's fault."""
        session = self._served_by(event.child)
        if session is not None:
            session.opened = True
            self.handshakes["done"] += bool(session.pinned)
        if not any(other.opening for other in self.sessions.values()):
            self._quiet_until = event.now + min(FIRST_CALL_S, self.records.policy.quiet_s)
        return []

    def held(self, event: ev.Held) -> list[do.Action]:
        session = self._served_by(event.child)
        if session is not None and session.kind != TVM:
            session.held = True
        return []

    def held_as(self, said: str) -> SessionRecord | None:
        """The running hold of a match key, as a client may say it in the clear."""
        holds = [one for one in self.sessions.values() if one.held and one.state is RUNNING and one.matchkey]
        known = [one for one in holds if same(public_name(one.matchkey) if one.pinned else one.matchkey, said)]
        return known[0] if known else None

    def child_done(self, event: ev.ChildDone) -> list[do.Action]:
        session = self._served_by(event.child)
        if session is not None and session.state in (RUNNING, ENDING):
            session.outcome, session.cause = session.outcome or event.outcome, event.why
            session.removed += event.removed
            self._expect_end(session, GRACE_DONE_S)
        return []

    def memory_exceeded(self, event: ev.MemoryExceeded) -> list[do.Action]:
        session = self._served_by(event.child)
        return self.end(session, "memory") if session is not None and session.state is RUNNING else []

    def cpus_left(self, event: ev.CpusLeft) -> list[do.Action]:
        """Log, once for each session, that it used CPUs of other slots."""
        session = self._served_by(event.child)
        if session is None or FROM_CPUS in session.removed:
            return []
        session.removed += (FROM_CPUS,)
        line = f"session {session.number} of {session.peer} left the CPUs of its slot (--cpus) and is set back to them"
        return [do.Log("warning", line)]

    def hung_up(self, conn: int) -> list[do.Action]:
        """Handle the hang-up of a connection, if it is a session's."""
        session = next((session for session in self.sessions.values() if session.conn == conn), None)
        if session is None:
            return []
        session.gone = True
        if session.state in (RUNNING, ENDING):
            self._expect_end(session, GRACE_GONE_S)
        elif session.state in CHILDLESS:
            session.outcome = session.outcome or "lost"
            return self._clean(session)
        return []

    def start_failed(self, event: ev.StartFailed) -> list[do.Action]:
        """A session could not start: end it, and kill the child that was to serve it."""
        actions: list[do.Action] = [do.Log("error", f"a session could not start: {event.why}")]
        session = self.sessions.get(event.session)
        if session is None or session.child is None:
            return actions
        number, session.child = session.child, None
        child = self.processes.children[number]
        child.move(GIVEN_UP)
        child.session = None
        session.outcome, session.fault = "crashed", f"a session could not start: {event.why}"
        session.unanswered = True
        return [*actions, do.Kill(number), *self._clean(session)]

    # How sessions end

    def end_all(self) -> list[do.Action]:
        """End all sessions now: the server stops. A TVM session has no child any more to send the reason."""
        ends = ((session, "" if session.kind == TVM else STOPPED) for session in list(self.sessions.values()))
        return [action for session, why in ends for action in self.end(session, "ended", why)]

    def end(self, session: SessionRecord, outcome: str, why: str = "") -> list[do.Action]:
        """End a session now. ``why`` is a sentence for its client."""
        if not session.outcome:
            session.outcome, session.why = outcome, why
        if session.state in CHILDLESS:
            return self._clean(session)
        if session.child is None:
            return []
        session.move(END_SEEN)
        session.due = self.records.now + KILL_AGAIN_S
        return [do.Kill(session.child)]

    def child_dead(self, event: ev.ChildDead, child: Child) -> list[do.Action]:
        session = self._served_by(event.child)
        if session is not None:
            session.removed += event.removed
            if event.starved and not session.gone:
                session.outcome = session.outcome or "memory"
            elif not (session.gone or session.outcome):
                session.cause = f"its process {_how(event.status)}"
        actions: list[do.Action] = []
        if child.failed and child.kind is ChildKind.TVM:
            self._tvm_at_once = 0  # the next client is the next try
            for waiting in [session for session in self._of_tvm() if session.state in CHILDLESS]:
                waiting.outcome, waiting.fault = waiting.outcome or "crashed", child.failed
                actions += self._clean(waiting)
        elif child.state in UNUSED and self.processes.child_pause.failed(event.now):
            line = f"a waiting session process died: it {_how(event.status)}; making another, with growing pauses"
            actions.append(do.Log("error", line))
        return actions + self.child_gone(event.child, event.cleaned)

    def child_gone(self, number: int, cleaned: tuple[str, ...]) -> list[do.Action]:
        """Remove a dead child, and end its session or have its client sent the reason."""
        session = self._served_by(number)
        self.processes.remove(number)
        if session is None:
            return []
        session.child = session.due = None
        session.cleaned += cleaned
        session.outcome = session.outcome or ("lost" if session.gone else "crashed")
        if session.outcome == "crashed" and session.kind != TVM and not session.opened:
            session.fault = "its process died before the session was open"
        if session.kind == TVM and not session.gone and session.state is not EXPLAINING and self._error(session):
            session.move(UNEXPLAINED)
            session.due = self.records.now + GRACE_DONE_S
            return []
        return self._clean(session)

    def _served_by(self, number: int) -> SessionRecord | None:
        child = self.processes.children.get(number)
        return None if child is None or child.session is None else self.sessions.get(child.session)

    def _expect_end(self, session: SessionRecord, grace_s: float) -> None:
        session.move(END_SEEN)
        if not any(other.state is RUNNING for other in self.sessions.values()):
            self._quiet_until = None  # nobody is left whom the fork for the next session would delay
        due = self.records.now + grace_s
        session.due = due if session.due is None else min(session.due, due)

    def _clean(self, session: SessionRecord) -> list[do.Action]:
        session.move(OVER)
        session.due = None
        idle = "idle" if len(self.sessions) == 1 else "busy"
        error = () if session.kind == TVM else self._error(session)
        sweep = idle if self.processes.shared else ""
        return [do.Finish(session.number, session.conn, error, sweep, session.unanswered, session.pinned)]

    def _error(self, session: SessionRecord) -> tuple[str, ...]:
        """The error to send to a client whose session could not send it: type and text; empty for none."""
        memory = self.records.policy.memory
        if session.outcome == "timeout" and session.kind == TVM:
            limit = f"{session.limit_s or 0.0:g} s and was ended; {longer(session.limit_s or 0.0, session.longest_s)}"
            return ("RPCSessionTimeoutError", f"the session reached its time limit of {limit}")
        if session.outcome == "timeout" and session.limit_s is not None:
            limit = f"{session.limit_s:g} s is over; {longer(session.limit_s, session.longest_s)}"
            return ("SessionTimeout", f"the session's time limit of {limit}")
        if session.unanswered:
            return ("SessionLost", f"{session.fault} (on the device; its server's log may say more)")
        if session.outcome == "ended" and session.why:
            return ("SessionLost", over(session.why))
        if session.outcome == "memory" and memory is not None:
            return ("MemoryLimit", breach(memory) + ", and its processes were ended")
        if session.outcome == "crashed" and session.cause and session.kind != TVM:
            how = "probably through the code that it ran" if session.opened else "before the session was open"
            return ("SessionLost", f"{over(session.cause)}, {how}; request a device again")
        return ()

    # Deadlines

    def deadline(self) -> float | None:
        times = [session.due for session in self.sessions.values()]
        waits = [time for time in (self.processes.child_pause.until, self._quiet_until) if time is not None]
        if waits and self._missing():
            times.append(max(waits))
        return earliest(times)

    def tick(self) -> list[do.Action]:
        now = self.records.now
        late = [session for session in self.sessions.values() if session.due is not None and now >= session.due]
        return [action for session in late for action in self._overdue(session)]

    def _overdue(self, session: SessionRecord) -> list[do.Action]:
        if session.state is OVERDUE:
            return self._clean(session)
        return self.end(session, "timeout" if session.state is RUNNING else "lost" if session.gone else "ended")

    def hand_out(self) -> tuple[list[do.Action], list[SessionRecord]]:
        """Hand sessions to waiting children; the actions, and the sessions that begin.

        A session of a TVM client begins even before it has a child: importing TVM's Python may take a slow board longer
        than the tracker waits for the start of a lease.
        """
        actions: list[do.Action] = []
        begun: list[SessionRecord] = []
        childless = [session for session in self.sessions.values() if session.state in CHILDLESS]
        if not childless:
            return actions, begun
        of_tvm = self._of_tvm()
        waiting = [(number, child) for number, child in self.processes.for_sessions() if child.state is WAITING]
        for session in childless:
            if self.records.searching and session.kind != TVM:
                continue  # HELLO names the devices
            kind = self._kind(session)
            found = next((one for one in waiting if one[1].kind is kind), None)
            if found is not None:
                waiting.remove(found)
                actions.append(self._assign(session, *found))
            if not session.begun and (found is not None or kind is ChildKind.TVM):
                session.begun = True
                begun.append(session)
        self._tvm_at_once = max(self._tvm_at_once, sum(session.under_way for session in of_tvm))
        return actions, begun

    def spawn(self) -> list[do.Action]:
        """Make the missing children, unless a pause lasts."""
        processes, missing = self.processes, self._missing()
        if not missing or not processes.child_pause.allows(self.records.now) or self._quiet():
            return []
        actions: list[do.Action] = []
        lacking = [self._kind(session) for session in self.clients() if session.state in CHILDLESS]
        for kind in missing:
            actions.append(processes.spawn(kind, kind in lacking))
            if kind in lacking:
                lacking.remove(kind)
        return actions

    def _assign(self, session: SessionRecord, number: int, child: Child) -> do.Action:
        child.move(GIVEN)
        child.session, session.child = session.number, number
        self.processes.child_pause.worked()
        kind, words, now = session.kind, "", self.records.now
        session.move(STARTED)
        if session.state is EXPLAINING:
            kind, words = TVM_END, ": ".join(self._error(session))  # TVM's client raises this type, if it has it
            session.due = now + GRACE_DONE_S
        else:
            session.started = now
            if session.opening:
                self._quiet_until = now + self.records.policy.quiet_s
            session.keep_limit()
        alone = self.processes.shared and len(self.sessions) == 1
        limit_s, lease = session.limit_s, session.lease
        seed, session.seed = session.seed, ""
        return do.Start(
            session.number, session.conn, number, kind, session.peer, limit_s, lease, session.slot, alone, words,
            session.longest_s, session.pinned, seed, self.records.policy.in_lab and not session.code,
        )  # fmt: skip

    def _quiet(self) -> bool:
        """Whether a session is opening, which a fork would delay. A session without a child ends this pause."""
        wanting = any(session.state in CHILDLESS for session in self.sessions.values())
        if self._quiet_until is not None and (self.records.now >= self._quiet_until or wanting):
            self._quiet_until = None
        return self._quiet_until is not None

    def _missing(self) -> list[ChildKind]:
        """The kinds of the children to make, without regard to pauses."""
        if not self.processes.can_spawn:
            return []
        others = [session for session in self.sessions.values() if session.state is not RUNNING]
        measured = any(session.kind == TVM and session.state is RUNNING for session in self.sessions.values())
        if measured and not others:
            return []
        wanted = self._successors(others) if measured else self._ahead()
        for _, child in self.processes.for_sessions():
            wanted[child.kind] -= child.state in UNUSED
        return [kind for kind, number in wanted.items() for _ in range(number)]

    def _ahead(self) -> dict[ChildKind, int]:
        """How many children are to wait while no TVM client measures.

        For TVM's clients as many as there were at once; none before the first, whose child loads TVM.
        """
        policy, of_tvm = self.records.policy, self._of_tvm()
        running = sum(session.state is RUNNING for session in self.sessions.values())
        lacking = sum(session.state in CHILDLESS for session in of_tvm)
        least = policy.spares if self._tvm_at_once else 0
        return {
            ChildKind.SESSION: max(policy.slots - running, policy.spares),
            ChildKind.TVM: max(lacking, min(self._tvm_at_once, policy.slots - running), least),
        }

    def _successors(self, others: list[SessionRecord]) -> dict[ChildKind, int]:
        """The same while one may: a fork would run beside its measurement.

        One for each session that lacks a child, and for each that ends: its end takes time anyway, and the next comes.
        These are the ``others``.
        """
        kinds = Counter(map(self._kind, others))
        return {kind: kinds[kind] for kind in (ChildKind.SESSION, ChildKind.TVM)}


def _how(status: int) -> str:
    """How a process ended, by its exit status, or minus the signal that ended it."""
    if status >= 0:
        return f"ended with exit status {status}"
    return f"was ended by {signal.Signals(-status).name if -status in {*signal.Signals} else f'signal {-status}'}"


def over(why: str) -> str:
    """The error of a session that another than its client has ended."""
    return f"the session is over: {why}"
