"""Servers: their registrations, offers and health reports, and the operators who drain and enable them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any

from rpcsys.tracker.admissions import Admissions
from rpcsys.tracker.canaries import Canaries
from rpcsys.tracker.entities import Peer, Server
from rpcsys.tracker.events import Action, Allowed, Close, HistoryEntry, Send
from rpcsys.tracker.health import ServerHealth
from rpcsys.tracker.heartbeats import MISSES, Heartbeats
from rpcsys.tracker.labels import facts_of
from rpcsys.tracker.leases import Leases
from rpcsys.tracker.peers import Peers
from rpcsys.tracker.records import Records
from rpcsys.tracker.scheduler import Scheduler
from rpcsys.tracker.transitions import OURS, SILENT
from rpcsys.tracker.views import hints
from rpcsys.wire import control, keys, tracker
from rpcsys.wire.device_names import MAX_DEVICES, MAX_NAME
from rpcsys.wire.labels import MAX_LABELS

MAX_OFFERS = 4096  # match keys and leases, and keys served, of one connection: no proxy has so many servers
MAX_SLOTS = 256  # of a server: with these, its labels and its kinds of files, its row in the summary fits a frame
MAX_MODULES = 250  # deployed on one server; each has a process


@dataclass(eq=False)
class Servers:
    """Handles the messages of servers, and those of operators about servers."""

    records: Records
    scheduler: Scheduler
    health: ServerHealth
    leases: Leases
    heartbeats: Heartbeats
    peers: Peers
    admissions: Admissions
    canaries: Canaries

    def put(self, peer: Peer, message: tracker.Put) -> list[Action]:
        """Add an offer. From a TVM server it also ends a lease."""
        ended: list[Action] = []
        if message.match_key not in peer.offers:  # TVM's Java server offers the same match key again
            if max(len(peer.offers) + len(peer.serving), len(peer.serves)) >= MAX_OFFERS:
                return [Send(peer.conn, tracker.FAIL)]
            if peer.server is None:
                ended = self.leases.offers_again(peer, message.key)
        host, port = peer.reached_at(message.address, message.port)
        offer = self.records.new_offer(peer, message.key, message.match_key, host, port)
        served = self.scheduler.offer(offer)
        weighed = self.scheduler.weigh_all() if self.records.gatherers and peer.server is None else ()
        return [Send(peer.conn, tracker.SUCCESS), *ended, *served, *weighed]

    def get_pending(self, peer: Peer, message: tracker.GetPending) -> list[Action]:
        """Send a TVM server its match keys that are not granted yet."""
        self.leases.polled(peer)
        return [Send(peer.conn, list(peer.offers))]

    def update_info(self, peer: Peer, message: tracker.UpdateInfo) -> list[Action]:
        """Note a TVM server's keys and address."""
        served = keys.served_keys(message.key)
        if len(peer.serves) + len(served) > MAX_OFFERS:
            return [Send(peer.conn, tracker.FAIL)]
        host, port = peer.reached_at(message.host, message.port)
        is_new = peer.report is None
        peer.report = (message.key, host, port)
        for key in served:
            self.records.serve(peer, key)
        actions: list[Action] = [Send(peer.conn, tracker.SUCCESS)]
        if is_new and served and peer.server is None:
            name = self.records.name_peer(peer, f"{host}:{port}")
            key = ",".join(served)[:256]
            joined = _joined(self.records.now, name, key, host, port, slots=1, labels={}, how=SILENT)
            actions += [joined, *self._is_back(name)]
        return actions

    def register(self, peer: Peer, message: control.Register) -> list[Action]:
        """Register one of our servers, with the sessions that it runs."""
        refused = _refused(self.records, peer, message)
        if refused is not None:
            return [refused]
        host, port = peer.reached_at(message.address, message.port)
        identity = message.identity and blake2b(message.identity.encode(), digest_size=16).hexdigest()
        actions = self._supersede(peer, identity)
        twin = self._twin(peer, message)
        if twin is not None and twin.unanswered < MISSES:
            return [*actions, peer.refuse(message.id, _two_of(message.name, twin.address))]
        if twin is not None:
            actions += self._end(twin, f"another server has registered as board {message.name}")
        now, earlier = self.records.now, peer.name
        name = self._name(peer, message, host)
        if earlier not in ("", name):  # else a connection that changes its name would fill the records
            actions.append(HistoryEntry(now, "gone", {"server": earlier, "reason": f"it is {name} now"}))
            actions += self.health.leave(earlier)
        labels = self.canaries.labels(name, message.labels)
        loads, devices = message.loads, message.devices
        facts = facts_of(message.key, name, labels, loads, devices)
        server = Server(name, message.key, message.slots, host, port, labels, loads, devices, facts)
        server.identity, server.pin = identity, message.pin
        self.records.describe(peer, server)
        self.records.note_back(server)
        peer.since = now
        self.heartbeats.watch(peer)
        self.records.serve(peer, message.key)
        for running in message.running:
            self.leases.go_on(peer, server, running)
        actions.append(_joined(now, name, message.key, host, port, slots=message.slots, labels=labels, how=OURS))
        weighed = self.scheduler.weigh_all()
        ended = [*self.admissions.registered(peer, message.admitted), *self.canaries.registered(name)]
        return [*actions, peer.done(message.id, server=name), *ended, *weighed, *self._is_back(name)]

    def _supersede(self, peer: Peer, identity: str) -> list[Action]:
        """Close an earlier connection of the same server, the end of which the tracker has not seen yet."""
        conn = self.records.identities.get(identity)
        if conn is None or conn == peer.conn:
            return []
        earlier = self.records.peers[conn]
        return self._end(earlier, f"{earlier.name} has registered again, over another connection")

    def _end(self, peer: Peer, reason: str) -> list[Action]:
        return [*self.peers.remove(peer, reason), Close(peer.conn, reason)]

    def _twin(self, peer: Peer, message: control.Register) -> Peer | None:
        """Another server that has registered as the same board of a lab."""
        other = self.records.peers.get(self.records.server_names.get(message.name, 0))
        return other if other not in (None, peer) and other.member and peer.member else None

    def _name(self, peer: Peer, message: control.Register, host: str) -> str:
        records, spare = self.records, message.spare
        # Two servers of one host keep their names, whichever of them registers first after a restart of the tracker.
        had_spare = spare in records.conditions or (records.settling is not None and spare in records.settling.servers)
        name = records.name_peer(peer, spare if spare and had_spare else message.name, spare)
        if had_spare:
            return name
        # The old connection of a restarted server may still hold the name. The new one is its heir: it gets it next.
        before = records.peers[records.server_names[message.name]].server
        if name != message.name and before is not None and message.port is not None:
            place, place_before = (message.key, host, message.port), (before.key, before.host, before.port)
            if place == place_before or (not spare and place[:2] == place_before[:2]):  # a given name has no port
                records.heirs[message.name] = peer.conn
        return name

    def _is_back(self, name: str) -> list[Action]:
        if self.records.settling is None:
            return []
        self.records.settling.servers.pop(name, None)
        return self.scheduler.settle_if_complete()

    def examined(self, peer: Peer, message: control.Health) -> list[Action]:
        """Note the result of a server's own health check."""
        changes = [] if peer.server is None else self.health.healthy(peer.name, message.problem)
        return [peer.done(message.id), *changes]

    def drain(self, peer: Peer, message: control.Drain) -> list[Action]:
        """Drain a server for an operator."""
        return self._set_condition(peer, message.id, message.server or "", self.health.drain)

    def enable(self, peer: Peer, message: control.Enable) -> list[Action]:
        """Enable a server for an operator, who takes a slow one as it is."""
        return self._set_condition(peer, message.id, message.server, self._enable)

    def _enable(self, name: str, by: str) -> list[Action]:
        return [*self.canaries.relearn(name), *self.health.enable(name, by)]

    def _set_condition(
        self, peer: Peer, asked: int, name: str, change: Callable[[str, str], list[Action]]
    ) -> list[Action]:
        name = self._with_port(name)
        if name not in self.records.server_names and name not in self.records.conditions:
            return [peer.refuse(asked, hints.unknown_server(self.records, name))]
        before, speed = self.health.state(name), self.records.speeds.get(name)
        actions = change(name, peer.who)
        changed = self.health.state(name) is not before or self.records.speeds.get(name) is not speed
        return [peer.done(asked, changed=changed), *actions]

    def _with_port(self, text: str) -> str:
        """The name of the server that ``text`` means: its name, or its name and port."""
        name, _, port = text.rpartition(":")
        conn = None if text in self.records.server_names else self.records.server_names.get(name)
        server = None if conn is None else self.records.peers[conn].server
        return name if server is not None and port == str(server.port) else text

    def deployed(self, peer: Peer, message: control.Deployed) -> list[Action]:
        """Replace the list of a server's deployed modules."""
        if len(message.modules) > MAX_MODULES:
            return [peer.refuse(message.id, f"more than {MAX_MODULES} modules on one server")]
        before = _versions(peer)
        self.records.deploy(peer, message.modules, message.key)
        done: list[Action] = [peer.done(message.id)]
        return done if self.records.lab is None else [*done, *self._changes(peer, before, _versions(peer))]

    def _changes(self, peer: Peer, before: dict[str, None], after: dict[str, None]) -> list[Action]:
        """For the audit log: the versions of modules that a server has now, or has no more."""
        changes = [("serve", each) for each in after if each not in before]
        changes += [("withdraw", each) for each in before if each not in after]
        return [Allowed(self.records.now, peer.name or peer.who, peer.address, op, each) for op, each in changes]


