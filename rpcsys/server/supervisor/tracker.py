"""What a server does for its tracker: the link, leases from their hand-out to their end, health; and its places at proxies.

The part of :class:`rpcsys.server.supervisor.state.State` that knows of trackers.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from rpcsys.server.supervisor import actions as do
from rpcsys.server.supervisor import events as ev
from rpcsys.server.supervisor.board import Board
from rpcsys.server.supervisor.health import CommandDone, Health, TellHealth
from rpcsys.server.supervisor.offers import Offers
from rpcsys.server.supervisor.parking import Answering, KeyMade, Parked, Parking, Unparked
from rpcsys.server.supervisor.policy import Policy
from rpcsys.server.supervisor.sessions import Session
from rpcsys.wire.control import UNUSED

if TYPE_CHECKING:
    from rpcsys.server.supervisor.deployments import Hosting

DEPLOYED_PLACES = 4
"""Connections that wait at each proxy for clients of deployed modules: others follow as soon as these have one."""

NOTE_EVERY_S = 10.0
"""How often it is logged that the tracker hands out what is not there: it may do so without end."""

STOPPING = "it is being stopped"
"""What a tracker is told so that it offers nothing of a server that only lets its sessions end."""


class Tracked:
    """A board, what is offered of it, and the clients that wait for a slot."""

    def __init__(self, policy: Policy) -> None:
        self.policy = policy
        self.board = Board(policy.slots, policy.import_s, policy.memory, policy.spares, policy.quiet_s)
        self.offers = Offers(len(policy.proxies))
        self.parking = Parking(policy.key, policy.proxies)
        self.health = Health(policy.health_check, policy.recover)
        self.hosting: Hosting | None = None
        if policy.deploy:
            from rpcsys.server.supervisor.deployments import Hosting

            self.hosting = Hosting(self.board.next_child)
        self.stopping = False
        self.visitors: list[Session] = []
        self._told_problem = ""
        self._told_deployed: tuple[Any, ...] = ()
        self._note_at = 0.0

    def _report_end(self, session: Session, outcome: str) -> list[do.Action]:
        if session.lease is None:
            return []
        ended = do.Ended(session.lease, session.epoch, outcome, session.cleaned, session.removed, session.fault)
        return self.offers.report(ended)

    # The link

    def _link_up(self, event: ev.LinkUp) -> list[do.Action]:
        running = tuple(
            (session.lease, session.epoch, event.now - session.started)
            for session in self.board.sessions.values()
            if session.lease is not None and session.state == "running"
        )
        return self.offers.up(event.now, event.ours, running)

    def _link_down(self, event: ev.LinkDown) -> list[do.Action]:
        for visitor in self.visitors:
            visitor.early_until = None
        return self.offers.down(event.now, event)

    def _registered(self, event: ev.Registered) -> list[do.Action]:
        self._told_problem = ""  # who registers is taken to be well
        self._told_deployed = ()
        return self.offers.registered(event.now)

    def _offered(self, event: ev.Offered) -> list[do.Action]:
        self.offers.offered(event.matchkey)
        return []

    def _key_made(self, event: KeyMade) -> list[do.Action]:
        self.offers.offered(event.matchkey)
        return []

    def _pending(self, event: ev.Pending) -> list[do.Action]:
        self.offers.pending(event.now, event.matchkeys)
        return []

    # Leases

    def _taken(self, event: ev.Taken) -> list[do.Action]:
        if self.offers.taken(event):
            return []
        for session in [*self.visitors, *self.board.sessions.values()]:
            if session.matchkey == event.matchkey and session.lease is None:
                return self._leased(session, event)
        actions = self.offers.report(do.Ended(event.lease, event.epoch, "unused"))
        if event.now < self._note_at:
            return actions
        self._note_at = event.now + NOTE_EVERY_S
        text = "the tracker has handed out a match key that is not in use any more"
        return [do.Log("warning", text), *actions]

    def _leased(self, session: Session, event: ev.Taken) -> list[do.Action]:
        """The tracker's word came after its client."""
        session.leased(event.lease, event.epoch, event.limit_s)
        session.early_until = None
        if session.state != "running":
            return []
        session.due = session.overdue_at()
        return self.offers.report(do.Started(event.lease, event.epoch, session.peer))

    def _limit(self, event: ev.Limit) -> list[do.Action]:
        """The lease was renewed. Before its session is opened there is nothing to extend but the limit."""
        if self.offers.limit(event.lease, event.epoch, event.limit_s):
            return []
        session = self._holder(event)
        return [] if session is None else self._extend(session, event)

    def _holder(self, event: ev.Limit | ev.EndLease) -> Session | None:
        """The client that has come with a lease."""
        for session in [*self.visitors, *self.board.sessions.values()]:
            if (session.lease, session.epoch) == (event.lease, event.epoch):
                return session
        return None

    def _extend(self, session: Session, event: ev.Limit) -> list[do.Action]:
        session.renewed = True
        running = session.state == "running"
        passed = event.now - session.started if running else 0.0
        session.limit_s = None if event.limit_s is None else passed + event.limit_s
        if not running or session.child is None:
            return []
        session.due = session.overdue_at()
        until = None if event.limit_s is None else event.now + event.limit_s
        return [do.Extend(session.child, until)]

    def _end_lease(self, event: ev.EndLease) -> list[do.Action]:
        """The tracker ends a lease, or takes back an unused one. It always hears of the end, even if it has heard before."""
        self.offers.end(event.lease, event.epoch)
        session = self._holder(event)
        if session is None:
            return self.offers.report(do.Ended(event.lease, event.epoch, "unused"))
        if event.reason == UNUSED:
            return []
        if session in self.visitors:
            self.visitors.remove(session)
            return [do.Drop(session.conn), *self._report_end(session, "ended")]
        line = f"session {session.number} is ended by the tracker: {event.reason}"
        return [do.Log("info", line), *self.board.end(event.now, session, "ended")]

    def _confirmed(self, event: ev.Confirmed) -> list[do.Action]:
        self.offers.confirmed(event.lease, event.epoch)
        return []

    # Health, and what follows from it

    def _command_done(self, event: CommandDone) -> list[do.Action]:
        return self.health.done(event.now, event)

    def _offer(self, now: float) -> list[do.Action]:
        """Offer what is free, if the board is fit; tell the tracker if it is not."""
        actions = self.health.settle(now, idle=not self.board.sessions)
        actions += self._tell_problem()
        if self.health.fit:
            held = sum(bool(visitor.matchkey) for visitor in self.visitors)
            actions += self.offers.offer(self.board.free - held)
        elif self.health.problem and not self.offers.ours:  # ours was told, and holds it back
            actions += self.offers.withdraw(now)
        return actions + self.parking.settle(now, self._places(now))

    def _places(self, now: float) -> list[tuple[int, str]]:
        """Where connections should wait at proxies, and under which key."""
        if not self.policy.proxies:
            return []
        places = [(key.proxy, key.matchkey) for key in self.offers.keys.values()]
        free = self.board.free - len(self.visitors) if self.health.fit else 0
        if self.hosting is not None and self.hosting.catalogue and self._tracker_is_ours():
            numbers = range(len(self.policy.proxies))
            places += [(proxy, self.policy.deployed_key) for proxy in numbers] * DEPLOYED_PLACES
        return places + [(proxy, self.policy.key) for proxy in self.offers.plain_at(now)] * max(free, 0)

    # Places at proxies

    def _parked(self, event: Parked) -> list[do.Action]:
        actions = self.parking.parked(event.now, event.place)
        place = self.parking.places.get(event.place)
        return actions if place is None else actions + self.offers.parked(place.key)

    def _answering(self, event: Answering) -> list[do.Action]:
        self.parking.answering(event.now, event.place)
        return []

    def _unparked(self, event: Unparked) -> list[do.Action]:
        return self.parking.lost(event)

    def _tell_problem(self) -> list[do.Action]:
        problem = STOPPING if self.stopping else self.board.unclean or self.health.problem
        if problem == self._told_problem or not self._tracker_is_ours():
            return []
        self._told_problem = problem
        return [TellHealth(problem)]

    def _tracker_is_ours(self) -> bool:
        """Whether a tracker listens that knows more than TVM's."""
        return self.offers.link == "up" and bool(self.offers.ours)

    def _announce_deployed(self) -> list[do.Action]:
        """Keep the tracker's word on deployed modules up to date."""
        if self.hosting is None or not self._tracker_is_ours():
            return []
        actions = self.hosting.announce(self._told_deployed)
        if actions:
            self._told_deployed = actions[0].modules
        return list(actions)

    def _take_leave(self) -> list[do.Action]:
        """The server is being stopped. A tracker that is owed the ends of leases hears of them before the link closes."""
        leased = any(session.lease is not None for session in self.board.sessions.values())
        return self._tell_problem() if leased or self.offers.owing() else self.offers.close()

    def _turn_away(self, now: float) -> list[do.Action]:
        """Nobody gets a board that is not clean."""
        waiting, self.visitors = self.visitors, []
        actions: list[do.Action] = []
        if self.policy.tracked:
            actions = self.offers.withdraw(now) + self._tell_problem() + self.parking.close()
        for visitor in waiting:
            actions += [do.Refuse(visitor.conn, "mismatch"), *self._report_end(visitor, "unused")]
        return actions
