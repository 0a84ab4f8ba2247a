"""Who comes to a tracker that does not lead: lookouts, and what they are told; all others; and that it leads itself."""

from __future__ import annotations

import contextlib
import json
import os
import resource
import socket
import tracemalloc

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys.link.admission import Admission
from rpcsys.tracker import connection
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas.standby import Comer, comer, message_in
from rpcsys.wire.control import KEEPALIVE, Hello, Via
from rpcsys.wire.replicas import REPLICAS
from rpcsys.wire.tracker import Ping, encode
from tests.live.daemons import wait_until
from tests.live.probe import TrackerProbe
from tests.tracker.replicas.standbys import HELLO, MAGIC, OLD_HELLO, SOON_S, raw
from tests.wire.messages import TO_TRACKER, VIAS

pytestmark = pytest.mark.live
LEADER = ("10.0.0.1", 9190)
OTHER = ("10.0.0.2", 9190)
FRAMES = st.binary(min_size=1, max_size=60) | TO_TRACKER.map(lambda message: encode(message)[4:])


def told(leader, term, **more):
    return {"op": "leader", "leader": leader and list(leader), "term": term, "here": False, **more}


def again(probe):
    """What a lookout does that was told ``here``: it begins anew."""
    probe.socket.sendall(MAGIC)
    assert probe.read(4) == MAGIC
    return probe.ask(HELLO)


# --- who it is -----------------------------------------------------------------------------------


@given(FRAMES)
def test_any_first_frame_is_of_somebody(frame):
    assert isinstance(comer(message_in(frame)), Comer)


@given(TO_TRACKER.filter(lambda message: not isinstance(message, Via)))
def test_who_does_not_ask_for_a_standby_is_relayed(message):
    assert comer(message_in(encode(message)[4:])) is Comer.RELAYED


@given(VIAS)
def test_a_via_of_a_standby_is_not_passed_on(via):
    assert comer(message_in(encode(via)[4:])) is (Comer.STANDBY if via.proxy is None else Comer.RELAYED)


def test_a_hello_with_the_capability_looks_out():
    assert comer(Ping(Hello("0", ("x", REPLICAS)))) is Comer.LOOKOUT
    assert comer(Ping(Hello("0", ("replicas/2",)))) is comer(Ping()) is comer(None) is Comer.RELAYED


# --- lookouts ------------------------------------------------------------------------------------


def test_a_lookout_is_told_who_leads_and_of_each_change(site):
    probe, answer = site.lookout()
    assert (answer["ok"], answer["role"], answer["leader"], answer["term"]) == (True, "standby", None, 0)
    assert answer["tracker"] == "rpcsys"
    assert "session/1" in answer["capabilities"]
    site.follow(LEADER, 4)
    assert probe.receive() == told(LEADER, 4)
    site.follow(LEADER, 4)  # no change
    site.follow(OTHER, 3)  # a leader that is deposed
    site.follow(None, 0)
    assert probe.receive() == told(None, 4)
    site.follow(OTHER, 9)
    assert probe.receive() == told(OTHER, 9)
    late, answer = site.lookout()
    assert (answer["leader"], answer["term"]) == ([*OTHER], 9)
    assert site.counts() == (2, 0, 0)
    late.close()
    site.until(lambda: len(site.standby.lookouts) == 1, "the lookout's end is seen")


def test_a_lookout_that_says_something_ends(site):
    early = TrackerProbe(site.address)
    early.socket.sendall(raw(json.dumps(HELLO).encode()) + raw(b"[1]"))
    early.receive()
    assert early.ended()
    late, _ = site.lookout()
    late.send([1])
    assert late.ended()
    early.close()
    assert site.counts() == (0, 0, 0)


def test_a_lookout_that_reads_nothing_ends(site):
    site.lookout()
    term = 0
    while site.counts()[0]:
        term += 1
        site.ask(lambda: [site.standby._tell(each, bytes(4096)) for each in [*site.standby.lookouts]])
        assert term < 10_000


def test_in_the_end_each_lookout_knows_the_last_leader(site):
    probes = [site.lookout()[0] for _ in range(300)]  # more than one turn of the loop
    for term in range(1, 6):
        site.follow(LEADER, term)
    for probe in probes:
        while probe.receive() != told(LEADER, 5):
            pass


# --- this tracker leads itself --------------------------------------------------------------------


def test_lookouts_begin_anew_at_the_tracker_that_leads_here(site):
    site.follow(LEADER, 4)
    probes = [site.lookout()[0] for _ in range(300)]
    leader = site.leader(term=5)
    site.give_over(leader, 5)
    for probe in probes:
        assert probe.receive() == told(leader.address, 5, here=True)
        answer = again(probe)
        assert (answer["role"], answer["term"]) == ("leader", 5)
        assert "leader" not in answer
    assert site.counts() == (0, 0, 0)
    assert len(leader.peers()) == len(probes)
    assert site.probe().ask(HELLO)["role"] == "leader"


