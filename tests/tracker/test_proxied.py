"""Connections through proxies: the addresses that clients get, the addresses that count, and untrusted proxies."""

from __future__ import annotations

import json

import pytest

from rpcsys.tracker.events import Authenticated, Disconnected, ReplicasChanged
from rpcsys.tracker.lab_view import Member
from rpcsys.tracker.peers import MAX_NOT_NAMED, MAX_PROXIES
from rpcsys.wire.tokens import HolderKind
from tests.tracker.closed_lab import ClosedLab
from tests.tracker.transcripts import Scene

PROXY, BOARD = "10.0.0.3", "192.168.7.20"


@pytest.fixture
def scene():
    scene = Scene(proxy_from=("10.0.0.0/8", "127.0.0.1"))
    yield scene
    assert scene.replayed() == scene.state


def via(address=BOARD, proxy=(None, 9090)):
    return {"op": "via", "address": [address, 40112], "proxy": list(proxy)}


def board(scene, *ways, at=PROXY, **fields):
    """A server behind proxies that has registered and offered ``rpi4:1``."""
    conn = scene.connect(at)
    for way in ways or (via(),):
        assert scene.say(conn, way) == []
    scene.say(conn, [1, {"op": "hello", "version": "0"}])
    (answer,) = scene.ask(conn, "register", key="rpi4", name="board", port=None, **fields)
    assert answer["ok"], answer
    assert scene.put(conn, "rpi4:1", port=0) == [0]
    return conn


def granted(scene, **client):
    """The address and the match key that a client of ours gets."""
    conn = scene.client(**client)
    (lease,) = scene.request(conn)["leases"]
    return lease["host"], lease["port"], lease["matchkey"]


def test_clients_are_sent_to_the_proxy(scene):
    board(scene)
    assert granted(scene) == (PROXY, 9090, "rpi4:1")


def test_tvm_clients_are_sent_to_the_proxy(scene):
    board(scene)
    assert scene.say(scene.connect(), [4, "rpi4", "", 1]) == [[0, [PROXY, 9090, "rpi4:1"]]]


def test_clients_are_sent_to_the_address_that_the_proxy_sends(scene):
    board(scene, via(proxy=("proxy.example", 7000)))
    assert granted(scene) == ("proxy.example", 7000, "rpi4:1")


def test_of_several_proxies_clients_use_the_one_next_to_the_tracker(scene):
    board(scene, via("10.1.0.2", (None, 9090)), via(BOARD, ("10.1.0.2", 9999)))
    assert granted(scene) == (PROXY, 9090, "rpi4:1")


def test_a_proxy_on_the_trackers_machine_has_the_trackers_address(scene):
    board(scene, at="127.0.0.1")
    assert granted(scene) == ("10.0.0.1", 9090, "rpi4:1")


def test_a_client_on_the_trackers_machine_gets_the_loopback_address(scene):
    board(scene, at="127.0.0.1")
    assert granted(scene, address="127.0.0.1") == ("127.0.0.1", 9090, "rpi4:1")


def test_an_address_that_the_server_sends_counts(scene):
    conn = board(scene, address="boards.example")
    scene.leave(scene.client())
    assert scene.put(conn, "rpi4:2", port=0, custom="boards.example") == [0]
    granted(scene)
    assert granted(scene) == ("boards.example", 9090, "rpi4:2")


def test_each_slot_of_a_proxied_server_is_a_row(scene):
    board(scene, slots=2)
    board(scene, via("192.168.7.21"), slots=1)
    rows = scene.summary()["server_info"]
    assert rows == 3 * [{"key": "server:rpi4", "addr": [PROXY, 9090]}]


def test_a_proxied_client_has_its_own_address_and_device_time(scene):
    server = board(scene)
    client = scene.connect(PROXY)
    scene.say(client, via("172.16.0.9"))
    ((code, _),) = scene.say(client, [4, "rpi4", "", 1])
    assert code == 0
    (taken,) = [message for message in scene.hear(server) if message.get("op") == "taken"]
    assert (taken["user"], taken["address"]) == ("172.16.0.9", "172.16.0.9")
    assert scene.recorded("granted")[0]["address"] == "172.16.0.9"


@pytest.mark.parametrize("first", [[1], [6], {"op": "summary", "id": 1}])
def test_a_late_via_ends_the_connection(scene, first):
    conn = scene.connect(PROXY)
    scene.say(conn, first)
    scene.say(conn, via())
    assert scene.closed == [conn]


def test_a_chain_of_too_many_proxies_ends_the_connection(scene):
    conn = scene.connect(PROXY)
    for _ in range(MAX_PROXIES):
        scene.say(conn, via())
    assert not scene.closed
    scene.say(conn, via())
    assert scene.closed == [conn]


