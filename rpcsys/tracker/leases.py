"""Leases, from the moment after the grant to their end.

Our servers say when a session opens and ends; a lease whose server is away for a moment goes on, because its
session does. TVM's servers say nothing during a session: their lease ends with their next offer or with their
connection, and, if they went on asking for match keys meanwhile, was never used. Behind TVM's proxy the oldest
lease of the key is taken to be the one that ended.

A lease carries an epoch, so that a late message about an old one changes nothing.
"""

from __future__ import annotations

from rpcsys.tracker.entities import Lease, Peer, Server
from rpcsys.tracker.events import Action, Record, Send
from rpcsys.tracker.health import Health
from rpcsys.tracker.lease_states import AWAY, ENDED, OPENED, OURS, RUNNING, SERVER_BACK, SERVER_LEFT, SILENT
from rpcsys.tracker.records import Records
from rpcsys.tracker.replies import done, refusal
from rpcsys.tracker.scheduler import least
from rpcsys.wire import control
from rpcsys.wire.control import Running

AWAY_S = 10.0
"""How long a lease outlives its server's connection: servers are back within 5 s, if they live."""

LONGEST_S = 30 * 86400.0
"""A session that the tracker knows by its server's word alone counts as no longer than this: it goes into sums."""

RENEWAL_S, POLLING_S = 6.0, 3.5
"""A TVM server makes a new match key 8 s after the old one was taken, if nobody came, and asks every 2 s until then."""

_LEFT = "its client's connection to the tracker ended before it had opened a session"

_SENTENCES = {
    "closed": "its client closed it",
    "lost": "its client is gone",
    "timeout": "its time was over",
    "memory": "its session wanted more memory than the server allows",
    "crashed": "its session's process died",
    "unused": "nobody opened a session",
    "ended": "it was ended",
}


