"""Admission of clients: a client connects, greets, and then waits for a slot or is refused. Decisions only."""

from __future__ import annotations

from rpcsys.server.sandbox.messages import RPCSYS, TVM
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.offers import MatchKey
from rpcsys.server.supervisor.parking import ParkedConnection
from rpcsys.server.supervisor.records import earliest
from rpcsys.server.supervisor.session_record import SessionRecord
from rpcsys.server.supervisor.tracker import TrackerSide
from rpcsys.wire.handshake import CLIENT, SESSION
from rpcsys.wire.keys import same

#: Longest time from a connection to its whole greeting, which clients send at once. The documented bound is 10 s.
HANDSHAKE_S = 8.0
EARLY_S = 2.0  # longest wait of a client that arrives before the tracker's message about its lease
MAX_OPENINGS = 256  # connections without a greeting; each costs a descriptor. One more drops the oldest
MAX_WAITING = 64  # clients that wait for a slot of a server without a tracker
NOT_DEPLOYED = (
    "this server has no deployed modules: start it with --deploy DIR, then type: rpcsys deploy FILE --to HOST:PORT"
)
NOT_FREE = "its key is not free here (used already, renewed, or another server's)"


class ClientAdmission:
    """Decides which clients get a session, a deployed module, or a refusal."""

    def __init__(self, tracker: TrackerSide) -> None:
        self.records, self.tracker, self.deployments = tracker.records, tracker, tracker.deployments
        self.slots, self.offers, self.parking = tracker.slots, tracker.offers, tracker.parking
        #: Connections without a greeting: the time by which it must be whole, and the peer's address.
        self.openings: dict[int, tuple[float, str]] = {}

    def accepted(self, event: ev.Accepted) -> list[do.Action]:
        if self.records.stopping:
            return [do.Drop(event.conn)]
        actions = self._drop_opening(next(iter(self.openings))) if len(self.openings) >= MAX_OPENINGS else []
        self.openings[event.conn] = event.now + HANDSHAKE_S, event.peer
        return actions

    def broken(self, event: ev.Broken) -> list[do.Action]:
        _, peer = self.openings.get(event.conn, (0.0, ""))
        actions = self._drop_opening(event.conn)
        return [_warning(peer, f"connection from {peer} dropped: {event.why}"), *actions] if event.why else actions

    def _drop_opening(self, conn: int) -> list[do.Action]:
        return [] if self.openings.pop(conn, None) is None else [do.Drop(conn)]

    def opened(self, event: ev.Opened) -> list[do.Action]:
        """Admit or refuse a client that has greeted. With a tracker it needs one of this server's match keys.

        Under the plain key, every client from a proxy is admitted: the proxy has matched it with this server.
        """
        if event.parked is None:
            known = self.openings.pop(event.conn, None) is not None
            return self._let_in(event, self.records.policy.tracked) if known else []
        connection = self.parking.connections.pop(event.parked, None)
        if connection is None or self.records.stopping:
            return [do.Drop(event.conn)]
        return self._let_in(event, connection.key != self.records.policy.key, connection)

    def _let_in(self, event: ev.Opened, keyed: bool, parked: ParkedConnection | None = None) -> list[do.Action]:
        if event.serve is not None and event.role == CLIENT:
            return self._visit(event, event.serve, parked)
        key = self.offers.find(event.key) if keyed else None
        refusal = self._refusal(event, key, keyed)
        if refusal:
            how = "version" if event.session not in (None, SESSION) else "mismatch"
            actions = [_warning(event.peer, f"{event.peer} refused: {refusal}"), do.Refuse(event.conn, how)]
            if parked is not None:
                self.parking.over(parked, served=False)
            if key is not None:
                self.offers.use(key)
                actions += self.offers.unused(key.lease, key.epoch)
            return actions
        session = SessionRecord(event.conn, event.peer, RPCSYS if event.session else TVM, parked)
        session.limit(event.timeout_s)
        if key is not None:
            session.matchkey = key.matchkey
            if self.offers.may_precede_its_lease(key):
                session.early_until = event.now + EARLY_S
            session.leased(key.lease, key.epoch, key.limit_s, key.longest_s)
            self.offers.use(key)
        self.slots.waiting.append(session)
        return []

    def _visit(self, event: ev.Opened, name: str, parked: ParkedConnection | None) -> list[do.Action]:
        """Pass on a client that needs no slot: it calls a deployed module, or deploys one."""
        if parked is not None:
            self.parking.over(parked, served=True)
        if event.session != SESSION:
            return [do.Refuse(event.conn, "version")]
        if self.deployments is None:
            return [do.TurnAway(event.conn, "ServerRefused", NOT_DEPLOYED, True)]
        return self.deployments.visit(event.conn, event.peer, name)

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
        actions = None if self.deployments is None else self.deployments.hung_up(event.conn)
        return self.slots.hung_up(event.conn) if actions is None else actions

    def stop(self) -> list[do.Action]:
        """Stop listening, and drop all clients that have no session yet."""
        waiting, self.slots.waiting = self.slots.waiting, []
        dropped = [*self.openings, *(session.conn for session in waiting)]
        self.openings.clear()
        actions: list[do.Action] = [do.StopListening(), *self.parking.close(), *map(do.Drop, dropped)]
        actions += self.offers.abandon()
        return actions + [each for session in waiting for each in self.tracker.report_end(session, "unused")]

    def deadline(self) -> float | None:
        openings = (until for until, _ in self.openings.values())
        return earliest([*openings, *(session.early_until for session in self.slots.waiting)])

    def tick(self) -> list[do.Action]:
        """Drop connections whose greeting is late, and end the wait for late tracker messages."""
        actions: list[do.Action] = []
        for conn, (until, peer) in list(self.openings.items()):
            if self.records.now >= until:
                text = f"connection from {peer} dropped: no greeting within {HANDSHAKE_S:g} s"
                actions += [_warning(peer, text), *self._drop_opening(conn)]
        for session in self.slots.waiting:
            if session.early_until is not None and self.records.now >= session.early_until:
                session.early_until = None
        return actions


def _warning(peer: str, text: str) -> do.Action:
    """A log line about the client at ``peer``, ``host:port``."""
    return do.Log("warning", text, stranger=peer.rpartition(":")[0] or peer)