def _versions(peer: Peer) -> dict[str, None]:
    return {f"{module.name} {module.version}": None for module in peer.deployed}


def _joined(now: float, name: str, key: str, host: str, port: int | None, **more: Any) -> HistoryEntry:
    return HistoryEntry(now, "joined", {"server": name, "key": key, "address": host, "port": port, **more})


def _two_of(board: str, address: str) -> str:
    return (
        f"board {board} serves already, from {address}: a credential is for one server; the other one gets its own by "
        "rpcsys lab enrol --board NAME"
    )


def _refused(records: Records, peer: Peer, message: control.Register) -> Send | None:
    error, problem = "BadRequest", ""
    if len(peer.serves) + len(peer.serving) + len(message.running) > MAX_OFFERS:
        problem = f"more than {MAX_OFFERS} keys and leases on one connection"
    elif message.slots > MAX_SLOTS or max(len(message.labels), len(message.loads)) > MAX_LABELS:
        problem = f"more than {MAX_SLOTS} slots, or {MAX_LABELS} labels or kinds of files"
    elif len(message.devices) > MAX_DEVICES or max(map(len, message.devices), default=0) > MAX_NAME:
        problem = f"more than {MAX_DEVICES} devices, or {MAX_NAME} characters in the name of one"
    elif len(message.running) > message.slots:
        problem = "it runs more sessions than it has slots"
    elif peer.proxies and peer.gate is None:
        error = control.NO_CONTROL_LINK
        problem = f"the tracker does not trust the proxy: {records.to_trust(peer.address)}"
    return peer.refuse(message.id, problem, error) if problem else None