class Leases:
    """Begins and ends leases."""

    def __init__(self, records: Records, health: Health) -> None:
        self.records = records
        self.health = health

    def over(
        self, lease: Lease, outcome: str, reason: str = "", fault: str = "", cleaned: object = None
    ) -> list[Action]:
        """A lease is over."""
        now = self.records.now
        self.records.remove_lease(lease)
        details = {
            "lease": lease.lease,
            "epoch": lease.epoch,
            "key": lease.key,
            "server": lease.server_name,
            "user": lease.user,
            "address": lease.address,
            "since": lease.since,
            "held_s": round(now - lease.since, 6),
            "outcome": outcome,
            "reason": lease.reason or reason or _SENTENCES[outcome],
            "fault": fault,
            "cleaned": cleaned or {},
        }
        actions: list[Action] = [Record(now, "over", details)]
        if fault:
            actions += self.health.failed(lease.server_name, fault)
        elif lease.opened and outcome != "unused":
            actions += self.health.worked(lease.server_name)
        lease.move(ENDED)
        return actions

    # What our servers say.

    def lease_started(self, peer: Peer, message: control.LeaseStarted) -> list[Action]:
        """A server of ours says that a session was opened."""
        lease = self._reported(peer, message.lease, message.epoch)
        begun = [] if lease is None or lease.opened else self._begin(lease, message.peer)
        return [done(peer, message.id), *begun]

    def _begin(self, lease: Lease, opener: str) -> list[Action]:
        """Its session was opened."""
        lease.move(OPENED)
        lease.started_at = self.records.now
        if lease.reason == _LEFT:
            lease.reason = ""  # not before: the news of the session took longer than the connection's end
        self.records.missed.pop(lease.address, None)
        return [Record(self.records.now, "begun", {"lease": lease.lease, "peer": opener})]

    def lease_ended(self, peer: Peer, message: control.LeaseEnded) -> list[Action]:
        """A server of ours says that a session is over, and everything of it gone."""
        lease = self._reported(peer, message.lease, message.epoch)
        if lease is None:
            return [done(peer, message.id)]
        cleaned = dict(message.cleaned)
        ended = self.over(lease, message.outcome, fault=message.fault, cleaned=cleaned)
        return [done(peer, message.id), *ended]

    def _reported(self, peer: Peer, lease: str, epoch: int) -> Lease | None:
        """The lease that a server speaks of, if it is one of its own."""
        found = self.records.leases.get(lease)
        if found is None or found.epoch != epoch or peer.server is None or not _is_of(found, peer, peer.server):
            return None
        if found.state in AWAY:
            self._attach(peer, found)  # it had no session when its server left
        return found

    def go_on(self, peer: Peer, server: Server, running: Running) -> None:
        """A session that went on while its server had no tracker. What is another server's is left to that one."""
        lease = self.records.leases.get(running.lease)
        began = self.records.now - min(running.since_s, LONGEST_S)
        if lease is not None:
            if lease.epoch == running.epoch and _is_of(lease, peer, server):
                self._attach(peer, lease)
                if not lease.opened:
                    lease.move(OPENED)
                    lease.started_at = max(began, lease.since)
            return
        if self._may_grant(running) or not self.records.believe(running.epoch):
            return
        unknown = Lease(
            lease=running.lease,
            epoch=running.epoch,
            key=server.key,
            server=peer.conn,
            server_name=server.name,
            holder=None,
            user="",
            address="",
            since=began,
            limit_s=None,
            state=RUNNING,
            started_at=began,
            identity=server.identity,
        )
        self.records.add_lease(unknown)

    def _may_grant(self, running: Running) -> bool:
        """Whether a name is one that a lease of this run may get some day."""
        instance = self.records.instance
        ours = running.lease.startswith(f"{instance}-")
        return ours and (running.lease != f"{instance}-{running.epoch}" or running.epoch > self.records.epoch)

    def _heard_of(self, lease: Lease) -> bool:
        """Whether a lease's server has said that it knows of it."""
        server = None if lease.server is None else self.records.peers.get(lease.server)
        return server is not None and server.heard >= lease.told

    def _attach(self, peer: Peer, lease: Lease) -> None:
        before = None if lease.server is None else self.records.peers.get(lease.server)
        if before is not None:
            before.serving.pop(lease.lease, None)
        if lease.state in AWAY:
            lease.move(SERVER_BACK)
            self.records.deadlines.drop(("away", lease.lease))
        lease.server, lease.server_name, lease.told = peer.conn, peer.name, 0
        peer.serving[lease.lease] = lease

    # What becomes of leases whose server is gone.

    def detach(self, peer: Peer) -> list[Action]:
        """A server's connection is gone. Its sessions may live on, if it is one of ours."""
        actions: list[Action] = []
        for lease in list(peer.serving.values()):
            if lease.how is not OURS:
                actions += self.over(lease, "lost", "the server's connection ended")
                continue
            del peer.serving[lease.lease]
            lease.server = None
            lease.move(SERVER_LEFT)
            self.records.deadlines.set(("away", lease.lease), self.records.now + AWAY_S)
        return actions

    def away(self, name: str) -> list[Action]:
        """A server has not come back in time."""
        lease = self.records.leases[name]
        # Whatever was to end it before, this did.
        lease.reason = f"its server {lease.server_name} has been gone for {AWAY_S:g} s"
        return self.over(lease, "lost")

    # What ends a lease.

    def end(self, lease: Lease, reason: str, why: str = "") -> list[Action]:
        """Have the server end a lease, which is over when the server says so. TVM's servers cannot be told.

        One that does not answer may never say so: with it, a lease that was not opened is over now.
        """
        server = None if lease.server is None else self.records.peers[lease.server]
        if server is None or server.server is None:
            return []
        lease.reason = lease.reason or why
        order = control.End(server.ask(), lease.lease, lease.epoch, reason)
        told: list[Action] = [Send(server.conn, order.to_json())]
        condition = self.records.condition(server)
        if lease.opened or condition is None or not condition.silent:
            return told
        return [*told, *self.over(lease, "unused")]

    def abandoned(self, lease: Lease) -> list[Action]:
        """The connection of the client that holds it is gone. A session that was opened goes on."""
        lease.holder = None
        return [] if lease.opened else self.end(lease, control.UNUSED, _LEFT)

    # What clients and operators say.

    def release(self, peer: Peer, message: control.Release) -> list[Action]:
        """A client gives a lease back."""
        lease = self._own(peer, message.lease)
        if lease is None:
            return [done(peer, message.id)]
        blamed = message.problem and not lease.opened and self._heard_of(lease)
        missed = self.health.unreached(lease, message.problem) if blamed else []
        why = message.problem or "its client gave it back"
        return [*self.end(lease, "released", why), *missed, done(peer, message.id)]

    def renew(self, peer: Peer, message: control.Renew) -> list[Action]:
        """A client wants a lease to last longer."""
        lease = self._own(peer, message.lease)
        if lease is None or lease.state in AWAY or lease.how is not OURS:
            problem = f"no lease {message.lease!r} of yours can be renewed: it is over, or its server is away"
            return [refusal(peer, message.id, "BadRequest", problem)]
        actions = self._limit(lease, message.session_timeout or None)
        return [*actions, done(peer, message.id, limit_s=lease.limit_s)]

    def _limit(self, lease: Lease, wanted_s: float | None) -> list[Action]:
        """Let a lease last ``wanted_s`` from now (None: as long as its key allows)."""
        now = self.records.now
        begun = lease.since if lease.started_at is None else lease.started_at
        wanted = None if wanted_s is None else now - begun + wanted_s
        lease.limit_s = least(wanted, self.records.limits.get(lease.key))
        assert lease.server is not None
        server = self.records.peers[lease.server]
        left = None if lease.limit_s is None else max(0.0, begun + lease.limit_s - now)
        order = control.Limit(server.ask(), lease.lease, lease.epoch, left)
        record = Record(now, "limited", {"lease": lease.lease, "limit_s": lease.limit_s})
        return [record, Send(server.conn, order.to_json())]

    def end_lease(self, peer: Peer, message: control.EndLease) -> list[Action]:
        """An operator ends a lease."""
        lease = self.records.leases.get(message.lease)
        if lease is None:
            problem = f"there is no lease {message.lease!r}: see query_tracker leases"
            return [refusal(peer, message.id, "BadRequest", problem)]
        why = f"{peer.who} ended it" + (f": {message.reason}" if message.reason else "")
        told = self.end(lease, "ended", why)
        if not told:
            problem = "its server is away, or is TVM's own, which cannot be told to end a session"
            return [refusal(peer, message.id, "BadRequest", problem)]
        return [*told, done(peer, message.id)]

    def _own(self, peer: Peer, name: str) -> Lease | None:
        """A lease that is the peer's user's, over whatever connection it came."""
        lease = self.records.leases.get(name)
        return lease if lease is not None and lease.user == peer.who else None

    # TVM's servers.

    def offers_again(self, peer: Peer, key: str) -> list[Action]:
        """A TVM server that offers is done with its session; behind a proxy, with the oldest of that key."""
        for lease in peer.serving.values():
            if lease.key == key:
                break
        else:
            return []
        now = self.records.now
        silent = lease.how is SILENT
        asked = silent and lease.polled_at is not None and now - lease.polled_at < POLLING_S
        if asked and now - lease.since >= RENEWAL_S:
            return self.over(lease, "unused", "the server went on waiting: nobody opened a session")
        return self.over(lease, "closed", "the server offers itself again")

    def polled(self, peer: Peer) -> None:
        """A TVM server asks which match keys are left, which it does between sessions only."""
        for lease in peer.serving.values():
            lease.polled_at = self.records.now


def _is_of(lease: Lease, peer: Peer, server: Server) -> bool:
    """Whether a lease is one of a server's: it came by this connection, or by one that is gone, of the same server."""
    if lease.server is not None:
        return lease.server == peer.conn
    same = lease.identity == server.identity if lease.identity else lease.server_name == server.name
    return same and lease.key == server.key
