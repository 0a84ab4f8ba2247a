"""Every decision of a device server, as plain synchronous code: an event comes in, actions come out.

Four parts know the details: the board (:mod:`rpcsys.server.board`: slots, sessions, processes), the offers
(:mod:`rpcsys.server.offers`: tracker, match keys), health (:mod:`rpcsys.server.health`) and, behind proxies, parking
(:mod:`rpcsys.server.parking`); what a tracker says and is told is in :mod:`rpcsys.server.tracked`. Here they meet the visitors: a client that has said its greeting is one
until it has a slot.

Handlers only note what happened. After each, :meth:`State._settle` brings visitors, slots, children and
offers together, so that no order of events can leave a slot idle.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from rpcsys.server import events as ev
from rpcsys.server.health import CommandDone
from rpcsys.server.job import RPCSYS, TVM
from rpcsys.server.offers import Key
from rpcsys.server.parking import Answering, KeyMade, Paired, Parked, Place, Unparked
from rpcsys.server.policy import Policy
from rpcsys.server.sessions import Session
from rpcsys.server.tracked import Tracked
from rpcsys.wire.handshake import CLIENT, SESSION
from rpcsys.wire.keys import same

if TYPE_CHECKING:
    pass

HANDSHAKE_S = 8.0
"""From a connection to its whole greeting: clients send it at once. Well within the 10 s that are promised."""

EARLY_S = 2.0
"""How long a client that is faster than the tracker's word about its lease is held back."""

MAX_OPENINGS = 256
"""Strangers that have not said a greeting. Each costs a descriptor; of more, the oldest is dropped."""

MAX_VISITORS = 64
"""Clients that wait for a slot of a server without a tracker."""

NOT_FREE = "its key is not free here (used already, renewed, or another server's)"


