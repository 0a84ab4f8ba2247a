"""Connections, from their hello to their end: a peer's offers and requests end in the same event as its connection."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from typing import Any

from rpcsys import __version__
from rpcsys.tracker import permissions
from rpcsys.tracker.entities import GoneServer, Peer
from rpcsys.tracker.events import (
    Action,
    Authenticated,
    Close,
    Connected,
    Disconnected,
    HistoryEntry,
    ReplicasChanged,
    Revoked,
    Send,
    SitesChanged,
    StopTracker,
)
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.leases import Leases
from rpcsys.tracker.records import Records
from rpcsys.tracker.requests import Requests
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.wire import control, keys, replicas, results, tracker
from rpcsys.wire.tokens import HolderKind

MAX_PROXIES = 8  # in a chain; more are a mistake, or a loop
MAX_NOT_NAMED = 256  # addresses of proxies without trust that are logged
CAPABILITIES = (
    *("session/1", "labels", "count", "tickets", "why", "drain", "renew", "resolve"),
    *(control.VERSIONS, control.CANARIES, results.RESULTS),
)


def welcome() -> dict[str, Any]:
    """What every tracker answers to a hello."""
    return {"ok": True, "tracker": "rpcsys", "version": __version__, "capabilities": list(CAPABILITIES)}


@dataclass(eq=False)
class Peers:
    """Handles the beginning and the end of connections."""

    records: Records
    scheduler: Scheduler
    health: ServerHealth
    leases: Leases
    requests: Requests

    def connected(self, event: Connected) -> list[Action]:
        """Add a connection."""
        self.records.peers[event.conn] = Peer(event.conn, event.address, event.local)
        return []

    def disconnected(self, event: Disconnected) -> list[Action]:
        """Remove a connection that has ended."""
        peer = self.records.peers.get(event.conn)
        return [] if peer is None else self.remove(peer, "its connection ended")

    def remove(self, peer: Peer, reason: str) -> list[Action]:
        """Remove a connection with its offers, requests and leases."""
        records = self.records
        actions: list[Action] = []
        for offer in peer.offers.values():
            records.withdraw(offer)
        peer.offers.clear()  # first, so that nothing below can grant them
        actions += self.requests.leave(list(peer.waiting.values()))
        if peer.name:
            actions.append(HistoryEntry(records.now, "gone", {"server": peer.name, "reason": reason}))
        name, server = peer.name, peer.server
        if server is not None:
            gone = GoneServer(server.key, server.host, server.port, server.identity, records.now, reason)
            records.note_gone(name, gone)
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
        if peer.member is not None and peer.member.kind is HolderKind.PROXY:
            records.proxies_at -= Counter([peer.address])
        del records.peers[peer.conn]
        heir = records.peers.get(records.heirs.pop(name, 0))
        if heir is not None and heir.server is not None:  # it registers again, and gets the name
            actions.append(Close(heir.conn, f"its name {name} is free again: it is to register under that"))
        return actions + (self.scheduler.weigh_all() if peer.serves else [])

    def via(self, peer: Peer, message: control.Via) -> list[Action]:
        """Note the peer that a proxy relays. The first `Via` of a proxy comes from the one to which clients connect."""
        if not peer.fresh or peer.proxies == MAX_PROXIES:
            return [Close(peer.conn, f"its `via` came after another message, or after {MAX_PROXIES} others")]
        if message.proxy is None:
            return self._relayed(peer, message)
        peer.proxies += 1
        if not self._believes(peer):
            return self._not_named(peer.address)
        if peer.proxies == 1:
            host, port = message.proxy
            peer.gate = (host or peer.address, port)
        peer.address = message.address[0]
        return []

    def _relayed(self, peer: Peer, message: control.Via) -> list[Action]:
        """Note the peer that a standby relays, which is next to the leader: there is one hop, before any proxy."""
        if peer.relayed or peer.proxies:
            return [Close(peer.conn, "it is relayed by more than one standby")]
        if peer.address not in self.records.replicas and not self._believes(peer):
            return [Close(peer.conn, "it relays as a standby does, and no replica of this tracker is known there")]
        peer.relayed, peer.address = True, message.address[0]
        return []

    def replicas_changed(self, event: ReplicasChanged) -> list[Action]:
        """Note where the replicas of this tracker are."""
        self.records.replicas, self.records.replicas_text = event.addresses, event.text
        return []

    def sites_changed(self, event: SitesChanged) -> list[Action]:
        """Note which other sites can be reached."""
        self.records.sites_text = event.text
        return []

    def _believes(self, peer: Peer) -> bool:
        """Whether a proxy is believed at whose address a peer is, by all that is known so far.

        In a closed lab, the one that has connected has proven the token of a proxy; further ones, which that one has
        named, are in the networks of the command line.
        """
        records = self.records
        if records.lab is None or records.lab.open:
            return records.proxy_networks.include(peer.address, peer.local)
        if peer.proxies == 1:
            return peer.address in records.proxies_at
        return bool(records.proxy_networks.networks) and records.proxy_networks.include(peer.address, peer.local)

    def _not_named(self, address: str) -> list[Action]:
        """Log that a proxy is not trusted, once for each address."""
        logged = self.records.not_named
        if address in logged or len(logged) >= MAX_NOT_NAMED:
            return []
        logged[address] = None
        reason = (
            f"a proxy at {address} relays connections and is not trusted, so boards behind it have no labels and "
            f"no limits: if it is yours, {self.records.to_trust(address)}"
        )
        return [HistoryEntry(self.records.now, "not_named", {"address": address, "reason": reason})]

    def ping(self, peer: Peer, message: tracker.Ping) -> list[Action]:
        """Answer a ping; from our clients and servers it carries a hello."""
        if message.hello is None:
            return [Send(peer.conn, tracker.SUCCESS)]
        if peer.member is None:
            peer.user = self.records.claimed(message.hello.user or "")
        peer.keepalive = control.KEEPALIVE in message.hello.capabilities
        role: dict[str, Any] = {}
        if self.records.term and replicas.REPLICAS in message.hello.capabilities:
            role = {"role": replicas.LEADER, "term": self.records.term}
        return [Send(peer.conn, {**welcome(), **self._membership(peer), **role})]

    def _membership(self, peer: Peer) -> dict[str, Any]:
        """What a member is told of its lab."""
        lab, member = self.records.lab, peer.member
        if lab is None or member is None:
            return {}
        rights = sorted(right.value for right in lab.access.rights(member.name))
        own: dict[str, Any] = {"member": member.name, "kind": member.kind.value, "rights": rights}
        if lab.open:
            own["open"] = True
        renew = {"renew": True} if member.renew else {}
        signed_in = {} if member.subject is None else {"token": member.token, "expires": member.expires}
        return {"lab": lab.name, **own, "pins": list(lab.pins), **renew, **signed_in}

    def authenticated(self, event: Authenticated) -> list[Action]:
        """Note whom a connection speaks for."""
        peer = self.records.peers.get(event.conn)
        if peer is not None:
            peer.member, peer.user = event.member, event.member.name
            if peer.member.kind is HolderKind.PROXY:
                self.records.proxies_at[peer.address] += 1
        return []

    def revoked(self, event: Revoked) -> list[Action]:
        """End the leases and connections of a member."""
        why = f"the membership of {event.name} has ended"
        actions: list[Action] = []
        for lease in [lease for lease in self.records.leases.values() if lease.user == event.name]:
            actions += self.leases.end(lease, "ended", why)
        for peer in [peer for peer in self.records.peers.values() if peer.member and peer.member.name == event.name]:
            actions += [*self.remove(peer, why), Close(peer.conn, why)]
        return actions

    def lab_changed(self) -> list[Action]:
        """In a lab that is closed now, end what those in the clear offer and wait for. Their leases go on."""
        lab = self.records.lab
        if lab is None or lab.open:
            return []
        why = permissions.credential_for(lab)
        actions: list[Action] = []
        for peer in [*self.records.peers.values()]:
            if peer.fresh or peer.member is not None or lab.access.admits_tvm(peer.address):
                continue  # one that is fresh may be about to prove who it is
            if peer.serves:
                actions += [*self.remove(peer, why), Close(peer.conn, why)]
            elif peer.waiting:
                actions += self.requests.shut_out(peer, why)
        return actions

    def stop(self, peer: Peer, message: tracker.Stop) -> list[Action]:
        """Stop the tracker, if the stop key is right."""
        if self.records.stop_key is None or not keys.same(self.records.stop_key, message.stop_key):
            return [Send(peer.conn, tracker.FAIL)]
        return [Send(peer.conn, tracker.SUCCESS), StopTracker()]
