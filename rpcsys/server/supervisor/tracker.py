"""The server's dealings with its tracker: offers, leases, health, connections at proxies. Decisions only."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from rpcsys.server.sandbox.messages import TVM
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.health import BoardHealth
from rpcsys.server.supervisor.offers import Offers
from rpcsys.server.supervisor.parking import Parking
from rpcsys.server.supervisor.records import ServerRecords
from rpcsys.server.supervisor.session_record import RUNNING, SessionRecord
from rpcsys.server.supervisor.slots import Slots, over
from rpcsys.wire.outcomes import UNUSED

if TYPE_CHECKING:
    from rpcsys.server.supervisor.admitted import AdmittedMembers
    from rpcsys.server.supervisor.canary_runs import CanaryRuns
    from rpcsys.server.supervisor.deployments import Deployments

#: Connections that wait at each proxy for clients of deployed modules. One that gets a client is replaced at once.
DEPLOYED_CONNECTIONS = 4
NOTE_EVERY_S = 10.0  # between two warnings about a tracker that hands out unknown match keys
#: The problem that a stopping server reports, so that the tracker offers none of its slots.
STOPPING = "it is being stopped"

#: Why a client gets no session that the tracker's rules do not allow.
IN_CLEAR = "its lease is for an encrypted session, and its client has said the match key in the clear"
MODELS_ONLY = "its user may load models in ONNX's format only, and a session of TVM's protocol loads anything"


@dataclass
class TrackerSide:
    """Reports to the tracker, and handles its messages."""

    records: ServerRecords
    slots: Slots
    offers: Offers
    parking: Parking
    health: BoardHealth
    deployments: Deployments | None
    members: AdmittedMembers | None
    canary: CanaryRuns | None = None
    #: Peers that were not let in, by why.
    unauthorized: Counter[str] = field(default_factory=Counter)
    _reported_problem: str = ""
    _reported_deployed: tuple[Any, ...] = ()
    _note_at: float = 0.0

    def __post_init__(self) -> None:
        if self.members is not None:
            self.unauthorized = self.members.unauthorized

    # The link

    def link_up(self, event: ev.LinkUp) -> list[do.Action]:
        running = tuple(
            (session.lease, session.epoch, event.now - session.started if session.state is RUNNING else 0.0)
            for session in self.slots.sessions.values()
            if session.lease is not None and session.under_way
        )
        self.records.lab_open = event.open and self.records.policy.in_lab
        return self.offers.up(event.ours, running, () if self.members is None else self.members.uses())

    def link_down(self, event: ev.LinkDown) -> list[do.Action]:
        """The link is down: clients no longer wait for the tracker's message about their leases."""
        for session in self.slots.waiting:
            session.early_until = None
        return self.offers.down(event)

    def registered(self, event: ev.Registered) -> list[do.Action]:
        """The tracker accepted the registration. It assumes a healthy server without deployed modules."""
        self._reported_problem, self._reported_deployed = "", ()
        return self.offers.registered()

    def parked(self, event: ev.Parked) -> list[do.Action]:
        """A connection waits at a proxy: offer its match key."""
        actions = self.parking.parked(event)
        connection = self.parking.connections.get(event.number)
        return actions if connection is None else actions + self.offers.parked(connection.key)

    # Leases

    def key_taken(self, event: ev.KeyTaken) -> list[do.Action]:
        """The tracker handed out a match key: it is still offered, or its client has arrived, or it is void."""
        if self.offers.taken(event):
            return []
        for session in self.slots.clients():
            if session.matchkey == event.matchkey and session.lease is None:
                session.leased(event.lease, event.epoch, event.limit_s, event.longest_s, event.code)
                session.early_until = None
                session.clear = session.clear and not event.plain
                why = self.unfit(session)
                if why and session in self.slots.waiting:
                    self.slots.waiting.remove(session)
                    return self.refused(session, why)
                return self._report_start(session) if session.under_way else []
        actions = self.offers.unused(event.lease, event.epoch)
        if event.now < self._note_at:
            return actions
        self._note_at = event.now + NOTE_EVERY_S
        return [do.Log("warning", "the tracker has handed out a match key that is not in use any more"), *actions]

    def unfit(self, session: SessionRecord) -> str:
        """Why a session may not begin by what the tracker has said of its lease; empty if it may."""
        if session.clear:
            return IN_CLEAR
        models_only = self.records.policy.in_lab and not session.code
        return MODELS_ONLY if models_only and session.kind == TVM else ""

    def refused(self, session: SessionRecord, why: str) -> list[do.Action]:
        """Refuse a client by what the tracker has said of its lease, which may come after it."""
        if why == IN_CLEAR:
            self.unauthorized["clear"] += 1
        line = warning(session.peer, f"{session.peer} refused: {why}")
        answer = do.Refuse(session.conn, "mismatch") if session.kind == TVM else turned_away(session, why)
        return [line, answer, *self.report_end(session, "unused")]

    def _holder(self, event: ev.LeaseReport) -> SessionRecord | None:
        """The connected client with this lease."""
        lease = event.lease, event.epoch
        return next((each for each in self.slots.clients() if (each.lease, each.epoch) == lease), None)

    def renewed(self, event: ev.LeaseRenewed) -> list[do.Action]:
        """A lease is renewed: set its session's limit, and send it to the session's child if one has it."""
        session = None if self.offers.renewed(event) else self._holder(event)
        if session is None:
            return []
        session.renewed = True
        running = session.state is RUNNING
        passed_s = event.now - session.started if running else 0.0
        session.limit_s = None if event.limit_s is None else passed_s + event.limit_s
        session.keep_limit()
        if not running or session.child is None:
            return []
        return [do.Extend(session.child, None if event.limit_s is None else event.now + event.limit_s)]

    def revoked(self, event: ev.LeaseRevoked) -> list[do.Action]:
        """The tracker ends a lease, or revokes an unused one. The end is always reported, even a second time."""
        self.offers.revoked(event)
        session = self._holder(event)
        if session is None:
            return self.offers.unused(event.lease, event.epoch)
        if event.reason == UNUSED:
            return []
        if session in self.slots.waiting:
            self.slots.waiting.remove(session)
            return [turned_away(session, event.why), *self.report_end(session, "ended")]
        line = f"session {session.number} is ended by the tracker: {event.reason}"
        return [do.Log("info", line), *self.slots.end(session, "ended", event.why)]

    def report_end(self, session: SessionRecord, outcome: str) -> list[do.Action]:
        """Report the end of a session's lease, if it has one."""
        lease, epoch, cleaned, removed = session.lease, session.epoch, session.cleaned, session.removed
        if lease is None:
            return []
        return self.offers.report(do.ReportEnd(lease, epoch, outcome, cleaned, removed, session.fault, session.cause))

    def _report_start(self, session: SessionRecord) -> list[do.Action]:
        lease, limit_s = session.lease, session.limit_s if session.kind == TVM else None
        return [] if lease is None else self.offers.report(do.ReportStart(lease, session.epoch, session.peer, limit_s))

    # Reports of sessions

    def began(self, session: SessionRecord) -> list[do.Action]:
        fields = session.fields(kind=session.kind, limit_s=session.limit_s)
        return [do.Log("info", session.began_text(), "began", fields), *self._report_start(session)]

    def removed(self, event: ev.Removed) -> list[do.Action]:
        session = self.slots.sessions.pop(event.session, None)
        if session is None:
            return []
        session.removed += event.removed
        if session.parked is not None:
            served = session.opened or session.kind == TVM or session.outcome == UNUSED
            self.parking.over(session.parked, served)
        self.slots.handshakes["failed"] += bool(session.pinned and not session.opened)
        lasted_s = event.now - session.started if session.started else 0.0
        spoilt: list[do.Action] = []
        if event.left:
            session.fault = f"it could not be cleaned: {event.left[0]} is left"
            spoilt = self.slots.processes.spoil(f"session {session.number} has left {event.left[0]}")
        self.health.session_ended(session.fault)
        if self.canary is not None:
            self.canary.session_ended(left=bool(session.cleaned or session.removed or session.fault))
        result = {name: getattr(session, name) for name in ("outcome", "cleaned", "removed", "fault")}
        fields = session.fields(lasted_s=round(lasted_s, 3), **result)
        line = do.Log("info", session.ended_text(lasted_s), "ended", fields)
        return [line, *spoilt, *self.report_end(session, session.outcome)]

    # Offers

    def settle(self) -> list[do.Action]:
        """Offer the free slots of a fit board; report the problem of one that is not fit."""
        actions = self.health.settle(idle=not self.slots.sessions)
        actions += self._report_problem()
        if self.health.fit:
            held = sum(bool(session.matchkey) for session in self.slots.waiting)
            actions += self.offers.offer(self.slots.free - held)
        elif self.health.problem and not self.offers.ours:  # our tracker has the report, and holds the offers back
            actions += self.offers.withdraw()
        return actions + self.parking.settle(self._wanted())

    def _wanted(self) -> list[tuple[int, str]]:
        """The proxy and the key of each connection that is to wait at a proxy."""
        policy = self.records.policy
        if not policy.proxies:
            return []
        wanted = [(key.proxy, key.matchkey) for key in self.offers.keys.values() if not key.held]
        holds = [session for session in self.slots.sessions.values() if session.held and session.state is RUNNING]
        wanted += [(hold.parked.proxy, hold.matchkey) for hold in holds if hold.parked is not None]
        served = self.deployments is not None and (self.deployments.hosts.catalogue or policy.front)
        if served and self.offers.linked:
            wanted += [(proxy, policy.deployed_key) for proxy in range(len(policy.proxies))] * DEPLOYED_CONNECTIONS
        free = self.slots.free - len(self.slots.waiting) if self.health.fit else 0
        return wanted + [(proxy, policy.key) for proxy in self.offers.plain_at()] * max(free, 0)

    def _report_problem(self) -> list[do.Action]:
        problem = STOPPING if self.records.stopping else self.slots.processes.unclean or self.health.problem
        if problem == self._reported_problem or not self.offers.linked:
            return []
        self._reported_problem = problem
        return [do.ReportHealth(problem)]

    def report_deployed(self) -> list[do.Action]:
        """Report the deployed modules to our tracker when they change."""
        if self.deployments is None or not self.offers.linked:
            return []
        modules = self.deployments.hosts.table()
        if modules == self._reported_deployed:
            return []
        self._reported_deployed = modules
        return [do.ReportDeployed(modules)]

    def leave(self) -> list[do.Action]:
        """The server stops. The link stays open until the ends of all leases are reported."""
        leased = any(session.lease is not None for session in self.slots.sessions.values())
        return self._report_problem() if leased or self.offers.owing() else self.offers.close()

    def turn_away(self) -> list[do.Action]:
        """Withdraw the offers of a board that is not clean, and refuse the waiting clients."""
        waiting, self.slots.waiting = self.slots.waiting, []
        actions: list[do.Action] = []
        if self.records.policy.tracked:
            actions = self.offers.withdraw() + self._report_problem() + self.parking.close()
        for session in waiting:
            actions += [do.Refuse(session.conn, "mismatch"), *self.report_end(session, "unused")]
        return actions


def warning(peer: str, text: str) -> do.Action:
    """A log line about the client at ``peer``, ``host:port``."""
    return do.Log("warning", text, stranger=peer.rpartition(":")[0] or peer)


def turned_away(session: SessionRecord, why: str) -> do.Action:
    """End a client that has no slot yet, and send it the reason, if it can be sent one."""
    if session.kind == TVM or not why:
        return do.Drop(session.conn)
    return do.TurnAway(session.conn, "SessionLost", over(why), True, session.pinned)
