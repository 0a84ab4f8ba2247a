"""Connections that a standby relays: what reaches the leader and what does not, while leaders come and go."""

from __future__ import annotations

import asyncio
import gc
import json
import socket
import struct
import threading
import time
from concurrent.futures import ThreadPoolExecutor

import pytest

from rpcsys.daemon import dialling
from rpcsys.tracker import events
from rpcsys.tracker.config import TrackerConfig
from rpcsys.tracker.replicas import relays
from rpcsys.tracker.replicas.relays import KEPT
from rpcsys.wire.control import Via
from rpcsys.wire.tracker import decode_json
from tests.live.daemons import free_port, wait_free, wait_until
from tests.live.labs import LabOnDisk
from tests.live.probe import REQUEST, LabProbe, TrackerProbe
from tests.scripted_peers import exactly
from tests.tracker.replicas.standbys import MAGIC, OLD_HELLO, SOON_S, Site, raw

pytestmark = pytest.mark.live
OFFER = [3, "rpi4", [9090, "rpi4:1"], None]


def frame(message):
    return raw(json.dumps(message).encode())


def via_of(sock):
    """The first frame of a relayed connection, at the leader, after the magic of both ends."""
    assert exactly(sock, 4) == MAGIC
    sock.sendall(MAGIC)
    (size,) = struct.unpack("<i", exactly(sock, 4))
    return Via.from_json(decode_json(exactly(sock, size)))


# --- many items -----------------------------------------------------------------------------------


@pytest.mark.parametrize("rounds", [5, 10**9])
def test_much_other_work_comes_between_some_items_and_the_next(rounds):
    """What those that were told say is handled first; endless work does not keep the rest from being told."""
    left, found = rounds, []

    async def run() -> None:
        loop = asyncio.get_running_loop()

        def other() -> None:
            nonlocal left
            time.sleep(0.003)
            left -= 1
            if left and len(found) <= 2 * relays.TURN:
                loop.call_soon(other)

        loop.call_soon(other)
        await relays.in_turns(lambda _: found.append(left), range(2 * relays.TURN + 1))

    asyncio.run(run())
    assert found[: relays.TURN] == [rounds] * relays.TURN
    assert found[relays.TURN] == max(0, rounds - relays.MOST_TURNS)
    assert len(found) == 2 * relays.TURN + 1


# --- what reaches the leader ----------------------------------------------------------------------


def test_the_leader_hears_of_the_peer_then_all_that_it_says(site, script, monkeypatch):
    monkeypatch.setattr(relays, "is_loopback", lambda address: False)
    site.follow(script.address, 1)
    with socket.create_connection(site.address, SOON_S, ("127.0.0.5", 0)) as peer:
        peer.sendall(MAGIC + frame([1]) + frame([6]) + b"\x07")
        assert exactly(peer, 4) == MAGIC
        with script.accept() as leader:
            via = via_of(leader)
            assert (via.address, via.proxy) == (peer.getsockname(), None)
            assert exactly(leader, 15) == frame([1]) + frame([6]) + b"\x07"
            leader.sendall(b"answer")
            assert exactly(peer, 6) == b"answer"
            peer.sendall(b"more")
            assert exactly(leader, 4) == b"more"
            peer.close()
            assert leader.recv(1) == b""
    site.until(lambda: site.counts_now() == (0, 0, 0), "the relay has ended")


def test_a_peer_on_the_standbys_machine_has_that_machines_address(site, script):
    site.follow(script.address, 1)
    with socket.create_connection(site.address, SOON_S, ("127.0.0.5", 0)) as peer:
        peer.sendall(MAGIC + frame([1]))
        with script.accept() as leader:
            assert via_of(leader).address == ("127.0.0.1", peer.getsockname()[1])


def test_a_proxy_is_named_before_the_one_that_it_names(site, monkeypatch):
    monkeypatch.setattr(relays, "is_loopback", lambda address: False)
    leader = site.leader(config=TrackerConfig(proxy_from=("127.0.0.0/8", "10.0.0.0/8")))
    site.follow(leader.address, 1)
    with socket.create_connection(site.address, SOON_S, ("127.0.0.5", 0)) as proxy:
        via = {"op": "via", "address": ["192.168.7.20", 1], "proxy": [None, 9090]}
        proxy.sendall(MAGIC + frame(via) + frame([5, {"key": "server:rpi4", "addr": [None, 0]}]) + frame(OFFER))
        assert exactly(proxy, 4) == MAGIC
        wait_until(lambda: leader.peers() == ["192.168.7.20"], SOON_S, "the board is known")
        with TrackerProbe(leader.address) as client:
            assert client.lease("rpi4") == ("127.0.0.5", 9090, "rpi4:1")