def test_clients_that_look_out_are_told_before_servers(site):
    server = [1, {**HELLO[1], "capabilities": [REPLICAS, KEEPALIVE]}]
    kinds = [server, HELLO, server, server, HELLO]
    ports = []
    for kind in kinds:
        probe = site.probe()
        assert probe.ask(kind)["role"] == "standby"
        ports.append(probe.socket.getsockname()[1])
    given: list[int] = []

    def adopt(sock, *_):
        given.append(sock.getpeername()[1])
        sock.close()

    site.ask(lambda: site.standby.give_over(LEADER, 5, adopt))
    site.until(lambda: len(given) == len(ports), "all are given over")
    assert given == [ports[number] for number in (1, 4, 0, 2, 3)]


def test_a_tracker_that_is_no_replica_has_no_role(site):
    leader = site.leader()
    with TrackerProbe(leader.address) as probe:
        assert not {"role", "term"} & probe.ask(HELLO).keys()
    with TrackerProbe(site.leader(term=3).address) as probe:
        assert not {"role", "term"} & probe.ask(OLD_HELLO).keys()


def test_those_that_wait_are_answered_by_the_tracker_that_leads_here(site):
    waits, idle, half, silent = site.probe(), site.probe(), site.probe(), socket.create_connection(site.address)
    waits.send([1])
    waits.send([6])
    half.socket.sendall(raw(b"[1]")[:5])
    silent.sendall(MAGIC[:2])
    site.until(lambda: site.counts_now() == (0, 0, 1), "one waits")
    site.until(lambda: len(site.standby.open_connections) == 3, "three have said nothing yet")
    leader = site.leader(term=5)
    site.give_over(leader, 5)
    assert waits.receive() == 0
    assert waits.receive()[0] == 0
    half.socket.sendall(raw(b"[1]")[5:])
    silent.sendall(MAGIC[2:] + raw(b"[1]"))
    silent.settimeout(SOON_S)
    assert half.receive() == 0
    assert idle.ask([1]) == 0
    assert silent.recv(4) == MAGIC
    silent.close()
    site.until(lambda: not site.standby.open_connections, "nobody is left at the standby")


def test_a_peer_that_comes_while_connections_are_given_over_is_answered(site):
    leader = site.leader(term=5)
    late = site.probe()
    site.ask(lambda: site.standby.give_over(leader.address, 5, leader.service.adopt))
    assert late.ask(HELLO)["role"] == "leader"
    assert site.probe().ask(HELLO)["role"] == "leader"  # the standby still accepts


def test_a_tracker_that_led_is_a_standby_again(site):
    leader = site.leader(term=5)
    site.give_over(leader, 5)
    assert site.probe().ask(HELLO)["role"] == "leader"
    site.take = site.standby.accept
    site.follow(OTHER, 6)
    probe, answer = site.lookout()
    assert (answer["role"], answer["leader"], answer["term"]) == ("standby", [*OTHER], 6)
    site.follow(None, 6)
    assert probe.receive() == told(None, 6)


# --- peers that break the rules -------------------------------------------------------------------


def test_a_connection_of_another_standby_ends(site):
    probe = site.probe()
    probe.send({"op": "via", "address": ["10.0.0.5", 1], "proxy": None})
    assert probe.ended()
    assert site.counts() == (0, 0, 0)


@pytest.mark.parametrize("begun", [b"", MAGIC[:2], MAGIC + b"\x05", MAGIC + raw(b"[1]")[:-1]])
def test_a_peer_that_says_only_half_is_dropped(site, monkeypatch, begun):
    monkeypatch.setattr(connection, "SILENCE_S", 1.0)
    with socket.create_connection(site.address) as sock:
        sock.sendall(begun)
        site.until(lambda: len(site.standby.open_connections) == 1, "it is there")
        site.until(lambda: not site.standby.open_connections, "it is dropped")


def test_a_peer_between_two_messages_is_not_dropped(site, monkeypatch):
    monkeypatch.setattr(connection, "SILENCE_S", 1.0)
    probe = site.probe()  # as TVM's client, which connects long before it asks
    with socket.create_connection(site.address) as other:
        site.until(lambda: len(site.standby.open_connections) == 2, "both are there")
        site.until(lambda: len(site.standby.open_connections) == 1, "the other one is dropped")
        del other
    site.follow(site.leader().address, 1)
    assert probe.ask([1]) == 0


