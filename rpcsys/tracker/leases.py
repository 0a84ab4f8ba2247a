"""Leases, from the moment after the grant to their end.

Our servers say when a session opens and ends; a lease whose server is away for a moment goes on, because its
session does. TVM's servers say nothing during a session: their lease ends with their next offer or with their
connection, and, if they went on asking for match keys meanwhile, was never used. Behind TVM's proxy the oldest
lease of the key is taken to be the one that ended.

A lease carries an epoch, so that a late message about an old one changes nothing.
"""

from __future__ import annotations

from rpcsys.tracker.entities import OURS, SILENT, Lease, Peer, Server
from rpcsys.tracker.events import Action, Record, Send
from rpcsys.tracker.health import Health
from rpcsys.tracker.scheduler import ask, least
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


class Leases(Health):
    """A book in which leases run and end."""

    def over(
        self,
        at: float,
        lease: Lease,
        outcome: str,
        reason: str = "",
        fault: str = "",
        cleaned: object = None,
    ) -> list[Action]:
        """A lease is over."""
        self.remove_lease(at, lease)
        details = {
            "lease": lease.lease,
            "epoch": lease.epoch,
            "key": lease.key,
            "server": lease.server_name,
            "user": lease.user,
            "address": lease.address,
            "since": lease.since,
            "held_s": round(at - lease.since, 6),
            "outcome": outcome,
            "reason": lease.reason or reason or _SENTENCES[outcome],
            "fault": fault,
            "cleaned": cleaned or {},
        }
        actions: list[Action] = [Record(at, "over", details)]
        if fault:
            actions += self.failed(at, lease.server_name, fault)
        elif lease.started and outcome != "unused":
            actions += self.worked(at, lease.server_name)
        return actions

    # What our servers say.

    def started(self, at: float, lease: Lease, opener: str) -> list[Action]:
        """Its session was opened."""
        lease.started, lease.started_at = True, at
        if lease.reason == _LEFT:
            lease.reason = ""  # not before: the news of the session took longer than the connection's end
        self.missed.pop(lease.address, None)
        return [Record(at, "begun", {"lease": lease.lease, "peer": opener})]

    def reported(self, peer: Peer, lease: str, epoch: int) -> Lease | None:
        """The lease that a server speaks of, if it is one of its own."""
        found = self.leases.get(lease)
        if (
            found is None
            or found.epoch != epoch
            or peer.server is None
            or not _is_of(found, peer, peer.server)
        ):
            return None
        if found.server is None:
            self._attach(peer, found)  # it had no session when its server left
        return found

    def go_on(self, at: float, peer: Peer, server: Server, running: Running) -> None:
        """A session that went on while its server had no tracker. What is another server's is left to that one."""
        lease = self.leases.get(running.lease)
        began = at - min(running.since_s, LONGEST_S)
        if lease is not None:
            if lease.epoch == running.epoch and _is_of(lease, peer, server):
                self._attach(peer, lease)
                if not lease.started:
                    lease.started, lease.started_at = True, max(began, lease.since)
            return
        if self._may_grant(running) or not self.believe(at, running.epoch):
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
            started=True,
            started_at=began,
            identity=server.identity,
        )
        self.add_lease(unknown)

    def _may_grant(self, running: Running) -> bool:
        """Whether a name is one that a lease of this run may get some day."""
        ours = running.lease.startswith(f"{self.instance}-")
        return ours and (running.lease != f"{self.instance}-{running.epoch}" or running.epoch > self.epoch)

    def heard_of(self, lease: Lease) -> bool:
        """Whether a lease's server has said that it knows of it."""
        server = None if lease.server is None else self.peers.get(lease.server)
        return server is not None and server.heard >= lease.told

    def _attach(self, peer: Peer, lease: Lease) -> None:
        before = None if lease.server is None else self.peers.get(lease.server)
        if before is not None:
            before.serving.pop(lease.lease, None)
        self.deadlines.drop(("away", lease.lease))
        lease.server, lease.server_name, lease.told = peer.conn, peer.name, 0
        peer.serving[lease.lease] = lease

    # What becomes of leases whose server is gone.

    def detach(self, at: float, peer: Peer) -> list[Action]:
        """A server's connection is gone. Its sessions may live on, if it is one of ours."""
        actions: list[Action] = []
        for lease in list(peer.serving.values()):
            if lease.how != OURS:
                actions += self.over(at, lease, "lost", "the server's connection ended")
                continue
            del peer.serving[lease.lease]
            lease.server = None
            self.deadlines.set(("away", lease.lease), at + AWAY_S)
        return actions

    def away(self, at: float, name: str) -> list[Action]:
        """A server has not come back in time."""
        lease = self.leases[name]
        # Whatever was to end it before, this did.
        lease.reason = f"its server {lease.server_name} has been gone for {AWAY_S:g} s"
        return self.over(at, lease, "lost")

    # What ends a lease.

    def end(self, at: float, lease: Lease, reason: str, why: str = "") -> list[Action]:
        """Have the server end a lease, which is over when the server says so. TVM's servers cannot be told.

        One that does not answer may never say so: with it, a lease that was not opened is over now.
        """
        server = None if lease.server is None else self.peers[lease.server]
        if server is None or server.server is None:
            return []
        lease.reason = lease.reason or why
        order = control.End(ask(server), lease.lease, lease.epoch, reason)
        told: list[Action] = [Send(server.conn, order.to_json())]
        condition = self.condition(server)
        if lease.started or condition is None or not condition.silent:
            return told
        return [*told, *self.over(at, lease, "unused")]

    def abandoned(self, at: float, lease: Lease) -> list[Action]:
        """The connection of the client that holds it is gone. A session that was opened goes on."""
        lease.holder = None
        return [] if lease.started else self.end(at, lease, control.UNUSED, _LEFT)

    def renew(self, at: float, lease: Lease, wanted_s: float | None) -> list[Action]:
        """Let a lease last ``wanted_s`` from now (None: as long as its key allows)."""
        begun = lease.since if lease.started_at is None else lease.started_at
        wanted = None if wanted_s is None else at - begun + wanted_s
        lease.limit_s = least(wanted, self.limits.get(lease.key))
        assert lease.server is not None
        server = self.peers[lease.server]
        left = None if lease.limit_s is None else max(0.0, begun + lease.limit_s - at)
        order = control.Limit(ask(server), lease.lease, lease.epoch, left)
        record = Record(at, "limited", {"lease": lease.lease, "limit_s": lease.limit_s})
        return [record, Send(server.conn, order.to_json())]

    # TVM's servers.

    def offers_again(self, at: float, peer: Peer, key: str) -> list[Action]:
        """A TVM server that offers is done with its session; behind a proxy, with the oldest of that key."""
        for lease in peer.serving.values():
            if lease.key == key:
                break
        else:
            return []
        asked = lease.how == SILENT and lease.polled_at is not None and at - lease.polled_at < POLLING_S
        if asked and at - lease.since >= RENEWAL_S:
            return self.over(at, lease, "unused", "the server went on waiting: nobody opened a session")
        return self.over(at, lease, "closed", "the server offers itself again")

    def polled(self, at: float, peer: Peer) -> None:
        """A TVM server asks which match keys are left, which it does between sessions only."""
        for lease in peer.serving.values():
            lease.polled_at = at


def _is_of(lease: Lease, peer: Peer, server: Server) -> bool:
    """Whether a lease is one of a server's: it came by this connection, or by one that is gone, of the same server."""
    if lease.server is not None:
        return lease.server == peer.conn
    same = lease.identity == server.identity if lease.identity else lease.server_name == server.name
    return same and lease.key == server.key
