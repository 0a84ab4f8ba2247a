"""Connections, from their greeting to their end: what a peer offered and asked for goes with it, in the same event."""

from __future__ import annotations

from dataclasses import dataclass

from rpcsys import __version__
from rpcsys.tracker.entities import Peer
from rpcsys.tracker.events import Action, Close, Connected, Disconnected, HistoryEntry, Send, StopTracker
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.leases import Leases
from rpcsys.tracker.records import Records
from rpcsys.tracker.requests import Requests
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.wire import control, keys, tracker

MAX_PROXIES = 8  # in a chain: more are a mistake, or a loop
MAX_NOT_NAMED = 256  # addresses of proxies that are not believed and told of in the log
CAPABILITIES = ("session/1", "labels", "count", "tickets", "why", "drain", "renew", "resolve")


@dataclass(eq=False)
class Peers:
    """Takes connections in, and out again with all that was theirs."""

    records: Records
    scheduler: Scheduler
    health: ServerHealth
    leases: Leases
    requests: Requests

    def connected(self, event: Connected) -> list[Action]:
        """Somebody is there."""
        self.records.peers[event.conn] = Peer(event.conn, event.address, event.local)
        return []

    def disconnected(self, event: Disconnected) -> list[Action]:
        """Somebody is gone."""
        peer = self.records.peers.get(event.conn)
        return [] if peer is None else self.remove(peer, "its connection ended")

    def remove(self, peer: Peer, reason: str) -> list[Action]:
        """A connection goes, with all that was its own."""
        records = self.records
        actions: list[Action] = []
        for offer in peer.offers.values():
            records.withdraw(offer)
        peer.offers.clear()  # first, so that nothing below can hand them out again
        actions += self.requests.leave(list(peer.waiting.values()))
        if peer.name:
            actions.append(HistoryEntry(records.now, "gone", {"server": peer.name, "reason": reason}))
        name = peer.name
        actions += self.leases.detach(peer)
        records.deploy(peer, (), "")
        records.forget_server(peer)
        records.unname_peer(peer)
        actions += self.health.leave(name)
        records.deadlines.drop(("heartbeat", peer.conn))
        for lease in list(peer.holding.values()):
            actions += self.leases.abandoned(lease)
        for key in peer.serves:
            records.serve_no_more(peer.conn, key)
        del records.peers[peer.conn]
        heir = records.peers.get(records.heirs.pop(name, 0))
        if heir is not None and heir.server is not None:  # it registers again, and gets the name
            actions.append(Close(heir.conn, f"its name {name} is free again: it is to register under that"))
        return actions + (self.scheduler.weigh_all() if peer.serves else [])

    def via(self, peer: Peer, message: control.Via) -> list[Action]:
        """A proxy says whom it relays. The first is the one next to the tracker, and the one clients go to."""
        if not peer.fresh or peer.proxies == MAX_PROXIES:
            return [Close(peer.conn, f"its way is told too late, or through more than {MAX_PROXIES} proxies")]
        peer.proxies += 1
        if not self.records.proxy_networks.include(peer.address, peer.local):
            return self._not_named(peer.address)
        if peer.proxies == 1:
            host, port = message.proxy
            peer.gate = (host or peer.address, port)
        peer.address = message.address[0]
        return []

    def _not_named(self, address: str) -> list[Action]:
        """A proxy says something that nobody has told the tracker to believe. Told once of each address."""
        told = self.records.not_named
        if address in told or len(told) >= MAX_NOT_NAMED:
            return []
        told[address] = None
        reason = (
            f"a proxy at {address} relays connections and is not believed, so boards behind it have no labels and "
            f"no limits: if it is yours, start the tracker with --proxy-from {address}"
        )
        return [HistoryEntry(self.records.now, "not_named", {"address": address, "reason": reason})]

    def ping(self, peer: Peer, message: tracker.Ping) -> list[Action]:
        """A greeting, of our clients and servers with what they can."""
        if message.hello is None:
            return [Send(peer.conn, tracker.SUCCESS)]
        peer.user = message.hello.user or ""
        peer.keepalive = control.KEEPALIVE in message.hello.capabilities
        welcome = {"tracker": "rpcsys", "version": __version__, "capabilities": list(CAPABILITIES)}
        return [Send(peer.conn, {"ok": True, **welcome})]

    def stop(self, peer: Peer, message: tracker.Stop) -> list[Action]:
        """Somebody wants the tracker to end."""
        if self.records.stop_key is None or not keys.same(self.records.stop_key, message.stop_key):
            return [Send(peer.conn, tracker.FAIL)]
        return [Send(peer.conn, tracker.SUCCESS), StopTracker()]