@pytest.mark.parametrize(
    ("said", "answer"),
    [
        (b"GET / HTTP/1.1\r\n\r\n", b"HTTP/1.1 400"),
        (b"\x71\xf2\x0f\x00", MAGIC),
        (b"\xb7\xad\x17\xee", b""),
        (MAGIC + (1 << 20).to_bytes(4, "little"), b""),
        (MAGIC + b"\xff\xff\xff\xff", b""),
        (MAGIC + bytes(4), b""),
    ],
)
def test_what_is_not_of_this_protocol_ends(site, said, answer):
    with socket.create_connection(site.address, timeout=SOON_S) as sock:
        sock.sendall(said)
        heard = b""
        try:
            while data := sock.recv(1000):
                heard += data
        except ConnectionResetError:
            pass
    assert heard.startswith(answer)
    assert site.counts() == (0, 0, 0)


def test_networks_that_are_not_served_are_told_so(site):
    site.ask(lambda: setattr(site.standby, "served", Admission(base=("10.0.0.0/8",))))
    for frame, key in ((HELLO, "message"), ([4, "rpi4", "", 1], 1), ({"op": "summary", "id": 7}, "message")):
        with socket.create_connection(site.address, SOON_S, ("127.0.0.5", 0)) as sock:
            sock.sendall(MAGIC + raw(json.dumps(frame).encode()))
            probe = object.__new__(TrackerProbe)
            probe.socket = sock
            assert probe.read(4) == MAGIC
            assert "--admit 127.0.0.5" in probe.receive()[key]
    assert site.counts() == (0, 0, 0)


class TestLimited:
    """One address has at most three connections."""

    @pytest.fixture
    def config(self):
        return TrackerConfig(max_connections_per_address=3, proxy_from=("10.9.9.9",))

    def test_connections_of_an_address_are_bounded(self, site):
        kept = [site.lookout()[0], site.probe(), site.probe()]
        kept[1].send([1])
        site.until(lambda: len(site.standby.relays.waiting) == 1, "it waits")
        with socket.create_connection(site.address, timeout=SOON_S) as sock:
            assert sock.recv(1) == b""
        for probe in kept:
            probe.close()
        site.until(lambda: not site.standby.admission._counted.counts, "all are gone")
        assert site.lookout()[1]["role"] == "standby"


@settings(max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    said=st.binary(max_size=60)
    | st.builds(
        lambda frames, rest: MAGIC + b"".join(map(raw, frames)) + rest, st.lists(FRAMES, max_size=3), st.binary()
    )
)
def test_any_first_bytes_fail_nothing(site, caplog, said):
    with socket.create_connection(site.address) as sock:
        sock.sendall(said)
        sock.shutdown(socket.SHUT_WR)
        sock.settimeout(SOON_S)
        with contextlib.suppress(ConnectionResetError):
            while sock.recv(1000):
                pass
    assert "failed to handle" not in caplog.text
    assert site.problems == []


# --- what it costs -------------------------------------------------------------------------------


def test_descriptors_do_not_leak(site, script):
    def visit():
        lookouts = [site.lookout()[0] for _ in range(5)]
        waiting = [site.probe() for _ in range(5)]
        for probe in waiting:
            probe.send([1])
        site.until(lambda: len(site.standby.relays.waiting) == 5, "they wait")
        leader = site.leader()
        site.follow(leader.address, site.standby.term + 1)
        for probe in waiting:
            assert probe.receive() == 0
        site.follow(script.address, site.standby.term + 1)
        assert all(probe.ended() for probe in waiting)
        for probe in (*lookouts, *waiting):
            probe.close()
        leader.stop()
        site._leaders.clear()
        wait_until(lambda: site.counts() == (0, 0, 0), SOON_S, "all are gone")

    visit()
    before = len(os.listdir("/proc/self/fd"))
    for _ in range(3):
        visit()
    wait_until(lambda: len(os.listdir("/proc/self/fd")) <= before, SOON_S, "nothing more is open")


def test_memory_of_lookouts(site, descriptors, record_property):
    count = min(2000, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
    hello = MAGIC + raw(json.dumps(HELLO).encode())
    site.lookout()
    tracemalloc.start()
    try:
        numbers = []
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(count):
            sock = socket.create_connection(site.address)
            sock.sendall(hello)
            numbers.append(sock.detach())
        site.until(lambda: len(site.standby.lookouts) == count + 1, "all look out")
        each = (tracemalloc.get_traced_memory()[0] - before) / count
    finally:
        tracemalloc.stop()
    for number in numbers:
        os.close(number)
    record_property("bytes of a lookout", round(each))
    assert each < 1200