def test_a_tls_connection_is_relayed_as_it_is(site, script):
    site.follow(script.address, 1)
    with socket.create_connection(site.address, SOON_S) as peer:
        peer.sendall(b"\x16\x03\x01\x02\x00hello")
        with script.accept() as leader:
            via_of(leader)
            assert exactly(leader, 10) == b"\x16\x03\x01\x02\x00hello"
            leader.sendall(b"server")
            assert exactly(peer, 6) == b"server"


def test_requests_of_both_protocols_are_answered_by_the_leader(site):
    leader = site.leader()
    site.follow(leader.address, 1)
    server, tvm_client, client, lookout = site.probe(), site.probe(), site.probe(), site.lookout()[0]
    assert server.ask([5, {"key": "server:rpi4", "addr": [None, 9090]}]) == 0
    assert server.ask(OFFER) == 0
    assert server.ask([3, "rpi4", [9090, "rpi4:2"], None]) == 0
    assert tvm_client.lease("rpi4") == ("127.0.0.1", 9090, "rpi4:1")
    assert client.ask(OLD_HELLO)["capabilities"]
    (lease,) = client.ask({"op": "request", "id": 1, "key": "rpi4"})["leases"]
    assert lease["matchkey"] == "rpi4:2"
    assert site.counts() == (1, 3, 0)
    assert len(leader.peers()) == 3
    lookout.close()


# --- who waits ------------------------------------------------------------------------------------


def test_peers_wait_for_a_leader(site):
    server, client = site.probe(), site.probe()
    server.send(OFFER)
    client.send([REQUEST, "rpi4", "", 1])
    site.until(lambda: site.counts_now() == (0, 0, 2), "both wait")
    site.follow(("127.0.0.1", free_port()), 1)  # it is not there
    leader = site.leader()
    site.follow(leader.address, 2)
    assert server.receive() == 0
    assert client.receive() == [0, ["127.0.0.1", 9090, "rpi4:1"]]
    assert site.counts() == (0, 2, 0)


def test_a_peer_that_has_gone_leaves_nothing_at_the_leader(site):
    gone = [site.probe() for _ in range(3)]
    for probe in gone:
        probe.send([REQUEST, "rpi4", "", 9])
    site.until(lambda: len(site.standby.relays.waiting) == 3, "they wait")
    leader = site.leader()

    def all_at_once() -> None:
        """The loop has no turn in which it could see an end before it is to pass on what was said."""
        for probe in gone:
            probe.socket.close()
        site.standby.follow(leader.address, 1)
        first = next(iter(site.standby.relays.waiting))
        assert first.port() is None

    site.ask(all_at_once)
    site.until(lambda: site.counts_now() == (0, 0, 0), "they are dropped")
    site.until(lambda: not leader.service.state.records.peers, "the leader has nothing of them")
    with TrackerProbe(leader.address) as server:
        server.ask([3, "rpi4", [9090, "rpi4:1"], None])
        assert site.probe().lease("rpi4")[2] == "rpi4:1"


def test_a_ghost_does_not_take_the_ticket_of_a_client_that_lives(site, tmp_path):
    asks = {"op": "request", "id": 1, "key": "rpi4", "wait_for_key": True}
    config = TrackerConfig(state_dir=str(tmp_path))
    first = site.leader(config=config)
    site.follow(first.address, 1)
    client = site.probe()
    client.ask(OLD_HELLO)
    ticket = client.ask(asks)["ticket"]
    first.stop()
    site._leaders.remove(first)
    assert client.ended()
    ghost = site.probe()
    ghost.send(OLD_HELLO)
    ghost.send({**asks, "ticket": ticket})
    site.until(lambda: len(site.standby.relays.waiting) == 1, "the ghost waits")
    second = site.leader(term=2, config=config)
    with TrackerProbe(second.address) as living:
        living.ask(OLD_HELLO)
        assert living.ask({**asks, "id": 7, "ticket": ticket})["ticket"] == ticket

        def die() -> None:
            ghost.socket.close()
            site.standby.give_over(second.address, 2, second.service.adopt)

        site.ask(die)
        site.until(lambda: site.counts_now() == (0, 0, 0), "the ghost is dropped")
        (request,) = site.ask(lambda: [*second.service.state.records.waiting.values()])
        assert request.id == 7
        assert len(second.peers()) == 1


