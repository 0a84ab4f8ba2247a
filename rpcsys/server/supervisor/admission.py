"""Admission of clients: a client connects, greets, and then waits for a slot or is refused. Decisions only."""

from __future__ import annotations

from collections import Counter

from rpcsys.link.openings import Openings
from rpcsys.server.sandbox.messages import RPCSYS, TVM
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.fronts import FrontOpening, Fronts
from rpcsys.server.supervisor.offers import MatchKey
from rpcsys.server.supervisor.parking import ParkedConnection
from rpcsys.server.supervisor.records import EARLY_S, earliest
from rpcsys.server.supervisor.session_record import SessionRecord
from rpcsys.server.supervisor.tracker import IN_CLEAR, TrackerSide, warning
from rpcsys.wire.handshake import CLIENT, SESSION
from rpcsys.wire.keys import same
from rpcsys.wire.pinned_keys import public_name

MAX_OPENINGS = 256  # connections without a greeting; each costs a descriptor
MAX_WAITING = 64  # clients that wait for a slot of a server without a tracker
NOT_DEPLOYED = (
    "this server has no deployed modules: start it with --deploy DIR, then type: rpcsys deploy FILE --to HOST:PORT"
)
NOT_CLEAR = (
    "this server serves encrypted connections only: connect through its tracker, or with its whole key (to deploy: "
    "rpcsys deploy FILE --tracker HOST:PORT --to NAME, or --key-file FILE)"
)
NOT_FREE = "its key is not free here (used already, renewed, or another server's)"
#: How clients that are not let in are counted, by the sentence that refuses them.
NOT_LET_IN = {NOT_FREE: "credential", IN_CLEAR: "clear"}


