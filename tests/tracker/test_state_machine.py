"""Any order of events: no device has two holders, none is lost, no ended request is granted, and a replay agrees."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, multiple, rule

from rpcsys.tracker.leases import AWAY_S
from rpcsys.tracker.records import TICKET_S
from tests.tracker.transcripts import Scene

KEYS = ["a", "b"]


class TrackerMachine(RuleBasedStateMachine):
    """Clients and servers, TVM's and ours, come, offer, ask, cancel and go, in any order.

    The model is what each end knows by itself: a server which match keys it offers, a client what it was granted.
    """

    servers = Bundle("servers")
    clients = Bundle("clients")
    asked = Bundle("asked")

    def __init__(self) -> None:
        super().__init__()
        self.scene = Scene(proxy_from=("10.0.0.0/8",))
        self.alive: set[int] = set()
        self.offered: dict[str, int] = {}
        self.granted: dict[str, int] = {}
        self.waiting: dict[tuple[int, int], str] = {}
        self.tvm_waiting: dict[int, list[str]] = {}
        self.ours: set[int] = set()
        self.names: dict[int, str] = {}
        self.count = 0

    def number(self) -> int:
        self.count += 1
        return self.count

    # Connections.

    @rule(target=servers, key=st.sampled_from(KEYS), ours=st.booleans())
    def server_comes(self, key, ours):
        name = f"s{self.number()}"
        conn = self.scene.server(key, name, self.number(), identity=name) if ours else self.scene.tvm_server(key)
        self.names |= {conn: name} if ours else {}
        self.alive.add(conn)
        return conn, key

    @rule(target=servers, server=consumes(servers))
    def server_returns(self, server):
        """It comes through a proxy, before the tracker has seen the end of its connection."""
        before, key = server
        if before not in self.names:
            return server
        name = self.names[before]
        conn = self.scene.connect("10.0.0.3")
        self.scene.say(conn, {"op": "via", "address": ["10.0.0.8", 1], "proxy": [None, 9090]})
        self.scene.ask(conn, "register", key=key, name=name, identity=name)
        assert self.scene.closed[-1] == before
        self.names[conn] = name
        self.alive.add(conn)
        self.goes(before)
        return conn, key

    @rule(target=clients, ours=st.booleans())
    def client_comes(self, ours):
        conn = self.scene.client() if ours else self.scene.connect()
        self.alive.add(conn)
        self.ours |= {conn} if ours else set()
        return conn

    @rule(server=consumes(servers))
    def server_goes(self, server):
        self.goes(server[0])

    @rule(client=consumes(clients))
    def client_goes(self, client):
        self.goes(client)

    def goes(self, conn):
        self.scene.leave(conn)
        self.alive.discard(conn)
        self.offered = {match_key: server for match_key, server in self.offered.items() if server != conn}
        self.waiting = {asked: key for asked, key in self.waiting.items() if asked[0] != conn}
        self.tvm_waiting.pop(conn, None)
        self.listen()

    # Messages.

    @rule(server=servers)
    def offer(self, server):
        conn, key = server
        match_key = f"{key}:{self.number()}"
        self.offered[match_key] = conn
        self.scene.put(conn, match_key)
        self.listen()

    @rule(
        target=asked,
        client=clients,
        key=st.sampled_from(KEYS),
        priority=st.integers(0, 2),
        wait=st.none() | st.integers(0, 9),
    )
    def request(self, client, key, priority, wait):
        if client not in self.ours:
            self.tvm_waiting.setdefault(client, []).append(key)
            self.listen(client, self.scene.say(client, [4, key, "", priority]))
            return multiple()
        number = self.number()
        self.waiting[client, number] = key
        heard = self.scene.ask(client, "request", number, key=key, priority=priority, wait_timeout=wait)
        self.listen(client, heard)
        return client, number

    @rule(request=asked)
    def cancel(self, request):
        client, number = request
        if client in self.alive:
            self.listen(client, self.scene.ask(client, "cancel", self.number(), request=number))
            assert request not in self.waiting

    @rule(seconds=st.integers(0, 10))
    def time_passes(self, seconds):
        self.scene.wait(seconds)
        self.listen()

    # What they hear.

    def listen(self, *first):
        if first:
            self.take_all(*first)
        for conn in self.scene.heard:
            self.take_all(conn, self.scene.hear(conn))

    def take_all(self, conn, heard):
        for message in heard:
            assert conn in self.alive, "nobody who left is told anything"
            if type(message) is list and message and type(message[0]) is int:
                match_key = message[1][2]
                self.tvm_waiting[conn].remove(match_key.partition(":")[0])
                self.take_grant(conn, match_key)
            elif type(message) is dict and "leases" in message:
                match_key = message["leases"][0]["matchkey"]
                assert self.waiting.pop((conn, message["id"])) == match_key.partition(":")[0]
                self.take_grant(conn, match_key)
            elif type(message) is dict and message.get("ok") is False:
                del self.waiting[conn, message["id"]]

    def take_grant(self, conn, match_key):
        assert match_key not in self.granted, "a device has two holders"
        assert match_key in self.offered, "a device whose server is gone was handed out"
        del self.offered[match_key]
        self.granted[match_key] = conn

    # What always holds.

    @invariant()
    def the_queue_is_what_everybody_knows_it_is(self):
        for key in KEYS:
            free = sum(match_key.startswith(key + ":") for match_key in self.offered)
            pending = sum(wanted == key for wanted in self.waiting.values())
            pending += sum(wanted.count(key) for wanted in self.tvm_waiting.values())
            assert (self.scene.queue(key) or (0, 0)) == (free, pending)
            assert not (free and pending), "somebody waits while a device is free"

    def teardown(self):
        assert self.scene.replayed() == self.scene.state
        for conn in sorted(self.alive):
            self.goes(conn)
        self.scene.wait(AWAY_S + TICKET_S)
        state = self.scene.state
        left = (
            state.records.peers,
            state.records.queues,
            state.records.waiting,
            state.records.leases,
            state.records.server_names,
            state.records.moved,
        )
        assert not any(left)
        assert state.next_deadline is None


TestTracker = TrackerMachine.TestCase
TestTracker.settings = settings(max_examples=150, stateful_step_count=40, deadline=None)