def test_a_leader_that_hangs_gets_nothing_but_the_magic(site, script, monkeypatch):
    monkeypatch.setattr(dialling, "CONNECT_S", 1.0)
    site.follow(script.address, 1)
    client = site.probe()
    client.send([REQUEST, "rpi4", "", 1])
    with script.accept() as hung, script.accept():
        site.until(lambda: site.counts_now() == (0, 0, 1), "the client waits")
        assert hung.recv(100) == MAGIC
        assert hung.recv(100) == b""
    leader = site.leader()
    site.follow(leader.address, 2)
    wait_until(lambda: len(leader.peers()) == 1, SOON_S, "the client is relayed")


def test_what_no_tracker_answers_is_no_leader(site, script, caplog):
    site.follow(script.address, 1)
    client = site.probe()
    client.send([1])
    for answer in (b"HTTP", b"q\xf2", b""):
        with script.accept() as other:
            other.sendall(answer)
            other.shutdown(socket.SHUT_WR)
            while other.recv(100):
                pass
    assert site.counts() == (0, 0, 1)
    assert caplog.text.count("cannot relay to the leader") == 1
    assert "it is no tracker" in caplog.text


def test_a_waiting_peer_is_read_no_further_than_what_is_kept(site):
    probe = site.probe()
    probe.socket.settimeout(2.0)
    with pytest.raises(TimeoutError):
        probe.socket.sendall(frame([1]) * 10_000_000)
    standby = site.standby
    assert site.counts() == (0, 0, 1)
    assert 0 < site.ask(lambda: standby.relays.kept) <= KEPT
    probe.socket.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    probe.close()
    site.until(lambda: site.counts_now() == (0, 0, 0), "its end is seen, though not all was read")


def test_all_that_a_peer_said_while_it_waited_arrives(site):
    probe = site.probe()
    count = 40_000
    sender = threading.Thread(target=lambda: probe.socket.sendall(frame([1]) * count))
    sender.start()
    site.until(lambda: site.counts_now() == (0, 0, 1), "it waits")
    site.follow(site.leader().address, 1)
    assert exactly(probe.socket, 5 * count) == frame(0) * count
    sender.join(SOON_S)


def test_a_first_frame_of_48_kib_is_relayed_and_a_longer_one_is_not(site):
    site.follow(site.leader().address, 1)
    long = json.dumps([1]).encode()
    probe = site.probe()
    probe.socket.sendall(raw(long + b" " * (KEPT - (16 << 10) - len(long))))
    assert probe.receive() == 0
    probe = site.probe()
    probe.socket.sendall(raw(long + b" " * KEPT))
    assert probe.ended()


def test_those_that_wait_have_a_bound_in_all(site, monkeypatch, caplog):
    monkeypatch.setattr(relays, "KEPT_ALL", 3 * len(frame([1])))
    probes = [site.probe() for _ in range(5)]
    for probe in probes[:3]:
        probe.send([1])
    site.until(lambda: len(site.standby.relays.waiting) == 3, "three wait")
    for probe in probes[3:]:
        probe.send([1])
        assert probe.ended()
    assert "too many wait for a leader" in caplog.text
    probes[0].close()
    site.until(lambda: len(site.standby.relays.waiting) == 2, "one has gone")
    probe = site.probe()
    probe.send([1])
    site.until(lambda: len(site.standby.relays.waiting) == 3, "another one waits")


# --- leaders that come and go ---------------------------------------------------------------------


def test_relays_are_cut_when_another_leads(site):
    first, second = site.leader(), site.leader()
    site.follow(first.address, 1)
    relayed, idle = site.probe(), site.probe()
    assert relayed.ask([1]) == 0
    site.follow(first.address, 1)  # no change
    assert relayed.ask([1]) == 0
    site.follow(second.address, 2)
    assert relayed.ended()
    assert idle.ask([1]) == 0  # it has said nothing before
    assert (len(first.peers()), len(second.peers())) == (0, 1)
    site.follow(None, 2)
    assert idle.ended()


