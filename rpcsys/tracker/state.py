"""Every decision of the tracker, as plain synchronous code: an event goes in, actions come out.

The decisions stand in a row of classes, each built on the one before: :mod:`~rpcsys.tracker.records` (the records),
:mod:`~rpcsys.tracker.scheduler` (who is next), :mod:`~rpcsys.tracker.health` (which servers can be trusted),
:mod:`~rpcsys.tracker.leases`, :mod:`~rpcsys.tracker.keepalive`, :mod:`~rpcsys.tracker.requests`, :mod:`~rpcsys.tracker.restore`, and here, where
messages arrive and connections come and go.

Rules they keep:

- A match key is handed out once, and only while the connection that offered it lives.
- A request is answered once, and only while the connection that asked it lives.
- What a connection offered and asked for goes with it, in the same event.
- Nothing depends on a clock, on chance or on the order of a hash table: the same events give the same actions.
- What one connection can make the tracker remember is bounded.

Known weakness: a TVM server never says when a session ends, so its lease is taken to last until it offers its
next match key; and who does not say its name is told from others by its address alone.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from hashlib import blake2b

from rpcsys import __version__
from rpcsys.tracker.entities import OURS, SILENT, Lease, Peer, Server
from rpcsys.tracker.events import (
    Action,
    Close,
    Connected,
    Disconnected,
    Event,
    Received,
    Record,
    Restored,
    Send,
    StopTracker,
    Tick,
)
from rpcsys.tracker.labels import facts_of
from rpcsys.tracker.requests import done, refusal
from rpcsys.tracker.restore import Restore
from rpcsys.tracker.views import deployed, hints, summary
from rpcsys.tracker.views.tvm_summary import SummaryText
from rpcsys.wire import control, keys, tracker
from rpcsys.wire.control import Answer

MAX_OFFERS = 4096
"""Match keys and leases, and keys served, of one connection: no proxy has so many servers."""

MAX_SLOTS = 256
MAX_LABELS = control.MAX_LABELS
"""Slots of a server, and labels and kinds of files that it loads: what is shown of one has to fit a frame."""

MAX_MODULES = 250
"""Deployed on one server: a process each."""

MAX_PROXIES = 8
"""In a chain: more are a mistake, or a loop."""

MAX_NOT_NAMED = 256
"""Addresses of proxies that are not believed and told of in the log."""

CAPABILITIES = ("session/1", "labels", "count", "tickets", "why", "drain", "renew", "resolve")


class State(Restore):
    """The tracker between two events."""

    @property
    def next_deadline(self) -> float | None:
        """When a `Tick` is wanted at the latest, None if nothing is due."""
        return self.deadlines.next

    def apply(self, event: Event) -> list[Action]:
        """Take an event in; what has to be done about it, in order."""
        if type(event) is Received:
            peer = self.peers.get(event.conn)
            if peer is None:
                return []
            actions = _ON_MESSAGE[type(event.message)](self, event.at, peer, event.message)
            peer.fresh = peer.fresh and type(event.message) is control.Via
            return actions
        return _ON_EVENT[type(event)](self, event)

    def _connected(self, event: Connected) -> list[Action]:
        self.peers[event.conn] = Peer(event.conn, event.address, event.local)
        return []

    def _disconnected(self, event: Disconnected) -> list[Action]:
        peer = self.peers.get(event.conn)
        return [] if peer is None else self._part(event.at, peer, "its connection ended")

    def _part(self, at: float, peer: Peer, reason: str) -> list[Action]:
        """A connection goes, with all that was its own."""
        actions: list[Action] = []
        for offer in peer.offers.values():
            self.withdraw(offer)
        peer.offers.clear()  # first, so that nothing below can hand them out again
        actions += self.leave(at, list(peer.waiting.values()))
        if peer.name:
            actions.append(Record(at, "gone", {"server": peer.name, "reason": reason}))
        name = peer.name
        actions += self.detach(at, peer)
        name = peer.name
        self.deploy(peer, (), "")
        self.forget_server(peer)
        self.unname_peer(peer)
        actions += self.leave_condition(at, name)
        self.deadlines.drop(("look", peer.conn))
        for lease in list(peer.holding.values()):
            actions += self.abandoned(at, lease)
        for key in peer.serves:
            self.serve_no_more(at, peer.conn, key)
        del self.peers[peer.conn]
        actions += self._inherited(name)
        return actions + (self.weigh_all(at) if peer.serves else [])

    def _via(self, at: float, peer: Peer, message: control.Via) -> list[Action]:
        """A proxy says whom it relays. The first is the one next to the tracker, and the one clients go to."""
        if not peer.fresh or peer.proxies == MAX_PROXIES:
            return [Close(peer.conn, f"its way is told too late, or through more than {MAX_PROXIES} proxies")]
        peer.proxies += 1
        if not self.relays.include(peer.address, peer.local):
            return self._not_named(at, peer.address)
        if peer.proxies == 1:
            host, port = message.proxy
            peer.gate = (host or peer.address, port)
        peer.address = message.address[0]
        return []

    def _not_named(self, at: float, address: str) -> list[Action]:
        """A proxy says something that nobody has told the tracker to believe. Told once of each address."""
        if address in self.not_named or len(self.not_named) >= MAX_NOT_NAMED:
            return []
        self.not_named[address] = None
        reason = (
            f"a proxy at {address} relays connections and is not believed, so boards behind it have no labels and "
            f"no limits: if it is yours, start the tracker with --proxy-from {address}"
        )
        return [Record(at, "not_named", {"address": address, "reason": reason})]

    # TVM's messages.

    def _ping(self, at: float, peer: Peer, message: tracker.Ping) -> list[Action]:
        if message.hello is None:
            return [Send(peer.conn, tracker.SUCCESS)]
        peer.user = message.hello.user or ""
        peer.keepalive = control.KEEPALIVE in message.hello.capabilities
        welcome = {"tracker": "rpcsys", "version": __version__, "capabilities": list(CAPABILITIES)}
        return [Send(peer.conn, {"ok": True, **welcome})]

    def _stop(self, at: float, peer: Peer, message: tracker.Stop) -> list[Action]:
        if self.stop_key is None or not keys.same(self.stop_key, message.stop_key):
            return [Send(peer.conn, tracker.FAIL)]
        return [Send(peer.conn, tracker.SUCCESS), StopTracker()]

    def _put(self, at: float, peer: Peer, message: tracker.Put) -> list[Action]:
        ended: list[Action] = []
        if message.match_key not in peer.offers:  # TVM's Java server offers the same one again
            if max(len(peer.offers) + len(peer.serving), len(peer.serves)) >= MAX_OFFERS:
                return [Send(peer.conn, tracker.FAIL)]
            if peer.server is None:
                ended = self.offers_again(at, peer, message.key)
        host, port = peer.reached_at(message.address, message.port)
        offer = self.new_offer(peer, message.key, message.match_key, host, port)
        served = self.offer(at, offer)
        return [
            Send(peer.conn, tracker.SUCCESS),
            *ended,
            *served,
            *(self.weigh_all(at) if self.gatherers and peer.server is None else ()),
        ]

    def _update_info(self, at: float, peer: Peer, message: tracker.UpdateInfo) -> list[Action]:
        served = keys.served_keys(message.key)
        if len(peer.serves) + len(served) > MAX_OFFERS:
            return [Send(peer.conn, tracker.FAIL)]
        host, port = peer.reached_at(message.host, message.port)
        is_new = peer.report is None
        peer.report = (message.key, host, port)
        for key in served:
            self.serve(peer, key)
        actions: list[Action] = [Send(peer.conn, tracker.SUCCESS)]
        if is_new and served and peer.server is None:
            name = self.name_peer(peer, f"{host}:{port}")
            details = {"server": name, "key": ",".join(served)[:256], "address": host, "port": port}
            silent = {"slots": 1, "labels": {}, "how": SILENT}
            actions += [Record(at, "joined", {**details, **silent}), *self._is_back(at, name)]
        return actions

    def _is_back(self, at: float, name: str) -> list[Action]:
        if self.settling is None:
            return []
        self.settling.servers.pop(name, None)
        return self.settle_if_complete(at)

    def _tvm_summary(self, at: float, peer: Peer, message: tracker.TvmSummary) -> list[Action]:
        return [Send(peer.conn, json.loads(SummaryText().text(self, at, peer)))]

    def _get_pending(self, at: float, peer: Peer, message: tracker.GetPending) -> list[Action]:
        self.polled(at, peer)
        return [Send(peer.conn, list(peer.offers))]

    # Requests.

    def _request(self, at: float, peer: Peer, message: control.Request) -> list[Action]:
        return [*self.request(at, peer, message), *self.settle_if_complete(at)]

    # Leases.

    def _lease_started(self, at: float, peer: Peer, message: control.LeaseStarted) -> list[Action]:
        lease = self.reported(peer, message.lease, message.epoch)
        begun = [] if lease is None or lease.started else self.started(at, lease, message.peer)
        return [done(peer, message.id), *begun]

    def _lease_ended(self, at: float, peer: Peer, message: control.LeaseEnded) -> list[Action]:
        lease = self.reported(peer, message.lease, message.epoch)
        if lease is None:
            return [done(peer, message.id)]
        cleaned = dict(message.cleaned)
        ended = self.over(at, lease, message.outcome, fault=message.fault, cleaned=cleaned)
        return [done(peer, message.id), *ended]

    def _release(self, at: float, peer: Peer, message: control.Release) -> list[Action]:
        lease = self._own(peer, message.lease)
        if lease is None:
            return [done(peer, message.id)]
        blamed = message.problem and not lease.started and self.heard_of(lease)
        missed = self.unreached(at, lease, message.problem) if blamed else []
        why = message.problem or "its client gave it back"
        return [*self.end(at, lease, "released", why), *missed, done(peer, message.id)]

    def _own(self, peer: Peer, name: str) -> Lease | None:
        """A lease that is the peer's user's, over whatever connection it came."""
        lease = self.leases.get(name)
        return lease if lease is not None and lease.user == peer.who else None

    def _renew(self, at: float, peer: Peer, message: control.Renew) -> list[Action]:
        lease = self._own(peer, message.lease)
        if lease is None or lease.server is None or lease.how != OURS:
            problem = f"no lease {message.lease!r} of yours can be renewed: it is over, or its server is away"
            return [refusal(peer, message.id, "BadRequest", problem)]
        actions = self.renew(at, lease, message.session_timeout or None)
        return [*actions, done(peer, message.id, limit_s=lease.limit_s)]

    def _end_lease(self, at: float, peer: Peer, message: control.EndLease) -> list[Action]:
        lease = self.leases.get(message.lease)
        if lease is None:
            problem = f"there is no lease {message.lease!r}: see query_tracker leases"
            return [refusal(peer, message.id, "BadRequest", problem)]
        why = f"{peer.who} ended it" + (f": {message.reason}" if message.reason else "")
        told = self.end(at, lease, "ended", why)
        if not told:
            problem = "its server is away, or is TVM's own, which cannot be told to end a session"
            return [refusal(peer, message.id, "BadRequest", problem)]
        return [*told, done(peer, message.id)]

    # Servers.

    def _register(self, at: float, peer: Peer, message: control.Register) -> list[Action]:
        if len(peer.serves) + len(peer.serving) + len(message.running) > MAX_OFFERS:
            problem = f"more than {MAX_OFFERS} keys and leases on one connection"
            return [refusal(peer, message.id, "BadRequest", problem)]
        if message.slots > MAX_SLOTS or max(len(message.labels), len(message.loads)) > MAX_LABELS:
            problem = f"more than {MAX_SLOTS} slots, or {MAX_LABELS} labels or kinds of files"
            return [refusal(peer, message.id, "BadRequest", problem)]
        if len(message.running) > message.slots:
            return [refusal(peer, message.id, "BadRequest", "it runs more sessions than it has slots")]
        if peer.proxies and peer.gate is None:
            reason = (
                "the tracker was not told to believe the proxy: start it with --proxy-from and its address"
            )
            return [refusal(peer, message.id, control.NO_CONTROL_LINK, reason)]
        host, port = peer.reached_at(message.address, message.port)
        identity = message.identity and blake2b(message.identity.encode(), digest_size=16).hexdigest()
        actions = self._supersede(at, peer, identity)
        earlier = peer.name
        name = self._name(peer, message, host)
        if earlier not in ("", name):  # or each name of one connection would be remembered for ever
            actions.append(Record(at, "gone", {"server": earlier, "reason": f"it is {name} now"}))
            actions += self.leave_condition(at, earlier)
        labels = dict(message.labels)
        facts = facts_of(message.key, name, labels, message.loads)
        server = Server(name, message.key, message.slots, host, port, labels, message.loads, facts)
        server.identity = identity
        self.describe(peer, server)
        self.watch(at, peer)
        self.serve(peer, message.key)
        for running in message.running:
            self.go_on(at, peer, server, running)
        details = {"server": name, "key": message.key, "address": host, "port": port}
        ours = {"slots": message.slots, "labels": labels, "how": OURS}
        actions.append(Record(at, "joined", {**details, **ours}))
        return [*actions, done(peer, message.id, server=name), *self.weigh_all(at), *self._is_back(at, name)]

    def _supersede(self, at: float, peer: Peer, identity: str) -> list[Action]:
        """Drop the same server's connection from before, if the tracker has not noticed its end yet."""
        conn = self.identities.get(identity)
        if conn is None or conn == peer.conn:
            return []
        reason = f"{self.peers[conn].name} has registered again, over another connection"
        return [*self._part(at, self.peers[conn], reason), Close(conn, reason)]

    def _name(self, peer: Peer, message: control.Register, host: str) -> str:
        """Name a server. If it was started anew at the place of one whose connection is not known to be dead, it is
        the heir of that name.
        """
        name = self.name_peer(peer, message.name)
        before = self.peers[self.server_names[message.name]].server
        place = (message.key, host, message.port)
        if (
            name != message.name
            and before is not None
            and message.port is not None
            and place == (before.key, before.host, before.port)
        ):
            self.heirs[message.name] = peer.conn
        return name

    def _inherited(self, name: str) -> list[Action]:
        """A name is free: its heir registers again, and gets it."""
        heir = self.peers.get(self.heirs.pop(name, 0))
        if heir is None or heir.server is None:
            return []
        return [Close(heir.conn, f"its name {name} is free again: it is to register under that")]

    def _drain(self, at: float, peer: Peer, message: control.Drain) -> list[Action]:
        return self._set_condition(at, peer, message.id, message.server or "", self.drain)

    def _enable(self, at: float, peer: Peer, message: control.Enable) -> list[Action]:
        return self._set_condition(at, peer, message.id, message.server, self.enable)

    def _set_condition(
        self, at: float, peer: Peer, asked: int, name: str, change: Callable[[float, str, str], list[Action]]
    ) -> list[Action]:
        if name not in self.server_names and name not in self.conditions:
            return [refusal(peer, asked, "BadRequest", hints.unknown_server(self, name))]
        return [done(peer, asked), *change(at, name, peer.who)]

    def _health(self, at: float, peer: Peer, message: control.Health) -> list[Action]:
        told = [] if peer.server is None else self.healthy(at, peer.name, message.problem)
        return [done(peer, message.id), *told]

    def _deployed(self, at: float, peer: Peer, message: control.Deployed) -> list[Action]:
        if len(message.modules) > MAX_MODULES:
            return [refusal(peer, message.id, "BadRequest", f"more than {MAX_MODULES} modules on one server")]
        self.deploy(peer, message.modules, message.key)
        return [done(peer, message.id)]

    def _resolve(self, at: float, peer: Peer, message: control.Resolve) -> list[Action]:
        rows = deployed.rows(self, peer, message.name)
        if message.name and not rows:
            return [refusal(peer, message.id, "UnknownKey", hints.unknown_module(self, message.name))]
        return [done(peer, message.id, modules=rows)]

    def _summary(self, at: float, peer: Peer, message: control.Summary) -> list[Action]:
        found, following = summary.page(self, at, peer, message.after or (0, 0))
        return [done(peer, message.id, summary=found, next=following and list(following))]

    def _not_yet(self, at: float, peer: Peer, message: control.Ask) -> list[Action]:
        return [refusal(peer, message.id, "BadRequest", f"this tracker does not support {message.op!r}")]

    def _acknowledged(self, at: float, peer: Peer, message: Answer) -> list[Action]:
        if message.ok and peer.heard < message.id <= peer.asked:
            peer.heard = message.id
        return self.alive(at, peer) if peer.unanswered else []

    # Time.

    def _tick(self, event: Tick) -> list[Action]:
        actions: list[Action] = []
        for kind, *details in self.deadlines.take(event.at):
            actions += _ON_DEADLINE[kind](self, event.at, *details)
        return actions

    def _forget(self, at: float, key: str) -> list[Action]:
        self.forget_queue(at, self.queues[key])
        return []


