"""How clients come in: strangers until they have greeted, visitors until they have a slot, or are turned away.

The part of :class:`rpcsys.server.supervisor.state.State` that knows of greetings.
"""

from __future__ import annotations

from rpcsys.server.sandbox.messages import RPCSYS, TVM
from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.offers import Key
from rpcsys.server.supervisor.parking import Paired, Place
from rpcsys.server.supervisor.policy import Policy
from rpcsys.server.supervisor.sessions import Session
from rpcsys.server.supervisor.tracker import Tracked
from rpcsys.wire.handshake import CLIENT, SESSION
from rpcsys.wire.keys import same

HANDSHAKE_S = 8.0
"""From a connection to its whole greeting: clients send it at once. Well within the 10 s that are promised."""

EARLY_S = 2.0
"""How long a client that is faster than the tracker's word about its lease is held back."""

MAX_OPENINGS = 256
"""Strangers that have not said a greeting. Each costs a descriptor; of more, the oldest is dropped."""

MAX_VISITORS = 64
"""Clients that wait for a slot of a server without a tracker."""

NOT_FREE = "its key is not free here (used already, renewed, or another server's)"


class Visited(Tracked):
    """``openings``: strangers, until when they must have greeted, and where they are from."""

    def __init__(self, policy: Policy) -> None:
        super().__init__(policy)
        self.openings: dict[int, tuple[float, str]] = {}

    def _accepted(self, event: ev.Accepted) -> list[do.Action]:
        if self.stopping:
            return [do.Drop(event.conn)]
        actions: list[do.Action] = []
        if len(self.openings) >= MAX_OPENINGS:
            actions = self._drop_opening(next(iter(self.openings)))
        self.openings[event.conn] = event.now + HANDSHAKE_S, event.peer
        return actions

    def _broken(self, event: ev.Broken) -> list[do.Action]:
        _, peer = self.openings.get(event.conn, (0.0, ""))
        actions = self._drop_opening(event.conn)
        return [_warning(peer, f"connection from {peer} dropped: {event.why}"), *actions] if event.why else actions

    def _drop_opening(self, conn: int) -> list[do.Action]:
        return [] if self.openings.pop(conn, None) is None else [do.Drop(conn)]

    def _opened(self, event: ev.Opened) -> list[do.Action]:
        if self.openings.pop(event.conn, None) is None:
            return []
        return self._let_in(event, self.policy.tracked)

    def _paired(self, event: Paired) -> list[do.Action]:
        """A proxy has joined a client to a place of ours. Under the plain key, any client is right: the proxy knows which."""
        place = self.parking.paired(event.place)
        if place is None or self.stopping:
            return [do.Drop(event.conn)]
        return self._let_in(event, place.key != self.policy.key, place)

    def _let_in(self, event: ev.Opened | Paired, keyed: bool, place: Place | None = None) -> list[do.Action]:
        """A client has greeted; ``keyed``: it needs a match key of ours."""
        if event.serve is not None and event.role == CLIENT:
            return self._visit(event, event.serve, place)
        key = self.offers.find(event.key) if keyed else None
        refusal = self._refusal(event, key, keyed)
        if refusal:
            how = "version" if event.session not in (None, SESSION) else "mismatch"
            actions = [_warning(event.peer, f"{event.peer} refused: {refusal}"), do.Refuse(event.conn, how)]
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

    def _visit(self, event: ev.Opened | Paired, name: str, place: Place | None) -> list[do.Action]:
        """A client has greeted that wants no slot: a deployed module, or to deploy one."""
        if place is not None:
            self.parking.over(event.now, place, served=True)
        if event.session != SESSION:
            return [do.Refuse(event.conn, "version")]
        if self.hosting is None:
            return [do.Refuse(event.conn, "deploys nothing")]
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
            return "it speaks TVM's protocol, and this server does not (it runs with --tvm off or without tvm)"
        return ""

    def _wasted(self, key: Key) -> list[do.Action]:
        self.offers.use(key)
        return [] if key.lease is None else self.offers.report(do.Ended(key.lease, key.epoch, "unused"))

    def _hung_up(self, event: ev.HungUp) -> list[do.Action]:
        for visitor in self.visitors:
            if visitor.conn == event.conn:
                self.visitors.remove(visitor)
                return [do.Drop(event.conn), *self._report_end(visitor, "lost")]
        if self.hosting is not None:
            actions = self.hosting.hung_up(event.now, event.conn)
            if actions is not None:
                return actions
        session = self.board.by_conn(event.conn)
        return [] if session is None else self.board.hung_up(event.now, session)

    # Time

    def _next_visitor(self) -> float | None:
        """When :meth:`_tick_visitors` has something to do."""
        held_back = (visitor.early_until for visitor in self.visitors if visitor.early_until is not None)
        return min((*(until for until, _ in self.openings.values()), *held_back), default=None)

    def _tick_visitors(self, now: float) -> list[do.Action]:
        actions: list[do.Action] = []
        for conn, (until, peer) in list(self.openings.items()):
            if now >= until:
                text = f"connection from {peer} dropped: no greeting within {HANDSHAKE_S:g} s"
                actions.append(_warning(peer, text))
                actions += self._drop_opening(conn)
        for visitor in self.visitors:
            if visitor.early_until is not None and now >= visitor.early_until:
                visitor.early_until = None
        return actions


def _warning(peer: str, text: str) -> do.Action:
    """A line about a stranger at ``peer``, ``host:port``."""
    return do.Log("warning", text, stranger=peer.rpartition(":")[0] or peer)
