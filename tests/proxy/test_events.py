"""Any order of events: no stream is joined twice or after its end, matching streams are joined, and a replay agrees."""

from __future__ import annotations

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import Bundle, RuleBasedStateMachine, consumes, invariant, rule

from tests.proxy.transcripts import ProxyTranscript

KEYS = st.sampled_from(["a", "a:b"])
IDS = st.sampled_from(["", "7", "8"])
LIMIT, LIMIT_PER_ADDRESS = 6, 4


class DirectMachine(RuleBasedStateMachine):
    """Without a tracker. The model has each stream's role and key, and whether it has ended."""

    streams = Bundle("streams")

    def __init__(self) -> None:
        super().__init__()
        self.proxy = ProxyTranscript(
            timeout_client=20, timeout_server=50, max_waiting=LIMIT, max_waiting_per_address=LIMIT_PER_ADDRESS
        )
        self.streams_by_conn: dict[int, tuple[str, str]] = {}
        self.gone: set[int] = set()

    @rule(target=streams, key=KEYS, id=IDS)
    def server_connects(self, key, id):
        return self.connected(self.proxy.server(key, id), "server", key)

    @rule(target=streams, key=KEYS)
    def client_connects(self, key):
        return self.connected(self.proxy.client(key), "client", key)

    def connected(self, conn, role, key):
        self.streams_by_conn[conn] = role, key
        return conn

    @rule(conn=consumes(streams))
    def stream_ends(self, conn):
        self.proxy.leave(conn)
        self.gone.add(conn)

    @rule(seconds=st.integers(0, 30))
    def time_passes(self, seconds):
        self.proxy.wait(seconds)

    def joined(self):
        return [conn for pair in self.proxy.pairs for conn in pair]

    @invariant()
    def each_stream_ends_once(self):
        joined = self.joined()
        assert len(set(joined)) == len(joined)
        assert not set(joined) & set(self.proxy.refused)
        waiting = set(self.proxy.state.waiting.by_conn)
        assert waiting == set(self.streams_by_conn) - set(joined) - set(self.proxy.refused) - self.gone

    @invariant()
    def pairs_have_the_same_key(self):
        for client, server in self.proxy.pairs:
            assert self.streams_by_conn[client][0] == "client"
            assert self.streams_by_conn[server][0] == "server"
            assert self.fits(self.streams_by_conn[client][1], self.streams_by_conn[server][1])

    def fits(self, wanted, served):
        return wanted == served

    @invariant()
    def no_waiting_streams_match(self):
        waiting = [self.streams_by_conn[conn] for conn in self.proxy.state.waiting.by_conn]
        for key in {key for _, key in waiting}:
            assert not {("client", key), ("server", key)} <= set(waiting)

    @invariant()
    def bounds_hold(self):
        state = self.proxy.state
        assert len(state.waiting) <= LIMIT
        for address in {one.address for one in state.waiting}:
            assert sum(one.address == address for one in state.waiting) <= LIMIT_PER_ADDRESS
        assert all(one.until is not None and one.until > self.proxy.now for one in state.waiting)

    @invariant()
    def a_key_has_one_owner(self):
        parked = {}
        for one in self.proxy.state.waiting:
            if one.role == "server":
                parked.setdefault(one.name, []).append(one.server)
        for ids in parked.values():
            assert len(ids) == 1 or (len(set(ids)) == 1 and ids[0])

    def teardown(self):
        assert self.proxy.is_replayed()


class TrackedMachine(RuleBasedStateMachine):
    """With a tracker, which the model plays: it grants the offers of the present connection."""

    servers = Bundle("servers")

    def __init__(self) -> None:
        super().__init__()
        self.proxy = ProxyTranscript(tracked=True)
        self.alive: set[int] = set()
        self.pending: set[str] = set()
        self.up = False
        self.seen = 0
        self.reconnects = 0
        self.own = 0

    def take_offers(self):
        """Take the proxy's new offers, after a reconnect if the proxy has requested one."""
        if self.proxy.reconnects > self.reconnects:
            self.reconnects = self.proxy.reconnects
            self.goes_down()
            self.comes_up()
            return
        offered = self.proxy.offered[self.seen :]
        self.seen = len(self.proxy.offered)
        assert not set(offered) & self.pending
        self.pending |= set(offered)

    @rule(target=servers, key=KEYS, id=IDS)
    def server_connects(self, key, id):
        conn = self.proxy.server(key, id)
        self.alive.add(conn)
        self.take_offers()
        return conn

    @rule(target=servers, key=KEYS)
    def offering_server_connects(self, key):
        self.own += 1
        conn = self.proxy.server(f"{key}:own{self.own}", "9", offered=True)
        self.alive.add(conn)
        self.take_offers()
        return conn

    @rule(conn=consumes(servers))
    def server_ends(self, conn):
        self.proxy.leave(conn)
        self.alive.discard(conn)

    @rule()
    def comes_up(self):
        if not self.up:
            self.up, self.seen = True, 0
            self.proxy.tracker_up()
            self.take_offers()

    @rule()
    def goes_down(self):
        if self.up:
            self.up = False
            self.pending.clear()
            self.proxy.tracker_down()
            self.proxy.offered.clear()
            self.seen = 0

    @rule(seconds=st.integers(0, 8))
    def polls(self, seconds):
        self.proxy.wait(seconds)
        if self.up:
            self.proxy.pending(*sorted(self.pending))
            self.take_offers()

    @rule()
    def client_gets_an_offer(self):
        """Give a client an offer: it is joined with a server, unless that has just ended."""
        if not self.pending:
            return
        match_key = min(self.pending)
        self.pending.discard(match_key)
        before = len(self.proxy.pairs)
        client = self.proxy.client(match_key)
        if len(self.proxy.pairs) > before:
            assert self.proxy.pairs[-1][0] == client
            server = self.proxy.pairs[-1][1]
            assert server in self.alive
        else:
            assert client in self.proxy.state.waiting.by_conn

    @invariant()
    def a_server_is_joined_once(self):
        servers = [server for _, server in self.proxy.pairs]
        assert len(set(servers)) == len(servers)

    @invariant()
    def parked_servers_are_alive_and_not_taken(self):
        taken = {server for _, server in self.proxy.pairs}
        parked = {conn for conn, one in self.proxy.state.waiting.by_conn.items() if one.role == "server"}
        assert parked == self.alive - taken
        assert set(self.proxy.state.offers.streams) <= parked

    @rule()
    def settles(self):
        """Without new or ended streams, the tracker ends up with exactly the parked streams."""
        for _ in range(4):
            self.polls(6)
        if self.up:
            assert self.pending == {one.name for one in self.proxy.state.offers.streams.values()}

    def teardown(self):
        assert self.proxy.is_replayed()


TestDirect = DirectMachine.TestCase
TestTracked = TrackedMachine.TestCase
TestDirect.settings = TestTracked.settings = settings(max_examples=60, stateful_step_count=40, deadline=None)