def test_a_server_that_comes_back_by_another_proxy_is_the_same(scene):
    before = board(scene, identity="1f2e")
    client = scene.client()
    (lease,) = scene.request(client)["leases"]
    scene.ask(before, "lease_started", lease=lease["lease"], epoch=lease["epoch"], peer="x")
    running = [{"lease": lease["lease"], "epoch": lease["epoch"], "since_s": 1}]
    board(scene, via("192.168.7.99"), at="10.0.0.4", identity="1f2e", running=running)
    assert scene.closed == [before]
    assert [row["name"] for row in scene.summary()["servers"]] == ["board"]
    assert [row["state"] for row in scene.summary()["leases"]] == ["running"]
    scene.leave(before)
    assert scene.queue() == (1, 0)


def test_another_server_of_the_same_name_is_another(scene):
    board(scene, identity="1f2e")
    board(scene, identity="9a8b")
    assert not scene.closed
    assert sorted(row["name"] for row in scene.summary()["servers"]) == ["board", "board-2"]


def test_an_identity_is_free_when_its_server_has_left(scene):
    for _ in range(2):
        scene.leave(board(scene, identity="1f2e"))
    assert not scene.state.records.identities
    assert not scene.closed


STANDBY = "172.16.0.2"


def relayed(address=BOARD):
    return {"op": "via", "address": [address, 40112], "proxy": None}


@pytest.fixture
def replicas(scene):
    """The tracker leads, and knows where the others are."""
    scene.apply(ReplicasChanged(scene.now, ("172.16.0.1", STANDBY)))


@pytest.mark.usefixtures("replicas")
def test_a_board_that_a_standby_relays_is_reached_at_its_own_address(scene):
    conn = scene.connect(STANDBY)
    scene.say(conn, relayed())
    assert scene.ask(conn, "register", key="rpi4", name="board", port=9091)[0]["ok"]
    scene.put(conn, "rpi4:1", port=9091)
    assert granted(scene) == (BOARD, 9091, "rpi4:1")


@pytest.mark.usefixtures("replicas")
def test_a_tvm_server_that_a_standby_relays_is_reached_at_its_own_address(scene):
    conn = scene.connect(STANDBY)
    scene.say(conn, relayed())
    assert scene.say(conn, [5, {"key": "server:rpi4", "addr": [None, 9091]}]) == [0]
    scene.put(conn, "rpi4:1", port=9091)
    assert granted(scene) == (BOARD, 9091, "rpi4:1")


@pytest.mark.usefixtures("replicas")
def test_a_proxy_that_a_standby_relays_is_the_way_to_its_servers(scene):
    board(scene, relayed(PROXY), via(), at=STANDBY)
    assert granted(scene) == (PROXY, 9090, "rpi4:1")
    assert {peer.address for peer in scene.state.records.peers.values() if peer.server} == {BOARD}


@pytest.mark.parametrize("at", [STANDBY, PROXY])
def test_a_standby_is_believed_as_a_replica_or_as_a_proxy_is(scene, at):
    conn = scene.connect(at)
    scene.say(conn, relayed())
    assert scene.closed == ([conn] if at == STANDBY else [])  # no replica is known yet
    scene.apply(ReplicasChanged(scene.now, (STANDBY,)))
    scene.say(scene.connect(STANDBY), relayed())
    assert len(scene.closed) == (at == STANDBY)
    scene.apply(ReplicasChanged(scene.now, ()))
    late = scene.connect(STANDBY)
    scene.say(late, relayed())
    assert scene.closed[-1] == late


@pytest.mark.usefixtures("replicas")
@pytest.mark.parametrize("before", [[1], via("172.16.0.1"), relayed("172.16.0.1")])
def test_there_is_one_standby_and_it_comes_first(scene, before):
    conn = scene.connect(STANDBY if before == relayed("172.16.0.1") else PROXY)
    scene.say(conn, before)
    scene.say(conn, relayed())
    assert scene.closed == [conn]


@pytest.mark.usefixtures("replicas")
def test_a_replica_is_no_proxy(scene):
    conn = scene.connect(STANDBY)
    scene.say(conn, via())
    assert scene.recorded("not_named")[0]["address"] == STANDBY
    assert scene.state.records.peers[conn].address == STANDBY


def test_in_a_closed_lab_standbys_are_believed_too():
    lab = ClosedLab()
    lab.apply(ReplicasChanged(lab.now, ("10.0.0.3",)))
    conns = [lab.connect() for _ in range(3)]
    for conn in conns:
        lab.say(conn, relayed())
    believed = [conn for conn in conns if conn not in lab.closed]
    assert [lab.state.records.peers[conn].address for conn in believed] == [BOARD]