class ClientAdmission:
    """Decides which clients get a session, a deployed module, or a refusal."""

    def __init__(self, tracker: TrackerSide, fronts: Fronts | None = None) -> None:
        self.fronts = fronts
        self.members = tracker.members
        self.records, self.tracker, self.deployments = tracker.records, tracker, tracker.deployments
        self.slots, self.offers, self.parking = tracker.slots, tracker.offers, tracker.parking
        #: Connections without a greeting, or at the front.
        self.openings: Openings[int] = Openings(MAX_OPENINGS)
        #: Peers that were not let in, by why, and encrypted clients' openings, by their outcome.
        self.unauthorized: Counter[str] = tracker.unauthorized
        self.handshakes: Counter[str] = tracker.slots.handshakes

    def accepted(self, event: ev.Accepted) -> list[do.Action]:
        if self.records.stopping:
            return [do.Drop(event.conn)]
        return self._await_opening(event.conn, event.peer)

    def _await_opening(self, conn: int, peer: str, *, named: bool = False) -> list[do.Action]:
        ended = self.openings.add(conn, peer, self.records.now, named=named)
        return [] if ended is None else self._drop_opening(ended, "crowd")

    def broken(self, event: ev.Broken) -> list[do.Action]:
        return self._drop_opening(event.conn, "invalid" if event.why else "", event.why)

    def _drop_opening(self, conn: int, counted: str = "", why: str = "") -> list[do.Action]:
        """Drop a connection that has not opened, which is ``counted`` as not let in; ``why``: for the log."""
        peer = self.openings.remove(conn)
        if peer is None:
            return []
        actions = [warning(peer, f"connection from {peer} dropped: {why}")] if why else []
        actions.append(do.Drop(conn))
        opening = None if self.fronts is None else self.fronts.openings.pop(conn, None)
        if opening is not None:
            self.handshakes["failed"] += 1
            return actions + self._failed(opening)
        if counted:
            self.unauthorized[counted] += 1
        return actions

    def _failed(self, opening: FrontOpening) -> list[do.Action]:
        """The front did not open a connection: its match key is void, as after any attempt that fails."""
        if opening.parked is not None:
            self.parking.over(opening.parked, served=True)
        key = self.offers.keys.get(opening.matchkey)
        if key is None:
            return []
        self.offers.use(key)
        return self.offers.unused(key.lease, key.epoch)

    def front_gone(self, child: int | None = None) -> list[do.Action]:
        """The front is dead (None: every child is), and with it the connections that it was to open."""
        if self.fronts is None or child not in (None, self.fronts.child):
            return []
        actions = [] if self.members is None else self.members.gone()
        return actions + [action for conn in self.fronts.gone() for action in self._drop_opening(conn)]

    def opened(self, event: ev.Opened) -> list[do.Action]:
        """Admit or refuse a client that has greeted. With a tracker it needs one of this server's match keys.

        Under the plain key, every client from a proxy is admitted: the proxy has matched it with this server.
        """
        if event.parked is None:
            known = self.openings.remove(event.conn) is not None
            keyed = self.records.policy.tracked or self.records.policy.pinned
            return self._let_in(event, keyed) if known else []
        connection = self.parking.connections.pop(event.parked, None)
        if connection is None or self.records.stopping:
            return [do.Drop(event.conn)]
        return self._let_in(event, connection.key != self.records.policy.key, connection)

    def _let_in(self, event: ev.Opened, keyed: bool, parked: ParkedConnection | None = None) -> list[do.Action]:
        if event.serve is not None and event.role == CLIENT:
            return self._visit(event, event.serve, parked)
        if self._of_front(event):
            return self._to_front(event, self.records.policy.front, self.records.policy.front_seed, parked)
        hold = self.slots.held_as(event.key) if event.role == CLIENT and event.session == SESSION else None
        if hold is not None and hold.child is not None:
            if parked is not None:
                self.parking.over(parked, served=True)
            return [do.Attach(event.conn, hold.child, event.peer)]
        key = self._key(event.key) if keyed else None
        in_clear = key is not None and key.seed != "" and same(key.matchkey, event.key)
        refusal = self._refusal(event, key, keyed)
        if not refusal and key is not None and in_clear and key.taken_at is not None and not key.plain:
            refusal = IN_CLEAR  # whoever has heard it could use it now: the key is void
        if refusal:
            if refusal in NOT_LET_IN:
                self.unauthorized[NOT_LET_IN[refusal]] += 1
            how = "version" if event.session not in (None, SESSION) else "mismatch"
            actions = [warning(event.peer, f"{event.peer} refused: {refusal}"), do.Refuse(event.conn, how)]
            if parked is not None:
                self.parking.over(parked, served=False)
            if key is not None:
                self._use(key)
                actions += self.offers.unused(key.lease, key.epoch)
            return actions
        if key is not None and key.seed and not in_clear and self.fronts is not None and self._needs_front(event):
            key.held = True
            return self._to_front(event, key.matchkey, key.seed, parked)
        return self._admit(event, key, parked, in_clear=in_clear)

    def _of_front(self, event: ev.Opened) -> bool:
        """Whether a client says the public name of those of deployed modules."""
        ours = event.role == CLIENT and event.session == SESSION
        return ours and bool(self.records.policy.front) and same(self.records.policy.front, event.key)

    def _to_front(self, event: ev.Opened, matchkey: str, seed: str, parked: ParkedConnection | None) -> list[do.Action]:
        assert self.fronts is not None, "it is there wherever sessions are encrypted"
        self.fronts.openings[event.conn] = FrontOpening(event, matchkey, seed, parked)
        return self._await_opening(event.conn, event.peer, named=True)

    def _needs_front(self, event: ev.Opened) -> bool:
        """Whether another process than the session's ends TLS: it cannot, or which process it is to be is said inside.

        A standing key is for sessions and deployed modules alike.
        """
        return event.session is None or bool(self.records.policy.standing and self.deployments is not None)

    def secured(self, event: ev.Secured) -> list[do.Action]:
        """The front has opened a connection: admit its client, as if it had said in the clear what it has said inside.

        Meanwhile its match key may have become void.
        """
        opening = None if self.fronts is None else self.fronts.openings.pop(event.conn, None)
        if opening is None or self.openings.remove(event.conn) is None:
            return [do.Drop(event.conn)]
        self.handshakes["done"] += 1
        if self.members is not None and opening.matchkey == self.records.policy.front:
            if opening.parked is not None:
                self.parking.over(opening.parked, served=True)
            return self.members.arrived(event, opening.opened.peer)
        peer, role, said = opening.opened.peer, opening.opened.role, opening.opened.key
        inner = ev.Opened(event.now, event.conn, peer, role, said, event.session, event.serve, event.timeout_s)
        standing = bool(self.records.policy.standing)
        if event.serve is not None and standing and self.deployments is not None:
            return self.deployments.visit(event.conn, peer, event.serve)
        key = MatchKey(opening.matchkey) if standing else self.offers.keys.get(opening.matchkey)
        refusal = self._refusal(inner, key, True) or ("" if event.serve is None else "its key is for a session")
        if refusal or key is None:
            line = warning(peer, f"{peer} refused: {refusal}")
            return [line, do.Refuse(event.conn, "mismatch"), *self._failed(opening)]
        key.seed = ""  # TLS has ended
        return self._admit(inner, key, opening.parked, secured=True)

    def _admit(
        self, event: ev.Opened, key: MatchKey | None, parked: ParkedConnection | None, *, in_clear: bool = False,
        secured: bool = False,
    ) -> list[do.Action]:  # fmt: skip
        session = SessionRecord(event.conn, event.peer, RPCSYS if event.session else TVM, parked)
        if key is not None and in_clear:
            key.seed, session.clear = "", not key.plain
        if key is None or not key.seed:  # else anybody could have put it into the greeting
            session.limit(event.timeout_s)
        if key is not None:
            session.matchkey, session.seed = key.matchkey, key.seed
            session.pinned = key.matchkey if key.seed else ""
            session.encrypted = secured or bool(key.seed)
            if self.offers.may_precede_its_lease(key):
                session.early_until = event.now + EARLY_S
            session.leased(key.lease, key.epoch, key.limit_s, key.longest_s, key.code)
            self._use(key)
        why = "" if session.early_until is not None else self.tracker.unfit(session)
        if why:
            if parked is not None:
                self.parking.over(parked, served=False)
            return self.tracker.refused(session, why)
        self.slots.waiting.append(session)
        return []

    def _visit(self, event: ev.Opened, name: str, parked: ParkedConnection | None) -> list[do.Action]:
        """Pass on a client that needs no slot: it calls a deployed module, or deploys one."""
        if parked is not None:
            self.parking.over(parked, served=True)
        if event.session != SESSION:
            return [do.Refuse(event.conn, "version")]
        if self.records.policy.pinned and not self.records.lab_open:
            self.unauthorized["clear"] += 1
            return [do.TurnAway(event.conn, "ServerRefused", NOT_CLEAR, True)]
        if self.deployments is None:
            return [do.TurnAway(event.conn, "ServerRefused", NOT_DEPLOYED, True)]
        return self.deployments.visit(event.conn, event.peer, name)

    def _key(self, said: str) -> MatchKey | None:
        """The match key for what a client says in the clear."""
        policy = self.records.policy
        if not policy.standing:
            return self.offers.find(said)
        found = same(public_name(policy.standing), said)
        return MatchKey(policy.standing, policy.standing_seed) if found else None

    def _use(self, key: MatchKey) -> None:
        if not self.records.policy.standing:
            self.offers.use(key)

    def _refusal(self, event: ev.Opened, key: MatchKey | None, keyed: bool) -> str:
        """Why a client is refused; empty if it is admitted."""
        policy = self.records.policy
        if self.slots.processes.unclean:
            return "the board is not clean"
        if event.role != CLIENT:
            return "it is a server, not a client; servers connect to a proxy or a tracker"
        if key is None and (keyed or not (policy.proxies or same(event.key, policy.key))):
            return NOT_FREE
        if len(self.slots.waiting) >= MAX_WAITING:
            return f"{MAX_WAITING} clients are waiting already"
        if event.session not in (None, SESSION):
            return f"it speaks {event.session}, this server {SESSION}"
        if event.session is None and not policy.tvm:
            return "it speaks TVM's protocol, and this server does not (it runs with --tvm off or without tvm)"
        return ""

    def hung_up(self, event: ev.HungUp) -> list[do.Action]:
        """Handle the hang-up of a client that has greeted."""
        for session in self.slots.waiting:
            if session.conn == event.conn:
                self.slots.waiting.remove(session)
                return [do.Drop(event.conn), *self.tracker.report_end(session, "lost")]
        actions = None if self.members is None else self.members.hung_up(event.conn)
        if actions is None and self.deployments is not None:
            actions = self.deployments.hung_up(event.conn)
        return self.slots.hung_up(event.conn) if actions is None else actions

    def stop(self) -> list[do.Action]:
        """Stop listening, and drop all clients that have no session yet."""
        waiting, self.slots.waiting = self.slots.waiting, []
        dropped = [*self.openings.all(), *(session.conn for session in waiting)]
        self.openings = Openings(MAX_OPENINGS)
        if self.fronts is not None:
            self.fronts.openings.clear()
        actions: list[do.Action] = [do.StopListening(), *self.parking.close(), *map(do.Drop, dropped)]
        actions += [] if self.members is None else self.members.stop()
        actions += self.offers.abandon()
        return actions + [each for session in waiting for each in self.tracker.report_end(session, "unused")]

    def deadline(self) -> float | None:
        return earliest([self.openings.deadline(), *(session.early_until for session in self.slots.waiting)])

    def tick(self) -> list[do.Action]:
        """Drop connections whose greeting is late, and end the wait for late tracker messages."""
        actions: list[do.Action] = []
        for conn in self.openings.late(self.records.now):
            actions += self._drop_opening(conn, "silent", "its greeting is not whole in time")
        for session in [*self.slots.waiting]:
            if session.early_until is not None and self.records.now >= session.early_until:
                session.early_until = None
                why = self.tracker.unfit(session)
                if why:
                    self.slots.waiting.remove(session)
                    actions += self.tracker.refused(session, why)
        return actions
