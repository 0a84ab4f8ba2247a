"""Every decision of a device server, as plain synchronous code: an event comes in, actions come out.

Four parts know the details: the board (:mod:`rpcsys.server.supervisor.board`: slots, sessions, processes), the offers
(:mod:`rpcsys.server.supervisor.offers`: tracker, match keys), health (:mod:`rpcsys.server.supervisor.health`) and, behind proxies, parking
(:mod:`rpcsys.server.supervisor.parking`). What a tracker says and is told is in :mod:`rpcsys.server.supervisor.tracker`, and how clients come
in is in :mod:`rpcsys.server.supervisor.admission`. Here they meet.

Handlers only note what happened. After each, :meth:`State._settle` brings visitors, slots, children and
offers together, so that no order of events can leave a slot idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from rpcsys.server.sandbox.messages import TVM
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.admission import Visited
from rpcsys.server.supervisor.health import CommandDone
from rpcsys.server.supervisor.parking import Answering, KeyMade, Paired, Parked, Unparked
from rpcsys.server.supervisor.policy import Policy
from rpcsys.server.supervisor.sessions import Session


class State(Visited):
    """What a device server knows. ``handle`` is the only way in; ``deadline`` says when to send a Tick."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.serving = False
        self.grace_until: float | None = None
        self.patient = False
        self._told_shared = False
        self._exited = False

    def start(self) -> list[do.Action]:
        """What comes before the first event."""
        return [do.StartZygote()]

    def handle(self, event: ev.Event) -> list[do.Action]:
        """Take one event in; what to do about it, in order."""
        handler = _HANDLERS.get(type(event), State._of_service)
        return handler(self, event) + self._settle(event.now)

    def deadline(self) -> float | None:
        """When the next Tick is needed, None for never."""
        times = [
            self.grace_until,
            self._next_visitor(),
            self.offers.deadline(),
            self.parking.deadline(),
            self.board.deadline(self._spares()),
            self.health.deadline() if self.serving and self._spares() else None,
        ]
        times.append(self.hosting.deadline() if self.hosting is not None else None)
        return min((time for time in times if time is not None), default=None)

    # Processes

    def _zygote_up(self, event: ev.ZygoteUp) -> list[do.Action]:
        self.board.zygote_up(event.now, bool(event.shared))
        if self.hosting is not None:
            self.hosting.zygote(True)
        if not event.shared or self._told_shared:
            return []
        self._told_shared = True
        line = f"sessions share /tmp, /dev/shm and System V IPC with all else here ({event.shared})"
        return [do.Log("info", line)]

    def _importing(self, event: ev.Importing) -> list[do.Action]:
        self.board.importing(event.now, event.child, event.what)
        return []

    def _zygote_down(self, event: ev.ZygoteDown) -> list[do.Action]:
        actions = self.board.zygote_down(event.now, event.cleaned)
        return actions + (self.hosting.zygote(False) if self.hosting is not None else [])

    def _unkilled(self, event: ev.Unkilled) -> list[do.Action]:
        return self.board.unkilled(event.child, event.names)

    def _failed(self, event: ev.Failed) -> list[do.Action]:
        if self.serving or self.stopping:
            return [do.Log("error", event.why)]
        return self._exit(event.why)

    def _child_ready(self, event: ev.ChildReady) -> list[do.Action]:
        if self.hosting is not None and self.hosting.has(event.child):
            return self.hosting.ready(event.child)
        if not self.board.child_ready(event.child) or self.serving:
            return []
        self.serving = True
        actions: list[do.Action] = [do.Announce()]
        return actions + (self.offers.open(event.now) if self.policy.tracked and not self.stopping else [])

    def _limit_asked(self, event: ev.LimitAsked) -> list[do.Action]:
        return self.board.limit_asked(event.child, event.limit_s)

    def _session_opened(self, event: ev.SessionOpened) -> list[do.Action]:
        self.board.session_opened(event.now, event.child)
        return []

    def _child_done(self, event: ev.ChildDone) -> list[do.Action]:
        self.board.child_done(event.now, event)
        return []

    def _memory_exceeded(self, event: ev.MemoryExceeded) -> list[do.Action]:
        return self.board.memory_exceeded(event.now, event.child)

    def _cpus_left(self, event: ev.CpusLeft) -> list[do.Action]:
        return self.board.cpus_left(event.child)

    def _child_dead(self, event: ev.ChildDead) -> list[do.Action]:
        if self.hosting is not None and self.hosting.has(event.child):
            return [*self.board.unkilled(event.child, ()), *self.hosting.dead(event.now, event.child, event.status)]
        return self.board.child_dead(event.now, event)

    def _of_service(self, event: ev.Event) -> list[do.Action]:
        """What concerns deployed modules alone."""
        assert self.hosting is not None, "nobody else makes such events"
        return self.hosting.handle(event)

    def _start_failed(self, event: ev.StartFailed) -> list[do.Action]:
        return [
            do.Log("error", f"a session could not start: {event.why}"),
            *self.board.start_failed(event.session, event.why),
        ]

    def _removed(self, event: ev.Removed) -> list[do.Action]:
        session = self.board.removed(event.session)
        if session is None:
            return []
        session.removed += event.removed
        if session.place is not None:
            self.parking.over(event.now, session.place, served=session.opened or session.kind == TVM)
        lasted = event.now - session.started if session.started else 0.0
        line = f"session {session.number} of {session.peer} ended after {lasted:.1f} s: {session.outcome}"
        if session.cleaned:
            line += "; had to be killed: " + ", ".join(session.cleaned)
        if session.removed:
            line += "; had to be removed: " + ", ".join(session.removed)
        if session.lease is not None:
            line += f" lease={session.lease}"
        spoilt: list[do.Action] = []
        if event.left:
            session.fault = f"it could not be cleaned: {event.left[0]} is left"
            spoilt = self.board.spoil(f"session {session.number} has left {event.left[0]}")
        self.health.session_ended(event.now, session.fault)
        told = _told(
            session,
            lasted_s=round(lasted, 3),
            outcome=session.outcome,
            cleaned=session.cleaned,
            removed=session.removed,
            fault=session.fault,
        )
        return [do.Log("info", line, "ended", told), *spoilt, *self._report_end(session, session.outcome)]

    # Time, and the end of it

    def _tick(self, event: ev.Tick) -> list[do.Action]:
        actions = self._tick_visitors(event.now)
        if self.grace_until is not None and event.now >= self.grace_until:
            actions += self._end_all(event.now)
        actions += self._end_hanging(event.now) + self.board.tick(event.now)
        return actions + self.offers.tick(event.now) + self.parking.tick(event.now)

    def _end_hanging(self, now: float) -> list[do.Action]:
        actions, lines = self.board.hanging(now)
        if lines and not (self.serving or self.stopping):
            return actions + self._exit(lines[0])
        return actions + [do.Log("error", line) for line in lines]

    def _stop(self, event: ev.Stop) -> list[do.Action]:
        until = None if event.patient else event.now + self.policy.grace_s
        if self.stopping:
            if event.patient:
                return []
            if not self.patient:
                return self._end_all(event.now)
            self.patient, self.grace_until = False, until
            return []
        self.stopping, self.patient, self.grace_until = True, event.patient, until
        strangers = [*self.openings, *(visitor.conn for visitor in self.visitors)]
        actions = [do.StopListening(), *self.parking.close(), *map(do.Drop, strangers)]
        actions += self.offers.abandon()
        for visitor in self.visitors:
            actions += self._report_end(visitor, "unused")
        if self.hosting is not None:
            actions += self.hosting.stop()
        self.openings.clear()
        self.visitors.clear()
        return actions

    def _end_all(self, now: float) -> list[do.Action]:
        self.grace_until = None
        actions: list[do.Action] = []
        for session in list(self.board.sessions.values()):
            actions += self.board.end(now, session, "ended")
        return actions + (self.hosting.end() if self.hosting is not None else [])

    def _exit(self, why: str = "") -> list[do.Action]:
        if self._exited:
            return []
        self._exited = True
        return [do.Exit(why)]

    def _settle(self, now: float) -> list[do.Action]:
        if self._exited:
            return []
        for visitor in [visitor for visitor in self.visitors if visitor.early_until is None]:
            if self.board.free > 0:
                self.visitors.remove(visitor)
                self.board.admit(visitor)
        actions, begun = self.board.settle(now, self._spares())
        for session in begun:
            actions += self._began(session)
        if self.hosting is not None:
            actions += self.hosting.settle(now)
        actions += self._announce_deployed()
        if self.stopping:
            actions += self._take_leave()
            busy = self.board.sessions or self.offers.owing() or (self.hosting is not None and self.hosting.busy)
            return actions if busy else actions + self._exit()
        if self.board.unclean:
            return actions + self._turn_away(now)
        return actions + (self._offer(now) if self.policy.tracked and self.serving else [])

    def _spares(self) -> bool:
        return not (self.stopping or self.board.unclean)

    def _began(self, session: Session) -> list[do.Action]:
        line = f"session {session.number} of {session.peer} begins: {session.kind}"
        if session.limit_s is not None:
            line += f", for at most {session.limit_s:g} s"
        if session.lease is not None:
            line += f" lease={session.lease}"
        report: list[do.Action] = []
        if session.lease is not None:
            report = self.offers.report(do.Started(session.lease, session.epoch, session.peer))
        told = _told(session, kind=session.kind, limit_s=session.limit_s)
        return [do.Log("info", line, "began", told), *report]