STRANGER = "172.16.0.66"


def test_a_proxy_outside_the_networks_is_not_trusted(scene):
    client = scene.connect(STRANGER)
    assert scene.say(client, via("10.9.9.9")) == []
    scene.say(client, [4, "rpi4", "", 1])
    assert scene.ask(scene.client(), "why", key="rpi4")[0]["why"]["queue"][0]["address"] == STRANGER
    (told,) = scene.recorded("not_named")
    assert told["address"] == STRANGER
    assert f"--proxy-from {STRANGER}" in told["reason"]


def test_untrusted_proxies_are_logged_once_and_bounded(scene):
    for number in range(MAX_NOT_NAMED + 9):
        for _ in range(2):
            scene.say(scene.connect(f"172.16.{number // 250}.{number % 250}"), via("10.9.9.9"))
    assert len(scene.recorded("not_named")) == MAX_NOT_NAMED


def test_a_server_behind_an_untrusted_proxy_is_refused(scene):
    conn = scene.connect(STRANGER)
    scene.say(conn, via())
    (answer,) = scene.ask(conn, "register", key="rpi4", name="board", port=None)
    assert (answer["ok"], answer["error"]) == (False, "NoControlLink")
    assert "--proxy-from" in answer["message"]
    assert scene.summary()["servers"] == []


def test_in_a_chain_only_trusted_proxies_count(scene):
    board(scene, via(STRANGER, (None, 9090)), via("10.9.9.9", (None, 7)))
    assert granted(scene) == (PROXY, 9090, "rpi4:1")
    assert scene.recorded("not_named")[0]["address"] == STRANGER
    assert {peer.address for peer in scene.state.records.peers.values() if peer.server} == {STRANGER}


def test_by_default_proxies_on_the_trackers_machine_are_trusted():
    scene = Scene()
    for at, trusted in (("127.0.0.1", True), ("::1", True), ("10.0.0.1", True), ("10.0.0.2", False)):
        conn = scene.connect(at)  # the tracker is at 10.0.0.1
        scene.say(conn, via())
        assert (scene.state.records.peers[conn].address == BOARD) == trusted


def test_the_summary_is_json(scene):
    board(scene)
    json.dumps(scene.summary())


# ---------------------------------------------------------------- in a lab


@pytest.fixture
def lab():
    return ClosedLab()


def behind(lab, address, *ways):
    """The address that counts of a peer of ``address`` behind ``ways``."""
    conn = lab.connect()
    lab.state.records.peers[conn].address = address
    for way in ways:
        assert lab.say(conn, way) == []
    return lab.state.records.peers[conn].address


@pytest.mark.parametrize("address", ["10.0.0.1", "127.0.0.1", "10.0.0.9"])
def test_in_a_closed_lab_a_stranger_is_not_believed_where_it_is(lab, address):
    """The tracker's own machine is no exception."""
    assert behind(lab, address, via("10.1.0.7")) == address
    assert not lab.state.records.proxies_at


def test_a_proxy_that_has_proven_its_token_is_believed_until_it_leaves(lab):
    proxy = lab.come("gate", HolderKind.PROXY)
    address = f"10.0.0.{proxy}"
    assert behind(lab, address, via("10.1.0.7")) == "10.1.0.7"
    assert behind(lab, "10.0.0.9", via("10.1.0.7")) == "10.0.0.9"
    assert behind(lab, address, via("10.1.0.7"), via("10.2.0.7")) == "10.1.0.7"  # which has proven nothing
    lab.apply(Disconnected(lab.now, proxy))
    assert behind(lab, address, via("10.1.0.7")) == address


def test_boards_and_people_are_no_proxies(lab):
    for kind in (HolderKind.BOARD, HolderKind.PERSON):
        address = f"10.0.0.{lab.come('ann', kind)}"
        assert behind(lab, address, via("10.1.0.7")) == address


def test_a_board_behind_a_stranger_is_told_what_its_keeper_types(lab):
    conn = lab.connect()
    lab.say(conn, via("10.1.0.7"))
    member = Member("board-2", HolderKind.BOARD, "aaaaaaaa", "", None, ("rpi4",), (), 0.0, None, None, None)
    lab.apply(Authenticated(lab.now, conn, member))
    (answer,) = lab.say(conn, {"op": "register", "id": 1, "key": "rpi4", "name": "board-2", "port": None})
    assert answer["error"] == "NoControlLink"
    assert "rpcsys lab enrol --proxy NAME" in answer["message"]
