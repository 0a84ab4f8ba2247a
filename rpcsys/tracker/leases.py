"""Leases, from the grant to their end. A lease goes on for a while without its server's connection, like its session.

TVM's servers send nothing about sessions: an offer of theirs ends the oldest lease of its key.
"""

from __future__ import annotations

from dataclasses import dataclass

from rpcsys.tracker.entities import LeaseRecord, Peer, Server
from rpcsys.tracker.events import Action, HistoryEntry
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.permissions import longest
from rpcsys.tracker.records import Records
from rpcsys.tracker.scheduler import least
from rpcsys.tracker.transitions import AWAY, ENDED, OPENED, OURS, RUNNING, SERVER_BACK, SERVER_LEFT, SILENT
from rpcsys.wire import control, outcomes
from rpcsys.wire.control import Running

AWAY_S = 10.0  # how long a lease outlives its server's connection: a running server is back within 5 s
#: The longest duration that is accepted from a server for a session unknown to the tracker: it counts in sums.
LONGEST_S = 30 * 86400.0
#: A TVM server makes a new match key if no client connects within 8 s of the grant, and polls every 2 s until then.
RENEWAL_S, POLLING_S = 6.0, 3.5
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


@dataclass(eq=False)
class Leases:
    """Begins and ends leases."""

    records: Records
    health: ServerHealth

    def over(
        self, lease: LeaseRecord, outcome: str, reason: str = "", fault: str = "", cleaned: object = None
    ) -> list[Action]:
        """End a lease: remove it, write it to the history, and judge its server's health."""
        now = self.records.now
        self.records.remove_lease(lease)
        if lease.opened or outcome not in (outcomes.UNUSED, "lost"):  # TVM's clients and servers do not say whether
            self.records.note_heard(lease)
        details = {
            **lease.identified(),
            "since": lease.since,
            "held_s": round(now - lease.since, 6),
            "outcome": outcome,
            "reason": lease.reason or reason or _SENTENCES[outcome],
            "fault": fault,
            "cleaned": cleaned or {},
        }
        actions: list[Action] = [HistoryEntry(now, "over", details), *self.records.keep_unheard(lease.arrival)]
        if fault:
            actions += self.health.failed(lease.server_name, fault)
        elif lease.opened and outcome != "unused":
            actions += self.health.worked(lease.server_name)
        lease.move(ENDED)
        return actions

    # Messages of our servers.

    def lease_started(self, peer: Peer, message: control.LeaseStarted) -> list[Action]:
        """Note that a session was opened."""
        lease = self._reported(peer, message.lease, message.epoch)
        if lease is None or lease.opened:
            return [peer.done(message.id)]
        lease.move(OPENED)
        self.records.note_heard(lease)
        lease.started_at = self.records.now
        limit_s = least(lease.limit_s, message.limit_s)
        if lease.reason == _LEFT:
            lease.reason = ""  # it had: the server's message was slower than the end of the client's connection
        self.records.missed.pop(lease.address, None)
        begun = HistoryEntry(self.records.now, "begun", {"lease": lease.lease, "peer": message.peer})
        return [peer.done(message.id), begun, *self._limited(lease, limit_s)]

    def _limited(self, lease: LeaseRecord, limit_s: float | None) -> list[Action]:
        """Set a lease's limit; the history's entry for it, if that is a new one."""
        if limit_s == lease.limit_s:
            return []
        lease.limit_s = limit_s
        return [HistoryEntry(self.records.now, "limited", {"lease": lease.lease, "limit_s": limit_s})]

    def lease_ended(self, peer: Peer, message: control.LeaseEnded) -> list[Action]:
        """End the lease of a session that is over and cleaned up."""
        lease = self._reported(peer, message.lease, message.epoch)
        if lease is None:
            return [peer.done(message.id)]
        cleaned = dict(message.cleaned)
        ended = self.over(lease, message.outcome, message.why, message.fault, cleaned)
        return [peer.done(message.id), *ended]

    def _reported(self, peer: Peer, lease: str, epoch: int) -> LeaseRecord | None:
        found = self.records.leases.get(lease)
        if found is None or found.epoch != epoch or peer.server is None or not _is_of(found, peer, peer.server):
            return None
        if found.state in AWAY:
            self._attach(peer, found)  # it had no session when its server registered again
        return found

    def go_on(self, peer: Peer, server: Server, running: Running) -> None:
        """Take over a session that went on while its server had no tracker. A lease of another server is skipped."""
        lease = self.records.leases.get(running.lease)
        began = self.records.now - min(running.since_s, LONGEST_S)
        if lease is not None and lease.epoch == running.epoch and _is_of(lease, peer, server):
            self._attach(peer, lease)
            if not lease.opened:
                lease.move(OPENED)
                lease.started_at = max(began, lease.since)
        elif lease is None and not self._may_grant(running) and self.records.allow_epoch(running.epoch):
            name, epoch = running.lease, running.epoch
            unknown = LeaseRecord(name, epoch, server.key, peer.conn, server.name, None, "", "", began, None)
            unknown.state, unknown.started_at, unknown.identity = RUNNING, began, server.identity
            self.records.add_lease(unknown)

    def _may_grant(self, running: Running) -> bool:
        """Whether a later lease of this run may get this name."""
        instance = self.records.instance
        ours = running.lease.startswith(f"{instance}-")
        return ours and (running.lease != f"{instance}-{running.epoch}" or running.epoch > self.records.epoch)

    def _server(self, lease: LeaseRecord) -> Peer | None:
        return None if lease.server is None else self.records.peers[lease.server]

    def _attach(self, peer: Peer, lease: LeaseRecord) -> None:
        before = self._server(lease)
        if before is not None:
            before.serving.pop(lease.lease, None)
        if lease.state in AWAY:
            lease.move(SERVER_BACK)
            self.records.deadlines.drop(("away", lease.lease))
        lease.server, lease.server_name, lease.told = peer.conn, peer.name, 0
        peer.serving[lease.lease] = lease

    # Leases without their server's connection.

    def detach(self, peer: Peer) -> list[Action]:
        """Detach the leases of a server whose connection has ended. Those of TVM's servers end."""
        actions: list[Action] = []
        for lease in list(peer.serving.values()):
            if lease.how != OURS:
                actions += self.over(lease, "lost", "the server's connection ended")
                continue
            del peer.serving[lease.lease]
            lease.server = None
            lease.move(SERVER_LEFT)
            self.records.deadlines.set(("away", lease.lease), self.records.now + AWAY_S)
        return actions

    def away(self, name: str) -> list[Action]:
        """End a lease whose server has not come back in time."""
        lease = self.records.leases[name]
        # This replaces the reason of an end that was under way.
        lease.reason = f"its server {lease.server_name} has been gone for {AWAY_S:g} s"
        return self.over(lease, "lost")

    # Ends.

    def end(self, lease: LeaseRecord, reason: str, why: str = "") -> list[Action]:
        """Have the server, if it is ours, end a lease. A lease that was not opened ends at once if the server hangs."""
        server = self._server(lease)
        if server is None or server.server is None:
            return []
        lease.reason = lease.reason or why
        order = control.End(server.ask(), lease.lease, lease.epoch, reason, why)
        orders: list[Action] = [server.order(order)]
        condition = self.records.condition(server)
        if lease.opened or condition is None or not condition.silent:
            return orders
        return [*orders, *self.over(lease, "unused")]

    def abandoned(self, lease: LeaseRecord) -> list[Action]:
        """Handle the end of the holder's connection. A session that was opened goes on. An end may be under way."""
        lease.holder = None
        return [] if lease.opened or lease.reason else self.end(lease, outcomes.UNUSED, _LEFT)

    # Messages of clients and operators.

    def release(self, peer: Peer, message: control.Release) -> list[Action]:
        """End a lease that its client gives back."""
        lease = self._own(peer, message.lease)
        if lease is None:
            return [peer.done(message.id)]
        self.records.note_heard(lease)
        server = self._server(lease)
        knows = server is not None and server.heard >= lease.told
        blamed = message.problem and not lease.opened and knows
        missed = self.health.unreached(lease, message.problem) if blamed else []
        why = message.problem or "its client gave it back"
        return [*self.end(lease, "released", why), *missed, peer.done(message.id)]

    def renew(self, peer: Peer, message: control.Renew) -> list[Action]:
        """Set a lease's limit anew: ``session_timeout`` seconds from now, within the key's limit."""
        lease = self._own(peer, message.lease)
        if lease is None or lease.state in AWAY or lease.how != OURS:
            problem = f"no lease {message.lease!r} of yours can be renewed: it is over, or its server is away"
            return [peer.refuse(message.id, problem)]
        now, server = self.records.now, self._server(lease)
        assert server is not None, "it is not away"
        ended = lease.reason or (_SENTENCES["timeout"] if lease.until is not None and lease.until <= now else "")
        if ended:  # its server is still cleaning up
            return [peer.refuse(message.id, f"the lease {message.lease!r} has ended: {ended}; request a device")]
        wanted = now - lease.begun_at + message.session_timeout if message.session_timeout else None
        most = least(self.records.limits.get(lease.key), longest(self.records, peer, lease.key))
        lease.limit_s = least(wanted, most)
        left = None if lease.until is None else max(0.0, lease.until - now)
        limited = HistoryEntry(now, "limited", {"lease": lease.lease, "limit_s": lease.limit_s})
        order = server.order(control.Limit(server.ask(), lease.lease, lease.epoch, left))
        return [limited, order, peer.done(message.id, limit_s=lease.limit_s)]

    def end_lease(self, peer: Peer, message: control.EndLease) -> list[Action]:
        """End a lease for an operator."""
        lease = self.records.leases.get(message.lease)
        if lease is None:
            return [peer.refuse(message.id, f"there is no lease {message.lease!r}: see query_tracker leases")]
        actions = self.end(lease, "ended", f"{peer.who} ended it" + (message.reason and f": {message.reason}"))
        if not actions:
            problem = "its server is away, or is TVM's own, which cannot end a session on request"
            return [peer.refuse(message.id, problem)]
        return [*actions, peer.done(message.id)]

    def _own(self, peer: Peer, name: str) -> LeaseRecord | None:
        lease = self.records.leases.get(name)
        return lease if lease is not None and lease.user == peer.who else None

    # TVM's servers.

    def offers_again(self, peer: Peer, key: str) -> list[Action]:
        """End the oldest lease of the key: a TVM server offers again when its session is over."""
        lease = next((lease for lease in peer.serving.values() if lease.key == key), None)
        if lease is None:
            return []
        now = self.records.now
        polls = lease.how == SILENT and lease.polled_at is not None and now - lease.polled_at < POLLING_S
        if polls and now - lease.since >= RENEWAL_S:
            return self.over(lease, "unused", "the server went on waiting: nobody opened a session")
        return self.over(lease, "closed", "the server offers itself again")

    def polled(self, peer: Peer) -> None:
        """Note that a TVM server has polled its match keys, which it does between sessions only."""
        for lease in peer.serving.values():
            lease.polled_at = self.records.now


def _is_of(lease: LeaseRecord, peer: Peer, server: Server) -> bool:
    """Whether a lease is the server's: it belongs to this connection, or to an earlier one of the same server."""
    if lease.server is not None:
        return lease.server == peer.conn
    same = lease.identity == server.identity if lease.identity else lease.server_name == server.name
    return same and lease.key == server.key