def _told(session: Session, **more: Any) -> tuple[tuple[str, Any], ...]:
    return (("lease", session.lease), ("session", session.number), ("peer", session.peer), *more.items())


_HANDLERS: dict[type, Callable[[State, Any], list[do.Action]]] = {
    ev.Tick: State._tick,
    ev.Accepted: State._accepted,
    ev.Opened: State._opened,
    ev.Broken: State._broken,
    ev.HungUp: State._hung_up,
    ev.ZygoteUp: State._zygote_up,
    ev.Importing: State._importing,
    ev.ZygoteDown: State._zygote_down,
    ev.Unkilled: State._unkilled,
    ev.Failed: State._failed,
    ev.ChildReady: State._child_ready,
    ev.LimitAsked: State._limit_asked,
    ev.SessionOpened: State._session_opened,
    ev.ChildDone: State._child_done,
    ev.MemoryExceeded: State._memory_exceeded,
    ev.CpusLeft: State._cpus_left,
    ev.ChildDead: State._child_dead,
    ev.StartFailed: State._start_failed,
    ev.Removed: State._removed,
    ev.LinkUp: State._link_up,
    ev.LinkDown: State._link_down,
    ev.Registered: State._registered,
    ev.Offered: State._offered,
    KeyMade: State._key_made,
    ev.Pending: State._pending,
    ev.Taken: State._taken,
    ev.Limit: State._limit,
    ev.EndLease: State._end_lease,
    ev.Confirmed: State._confirmed,
    Parked: State._parked,
    Answering: State._answering,
    Unparked: State._unparked,
    Paired: State._paired,
    CommandDone: State._command_done,
    ev.Stop: State._stop,
}