class State(Tracked):
    """What a device server knows. ``handle`` is the only way in; ``deadline`` says when to send a Tick."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.openings: dict[int, float] = {}
        self.serving = False
        self.grace_until: float | None = None
        self.patient = False
        self._told_shared = False
        self._exited = False

    def start(self) -> list[ev.Action]:
        """What comes before the first event."""
        return [ev.StartZygote()]

    def handle(self, event: ev.Event) -> list[ev.Action]:
        """Take one event in; what to do about it, in order."""
        handler = _HANDLERS.get(type(event), State._of_service)
        return handler(self, event) + self._settle(event.now)

    def deadline(self) -> float | None:
        """When the next Tick is needed, None for never."""
        times = [
            *self.openings.values(),
            self.offers.deadline(),
            self.parking.deadline(),
            self.board.deadline(self._spares()),
            self.health.deadline() if self.serving and self._spares() else None,
        ]
        times += [visitor.early_until for visitor in self.visitors]
        times.append(self.grace_until)
        times.append(self.hosting.deadline() if self.hosting is not None else None)
        return min((time for time in times if time is not None), default=None)

    # Strangers and visitors

    def _accepted(self, event: ev.Accepted) -> list[ev.Action]:
        if self.stopping:
            return [ev.Drop(event.conn)]
        actions: list[ev.Action] = []
        if len(self.openings) >= MAX_OPENINGS:
            actions = self._drop_opening(next(iter(self.openings)))
        self.openings[event.conn] = event.now + HANDSHAKE_S
        return actions

    def _broken(self, event: ev.Broken) -> list[ev.Action]:
        actions = self._drop_opening(event.conn)
        return [_warning(f"connection dropped: {event.why}"), *actions] if event.why else actions

    def _drop_opening(self, conn: int) -> list[ev.Action]:
        return [] if self.openings.pop(conn, None) is None else [ev.Drop(conn)]

    def _opened(self, event: ev.Opened) -> list[ev.Action]:
        if self.openings.pop(event.conn, None) is None:
            return []
        return self._let_in(event, self.policy.tracked)

    def _paired(self, event: Paired) -> list[ev.Action]:
        """A proxy has joined a client to a place of ours. Under the plain key, any client is right: the proxy knows which."""
        place = self.parking.paired(event.place)
        if place is None or self.stopping:
            return [ev.Drop(event.conn)]
        return self._let_in(event, place.key != self.policy.key, place)

    def _let_in(self, event: ev.Opened | Paired, keyed: bool, place: Place | None = None) -> list[ev.Action]:
        """A client has greeted; ``keyed``: it needs a match key of ours."""
        if event.serve is not None and event.role == CLIENT:
            return self._visit(event, event.serve, place)
        key = self.offers.find(event.key) if keyed else None
        refusal = self._refusal(event, key, keyed)
        if refusal:
            how = "version" if event.session not in (None, SESSION) else "mismatch"
            actions = [_warning(f"{event.peer} refused: {refusal}"), ev.Refuse(event.conn, how)]
            if place is not None:
                self.parking.over(event.now, place, served=False)
            return actions + (self._wasted(key) if key else [])
        visitor = Session(event.conn, event.peer, RPCSYS if event.session else TVM)
        visitor.limit(event.timeout_s)
        visitor.place = place
        if key is not None:
            visitor.matchkey = key.matchkey
            if self.offers.may_precede_its_lease(key):
                visitor.early_until = event.now + EARLY_S
            visitor.leased(key.lease, key.epoch, key.limit_s)
            self.offers.use(key)
        self.visitors.append(visitor)
        return []

    def _visit(self, event: ev.Opened | Paired, name: str, place: Place | None) -> list[ev.Action]:
        """A client has greeted that wants no slot: a deployed module, or to deploy one."""
        if place is not None:
            self.parking.over(event.now, place, served=True)
        if event.session != SESSION:
            return [ev.Refuse(event.conn, "version")]
        if self.hosting is None:
            return [ev.Refuse(event.conn, "deploys nothing")]
        return self.hosting.visit(event.now, event.conn, event.peer, name)

    def _refusal(self, event: ev.Opened | Paired, key: Key | None, keyed: bool) -> str:
        """Why a visitor cannot be let in; empty when it can."""
        if self.board.unclean:
            return "the board is not clean"
        if event.role != CLIENT:
            return "it is a server itself; servers go to a proxy or a tracker"
        if key is None and (keyed or not (self.policy.proxies or same(event.key, self.policy.key))):
            return NOT_FREE
        if len(self.visitors) >= MAX_VISITORS:
            return f"{MAX_VISITORS} clients are waiting already"
        if event.session not in (None, SESSION):
            return f"it speaks {event.session}, this server {SESSION}"
        if event.session is None and not self.policy.tvm:
            return (
                "it speaks TVM's protocol, and this server does not (it runs with --tvm off or without tvm)"
            )
        return ""

    def _wasted(self, key: Key) -> list[ev.Action]:
        self.offers.use(key)
        return [] if key.lease is None else self.offers.report(ev.Ended(key.lease, key.epoch, "unused"))

    def _hung_up(self, event: ev.HungUp) -> list[ev.Action]:
        for visitor in self.visitors:
            if visitor.conn == event.conn:
                self.visitors.remove(visitor)
                return [ev.Drop(event.conn), *self._report_end(visitor, "lost")]
        if self.hosting is not None:
            actions = self.hosting.hung_up(event.now, event.conn)
            if actions is not None:
                return actions
        session = self.board.by_conn(event.conn)
        return [] if session is None else self.board.hung_up(event.now, session)

    # Processes

    def _zygote_up(self, event: ev.ZygoteUp) -> list[ev.Action]:
        self.board.zygote_up(event.now, bool(event.shared))
        if self.hosting is not None:
            self.hosting.zygote(True)
        if not event.shared or self._told_shared:
            return []
        self._told_shared = True
        line = f"sessions share /tmp, /dev/shm and System V IPC with all else here ({event.shared})"
        return [ev.Log("info", line)]

    def _importing(self, event: ev.Importing) -> list[ev.Action]:
        self.board.importing(event.now, event.child, event.what)
        return []

    def _zygote_down(self, event: ev.ZygoteDown) -> list[ev.Action]:
        actions = [*self._stuck(event.stuck), *self.board.zygote_down(event.now, event.cleaned)]
        return actions + (self.hosting.zygote(False) if self.hosting is not None else [])

    def _stuck(self, names: tuple[str, ...]) -> list[ev.Action]:
        return self.board.spoil(f"no signal ends {', '.join(names)}") if names else []

    def _failed(self, event: ev.Failed) -> list[ev.Action]:
        if self.serving or self.stopping:
            return [ev.Log("error", event.why)]
        return self._exit(event.why)

    def _child_ready(self, event: ev.ChildReady) -> list[ev.Action]:
        if self.hosting is not None and event.child < 0:
            return self.hosting.ready(event.child)
        if not self.board.child_ready(event.child) or self.serving:
            return []
        self.serving = True
        actions: list[ev.Action] = [ev.Announce()]
        return actions + (self.offers.open(event.now) if self.policy.tracked and not self.stopping else [])

    def _limit_asked(self, event: ev.LimitAsked) -> list[ev.Action]:
        return self.board.limit_asked(event.child, event.limit_s)

    def _session_opened(self, event: ev.SessionOpened) -> list[ev.Action]:
        self.board.session_opened(event.now, event.child)
        return []

    def _child_done(self, event: ev.ChildDone) -> list[ev.Action]:
        self.board.child_done(event.now, event)
        return []

    def _memory_exceeded(self, event: ev.MemoryExceeded) -> list[ev.Action]:
        return self.board.memory_exceeded(event.now, event.child)

    def _child_dead(self, event: ev.ChildDead) -> list[ev.Action]:
        if self.hosting is not None and event.child < 0:
            return [*self._stuck(event.stuck), *self.hosting.dead(event.now, event.child, event.status)]
        return [*self._stuck(event.stuck), *self.board.child_dead(event.now, event)]

    def _of_service(self, event: ev.Event) -> list[ev.Action]:
        """What concerns deployed modules alone."""
        assert self.hosting is not None, "nobody else makes such events"
        return self.hosting.handle(event)

    def _start_failed(self, event: ev.StartFailed) -> list[ev.Action]:
        return [
            ev.Log("error", f"a session could not start: {event.why}"),
            *self.board.start_failed(event.session, event.why),
        ]

    def _removed(self, event: ev.Removed) -> list[ev.Action]:
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
        spoilt: list[ev.Action] = []
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
        return [ev.Log("info", line, "ended", told), *spoilt, *self._report_end(session, session.outcome)]

    # Time, and the end of it

    def _tick(self, event: ev.Tick) -> list[ev.Action]:
        actions: list[ev.Action] = []
        for conn, until in list(self.openings.items()):
            if event.now >= until:
                actions += [_warning(f"no greeting within {HANDSHAKE_S:g} s: connection dropped")]
                actions += self._drop_opening(conn)
        for visitor in self.visitors:
            if visitor.early_until is not None and event.now >= visitor.early_until:
                visitor.early_until = None
        if self.grace_until is not None and event.now >= self.grace_until:
            actions += self._end_all(event.now)
        actions += self._end_hanging(event.now) + self.board.tick(event.now)
        return actions + self.offers.tick(event.now) + self.parking.tick(event.now)

    def _end_hanging(self, now: float) -> list[ev.Action]:
        actions, lines = self.board.hanging(now)
        if lines and not (self.serving or self.stopping):
            return actions + self._exit(lines[0])
        return actions + [ev.Log("error", line) for line in lines]

    def _stop(self, event: ev.Stop) -> list[ev.Action]:
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
        actions = [ev.StopListening(), *self.parking.close(), *map(ev.Drop, strangers)]
        actions += self.offers.abandon()
        for visitor in self.visitors:
            actions += self._report_end(visitor, "unused")
        if self.hosting is not None:
            actions += self.hosting.stop()
        self.openings.clear()
        self.visitors.clear()
        return actions

    def _end_all(self, now: float) -> list[ev.Action]:
        self.grace_until = None
        actions: list[ev.Action] = []
        for session in list(self.board.sessions.values()):
            actions += self.board.end(now, session, "ended")
        return actions + (self.hosting.end() if self.hosting is not None else [])

    def _exit(self, why: str = "") -> list[ev.Action]:
        if self._exited:
            return []
        self._exited = True
        return [ev.Exit(why)]

    def _settle(self, now: float) -> list[ev.Action]:
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
            busy = (
                self.board.sessions or self.offers.owing() or (self.hosting is not None and self.hosting.busy)
            )
            return actions if busy else actions + self._exit()
        if self.board.unclean:
            return actions + self._turn_away(now)
        return actions + (self._offer(now) if self.policy.tracked and self.serving else [])

    def _spares(self) -> bool:
        return not (self.stopping or self.board.unclean)

    def _began(self, session: Session) -> list[ev.Action]:
        line = f"session {session.number} of {session.peer} begins: {session.kind}"
        if session.limit_s is not None:
            line += f", for at most {session.limit_s:g} s"
        if session.lease is not None:
            line += f" lease={session.lease}"
        report: list[ev.Action] = []
        if session.lease is not None:
            report = self.offers.report(ev.Started(session.lease, session.epoch, session.peer))
        told = _told(session, kind=session.kind, limit_s=session.limit_s)
        return [ev.Log("info", line, "began", told), *report]


def _told(session: Session, **more: Any) -> tuple[tuple[str, Any], ...]:
    return (("lease", session.lease), ("session", session.number), ("peer", session.peer), *more.items())


def _warning(text: str) -> ev.Action:
    return ev.Log("warning", text)


_HANDLERS: dict[type, Callable[[State, Any], list[ev.Action]]] = {
    ev.Tick: State._tick,
    ev.Accepted: State._accepted,
    ev.Opened: State._opened,
    ev.Broken: State._broken,
    ev.HungUp: State._hung_up,
    ev.ZygoteUp: State._zygote_up,
    ev.Importing: State._importing,
    ev.ZygoteDown: State._zygote_down,
    ev.Failed: State._failed,
    ev.ChildReady: State._child_ready,
    ev.LimitAsked: State._limit_asked,
    ev.SessionOpened: State._session_opened,
    ev.ChildDone: State._child_done,
    ev.MemoryExceeded: State._memory_exceeded,
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
    Parked: State._parked,
    Answering: State._answering,
    Unparked: State._unparked,
    Paired: State._paired,
    CommandDone: State._command_done,
    ev.Stop: State._stop,
}