def test_a_leader_that_dies_and_comes_back_is_dialled_again(site):
    leader = site.leader()
    site.follow(leader.address, 1)
    probe = site.probe()
    assert probe.ask([1]) == 0
    leader.stop()
    site._leaders.clear()
    assert probe.ended()
    probe.close()
    probes = [site.probe() for _ in range(40)]  # more than are dialled for at once
    for probe in probes:
        probe.send([1])
    site.until(lambda: len(site.standby.relays.waiting) == 40, "all wait")
    site.leader(port=leader.address[1])
    assert [probe.receive() for probe in probes] == [0] * 40
    assert site.counts() == (0, 40, 0)


def test_a_peer_that_comes_when_the_last_dial_has_ended_is_dialled_for(site):
    site.follow(site.leader().address, 1)
    for _ in range(200):
        probe = site.probe()
        assert probe.ask([1]) == 0
        probe.close()


def test_a_standby_at_which_a_relay_arrives_passes_nothing_on(site):
    """Two standbys that hold each other for the leader: one hop."""
    other = Site(TrackerConfig())
    try:
        site.follow(other.address, 1)
        other.follow(site.address, 1)
        probe = site.probe()
        probe.send([REQUEST, "rpi4", "", 1])
        assert probe.ended()
        assert other.counts()[1:] == (0, 0)
    finally:
        other.close()


# --- whom the leader believes ---------------------------------------------------------------------


@pytest.mark.parametrize("address", ["127.0.0.1", "10.0.0.9"])
def test_the_leader_believes_replicas_alone(site, monkeypatch, address):
    leader = site.leader(config=TrackerConfig(proxy_from=("10.9.9.9",), max_connections_per_address=2))
    site.ask(lambda: leader.service.perform(events.ReplicasChanged(leader.service.now(), (address,))))
    site.follow(leader.address, 1)
    probes = [site.probe() for _ in range(4)]
    if address == "127.0.0.1":  # they do not count for its limit
        assert [probe.ask([1]) for probe in probes] == [0] * 4
    else:
        probes[0].send([1])
        assert probes[0].ended()


# --- a closed lab ---------------------------------------------------------------------------------


class TestOfClosedLab:
    """What is inside TLS can be read by the leader alone, and a hello in the clear is for it to refuse."""

    @pytest.fixture
    def lab(self, tmp_path):
        return LabOnDisk(tmp_path)

    @pytest.fixture
    def config(self, lab):
        return TrackerConfig(lab=str(lab.path), proxy_from=("127.0.0.1",))

    @pytest.fixture
    def come(self, site, lab):
        """Has a member come to the standby; returns what waits for the answer to its hello."""
        with ThreadPoolExecutor() as pool:

            def say():
                with LabProbe(site.address) as probe:
                    return probe.hello(lab.keeper.token, capabilities=["replicas/1"])

            yield lambda: pool.submit(say)

    def test_members_are_relayed(self, site, config, come):
        leader = site.leader(5, config=config)
        site.follow(leader.address, 5)
        answer = come().result(SOON_S)
        assert (answer["ok"], answer["role"], answer["lab"]) == (True, "leader", "basement")

    def test_members_that_wait_are_answered_by_the_tracker_that_leads_here(self, site, config, come):
        answered = come()
        site.until(lambda: site.counts_now() == (0, 0, 1), "it waits")
        site.give_over(site.leader(5, config=config), 5)
        assert answered.result(SOON_S)["role"] == "leader"

    def test_nobody_looks_out_in_the_clear(self, site, config):
        site.follow(site.leader(5, config=config).address, 5)
        _, answer = site.lookout()
        assert (answer["ok"], answer["error"]) == (False, "Unauthorized")


# --- TVM's own programs ---------------------------------------------------------------------------


def test_tvms_server_and_client_notice_nothing(site, module_daemons):
    rpc = pytest.importorskip("tvm.rpc")
    daemons = module_daemons("open")
    tracker, later = daemons.tracker(), daemons.tracker()
    site.follow(tracker.address, 1)
    server = daemons.server("rpi4", "--tracker", "{}:{}".format(*site.address), flavour="tvm")
    wait_free(tracker, "rpi4", 1, SOON_S)
    client = rpc.connect_tracker(*site.address)
    assert "rpi4" in client.text_summary()
    remote = client.request("rpi4")
    assert remote.cpu(0).exist
    del remote
    gc.collect()
    wait_free(tracker, "rpi4", 1, SOON_S)
    site.follow(None, 1)
    tracker.kill()
    site.follow(later.address, 2)
    wait_free(later, "rpi4", 1, SOON_S)
    remote = client.request("rpi4", session_timeout=10)
    assert remote.cpu(0).exist
    del remote
    gc.collect()
    assert server.running()
