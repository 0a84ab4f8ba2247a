"""The tracker's decisions, as transcripts: servers that register and offer."""

import pytest

from rpcsys.tracker import records
from rpcsys.tracker.events import Disconnected
from rpcsys.tracker.heartbeats import MISSES
from rpcsys.wire.device_names import MAX_DEVICES, MAX_NAME
from rpcsys.wire.tokens import HolderKind
from tests.tracker.closed_lab import ClosedLab


def test_pending_match_keys_are_those_not_granted(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.put(server, "rpi4:2")
    assert scene.say(server, [7]) == [["rpi4:1", "rpi4:2"]]
    scene.say(client, [4, "rpi4", "", 1])
    assert scene.say(server, [7]) == [["rpi4:2"]]


def test_a_repeated_offer_replaces_the_first(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1", port="9090")
    scene.put(server, "rpi4:1", port="9091")
    assert scene.queue() == (1, 0)
    assert scene.say(client, [4, "rpi4", "", 1]) == [[0, ["10.0.0.7", 9091, "rpi4:1"]]]
    scene.put(server, "rpi4:1", port="9090")
    assert scene.queue() == (1, 0)


def test_match_keys_of_two_servers_may_collide(scene):
    one, two, client = scene.tvm_server(port=1), scene.tvm_server(port=2), scene.connect()
    scene.put(one, "rpi4:123456", 1)
    scene.put(two, "rpi4:123456", 2)
    assert scene.queue() == (2, 0)
    scene.leave(one)
    assert scene.queue() == (1, 0)
    assert scene.say(client, [4, "rpi4", "", 1])[0][1][1] == 2


def test_a_tvm_proxy_offers_for_its_servers(scene):
    proxy, client = scene.connect("10.0.0.9"), scene.client()
    scene.put(proxy, "rpi4:1")
    scene.put(proxy, "rpi3:1")
    assert scene.say(proxy, [5, {"key": "server:proxy[rpi4,rpi3]", "addr": [None, 9090]}]) == [0]
    assert scene.summary()["server_info"] == [{"key": "server:proxy[rpi4,rpi3]", "addr": ["10.0.0.9", 9090]}]
    (answer,) = scene.ask(client, "request", key="rpi3")
    assert answer["leases"][0]["host"] == "10.0.0.9"


def test_the_summary_has_a_row_for_each_slot(scene):
    server = scene.server(slots=3, labels={"os": "linux"}, loads=["so"])
    scene.put(server, "rpi4:1")
    summary = scene.summary()
    assert summary["server_info"] == [{"key": "server:rpi4", "addr": ["10.0.0.8", 9090]}] * 3
    (row,) = summary["servers"]
    assert row == {
        "name": "board",
        "key": "rpi4",
        "address": "10.0.0.8",
        "port": 9090,
        "slots": 3,
        "free": 1,
        "running": 0,
        "labels": {"os": "linux"},
        "loads": ["so"],
        "devices": [],
        "state": "ok",
        "reason": "",
        "until_s": None,
        "limits": True,
        "speed": "",
        "slow": "",
        "since_s": 0.0,
    }


def test_a_request_wants_one_of_a_boards_devices(scene):
    board = scene.server(devices=["cpu:0", "opencl:0", "opencl:1", "openvino:GPU.0"])
    scene.server(name="older")
    scene.put(board, "rpi4:1")
    client = scene.client()
    for wanted in ("vulkan", "opencl:2", "older"):
        (answer,) = scene.ask(client, "request", key="rpi4", labels={"device": wanted})
        assert answer["error"] == "UnknownKey"
        assert "device=" in answer["message"]
    (answer,) = scene.ask(client, "request", key="rpi4", labels={"device": "opencl:1"})
    assert answer["leases"][0]["server"] == "board"
    rows = {row["name"]: row["devices"] for row in scene.summary()["servers"]}
    assert rows == {"board": ["cpu:0", "opencl:0", "opencl:1", "openvino:GPU.0"], "older": []}


def test_a_server_with_too_many_devices_or_a_long_name_is_refused(scene):
    board = scene.connect()
    scene.say(board, [1, {"op": "hello", "version": "0"}])
    for devices in ([f"cuda:{number}" for number in range(MAX_DEVICES + 1)], ["x" * (MAX_NAME + 1)]):
        (answer,) = scene.ask(board, "register", key="rpi4", name="board", port=1, devices=devices)
        assert (answer["ok"], answer["error"]) == (False, "BadRequest")
        assert f"more than {MAX_DEVICES} devices" in answer["message"]


def test_a_server_behind_a_proxy_has_a_row_too(scene):
    scene.server(port=None, address="proxy.lab")
    assert scene.summary()["server_info"] == [{"key": "server:rpi4", "addr": ["proxy.lab", None]}]


def test_equal_names_get_a_number(scene):
    first, second = scene.server(port=1), scene.server(port=2)
    assert [row["name"] for row in scene.summary()["servers"]] == ["board", "board-2"]
    scene.leave(first)
    scene.leave(second)
    scene.server()
    assert [row["name"] for row in scene.summary()["servers"]] == ["board"]


def test_a_server_that_registers_again_replaces_its_dead_connection(scene):
    old = scene.server(identity="1f2e")
    scene.put(old, "rpi4:old")
    new = scene.server(identity="1f2e")
    assert scene.closed == [old]
    assert scene.queue() == (0, 0)
    assert scene.put(old, "rpi4:older") == []
    scene.put(new, "rpi4:new")
    (row,) = scene.summary()["servers"]
    assert (row["name"], row["free"]) == ("board", 1)


@pytest.mark.parametrize("identity", ["", "9a8b"])
def test_another_server_cannot_take_a_servers_name(scene, identity):
    board = scene.server(identity="1f2e")
    scene.put(board, "rpi4:1")
    other = scene.server(identity=identity, address="10.0.0.8")
    assert scene.closed == []
    assert [row["name"] for row in scene.summary()["servers"]] == ["board", "board-2"]
    assert scene.queue() == (1, 0)
    scene.leave(other)
    assert [row["name"] for row in scene.summary()["servers"]] == ["board"]


def test_a_restarted_board_gets_its_name_when_its_old_connection_ends(scene):
    before, after = scene.server(identity="before"), scene.server(identity="after")
    scene.leave(before)
    assert scene.closed == [after], "so that it registers again"
    scene.leave(after)
    scene.server(identity="after")
    assert [row["name"] for row in scene.summary()["servers"]] == ["board"]
    assert not scene.state.records.heirs


def test_a_server_at_another_address_keeps_its_numbered_name(scene):
    before = scene.server()
    scene.server(at="10.0.0.9")
    scene.leave(before)
    assert scene.closed == []


def test_the_identity_is_kept_as_a_digest(scene):
    server = scene.server(identity="s3cr3t-identity")
    scene.put(server, "rpi4:1")
    scene.request(scene.client())
    assert "s3cr3t" not in repr(vars(scene.state.records)) + repr(scene.entries)
    assert scene.recorded("granted")[0]["identity"]


def test_more_sessions_than_slots_are_refused(scene):
    running = [{"lease": f"old-{number}", "epoch": number} for number in (1, 2, 3)]
    conn = scene.connect()
    (answer,) = scene.ask(conn, "register", key="rpi4", name="board", port=1, slots=2, running=running)
    assert answer["error"] == "BadRequest"
    scene.server(slots=3, running=running)
    assert len(scene.summary()["leases"]) == 3


def test_a_registration_can_be_repeated(scene):
    server = scene.server(slots=1)
    (answer,) = scene.ask(server, "register", key="rpi4", name="board", port=9090, slots=2)
    assert answer["server"] == "board"
    assert scene.closed == []
    assert len(scene.summary()["server_info"]) == 2


def test_a_given_name_is_the_identity_on_any_port(scene):
    server, operator, client = scene.server(name="orin-3", port=35207), scene.client(), scene.client()
    assert scene.ask(operator, "drain", server="orin-3")[-1]["ok"]
    scene.leave(server)
    again = scene.server(name="orin-3", port=41000)
    scene.put(again, "rpi4:1", 41000)
    (row,) = scene.summary()["servers"]
    assert (row["name"], row["state"]) == ("orin-3", "drained")
    assert not [said for said in scene.ask(client, "request", key="rpi4") if "leases" in said]


def test_a_port_is_part_of_a_name_that_nobody_gave_and_two_servers_claim(scene):
    for port in (9090, 9091):
        scene.server(name="host", port=port, spare=f"host:{port}")
    assert sorted(row["name"] for row in scene.summary()["servers"]) == ["host", "host:9091"]
    assert scene.ask(scene.client(), "drain", server="host:9090")[-1]["ok"]
    assert {row["name"]: row["state"] for row in scene.summary()["servers"]} == {"host": "drained", "host:9091": "ok"}


def test_a_drained_server_with_its_port_in_its_name_keeps_it(scene):
    one, two = (scene.server(name="host", port=port, spare=f"host:{port}") for port in (9090, 9091))
    assert scene.ask(scene.client(), "drain", server="host:9091")[-1]["ok"]
    scene.leave(one)
    scene.leave(two)
    scene.server(name="host", port=9091, spare="host:9091")
    (row,) = scene.summary()["servers"]
    assert (row["name"], row["state"]) == ("host:9091", "drained")


def test_a_given_name_goes_on_to_a_server_on_another_port_of_the_same_board(scene):
    before, after = scene.server(name="orin-3", port=35207), scene.server(name="orin-3", port=41000)
    assert sorted(row["name"] for row in scene.summary()["servers"]) == ["orin-3", "orin-3-2"]
    scene.leave(before)
    assert scene.closed == [after]  # it registers again, and gets the name


def test_a_server_that_left_is_gone_until_it_is_back(scene):
    scene.leave(scene.server(name="orin-3"))
    scene.wait(60)
    (row,) = scene.summary()["gone"]
    assert row == {"name": "orin-3", "key": "rpi4", "since_s": 60.0, "reason": "its connection ended"}
    scene.server(name="orin-3", port=41000)
    assert "gone" not in scene.summary()


def test_a_server_that_is_back_under_another_name_is_not_gone(scene):
    scene.leave(scene.server(name="host"))
    scene.server(name="orin-3")
    assert "gone" not in scene.summary()


def test_a_server_is_gone_for_a_week_at_most(scene):
    scene.leave(scene.server())
    scene.wait(7 * 86400 + 1)
    assert "gone" not in scene.summary()


def test_the_servers_that_are_gone_are_bounded(scene):
    for number in range(records.MAX_GONE + 3):
        scene.leave(scene.server(name=f"n{number}", port=None))
    assert len(scene.state.records.gone) == records.MAX_GONE


# ---------------------------------------------------------------- in a lab


@pytest.fixture
def lab():
    return ClosedLab()


def second(lab, identity=""):
    """Another server comes with the credential of ``board-1``; what it is told."""
    conn = lab.come("board-1", HolderKind.BOARD, "rpi4")
    fields = {"key": "rpi4", "name": "board-1", "port": 9091, "identity": identity}
    return lab.say(conn, {"op": "register", "id": 1, **fields})[0]


def test_a_second_server_with_a_boards_credential_is_told_and_the_first_serves_on(lab):
    told = second(lab)
    assert not told["ok"]
    assert told["message"].startswith("board board-1 serves already, from 10.0.0.1: a credential is for one server")
    assert lab.closed == []
    assert [row["name"] for row in lab.say(lab.come("bo"), {"op": "summary", "id": 1})[0]["summary"]["servers"]] == [
        "board-1"
    ]


def test_a_board_that_has_begun_anew_takes_the_place_of_its_connection_that_is_silent(lab):
    lab.state.records.peers[1].keepalive = True
    lab.state.records.peers[1].unanswered = MISSES - 1
    assert not second(lab)["ok"]
    lab.state.records.peers[1].unanswered = MISSES
    assert second(lab) == {"id": 1, "ok": True, "server": "board-1"}
    assert lab.closed == [1]


def test_the_same_server_registers_again(lab):
    lab.apply(Disconnected(lab.now, 1))
    assert second(lab, "secret")["ok"]
    assert second(lab, "secret")["ok"]