_ON_EVENT: dict[type, Callable[..., list[Action]]] = {
    Connected: State._connected,
    Disconnected: State._disconnected,
    Restored: State.restored,
    Tick: State._tick,
}

_ON_MESSAGE: dict[type, Callable[..., list[Action]]] = {
    control.Via: State._via,
    tracker.Ping: State._ping,
    tracker.Stop: State._stop,
    tracker.Put: State._put,
    tracker.TvmRequest: State.tvm_request,
    tracker.UpdateInfo: State._update_info,
    tracker.TvmSummary: State._tvm_summary,
    tracker.GetPending: State._get_pending,
    control.Request: State._request,
    control.Cancel: State.cancel,
    control.Release: State._release,
    control.Renew: State._renew,
    control.EndLease: State._end_lease,
    control.Summary: State._summary,
    control.Why: State.why,
    control.Register: State._register,
    control.LeaseStarted: State._lease_started,
    control.LeaseEnded: State._lease_ended,
    control.Health: State._health,
    control.Drain: State._drain,
    control.Enable: State._enable,
    control.Deployed: State._deployed,
    control.Resolve: State._resolve,
    control.History: State._not_yet,
    control.Usage: State._not_yet,
    control.Answer: State._acknowledged,
}

_ON_DEADLINE: dict[str, Callable[..., list[Action]]] = {
    "timeout": State.timed_out,
    "unknown": State.still_unknown,
    "age": State.age,
    "rest": State.rest,
    "wake": State.wake,
    "ticket": State.lose_place,
    "away": State.away,
    "trial": State.trial,
    "look": State.look,
    "settle": State.settle,
    "forget": State._forget,
    "positions": State.tell_positions,
}
