"""The tracker's decisions, as transcripts."""

import pytest

from rpcsys.tracker import state as state_module
from rpcsys.tracker.book import GRACE_S
from tests.tracker.transcripts import START, Scene


@pytest.fixture
def scene():
    """A tracker that has been up for long enough to know its keys; replayed at the end."""
    scene = Scene()
    scene.wait(60)
    yield scene
    assert scene.replayed() == scene.state


def granted(heard):
    """The match key of a TVM client's reply."""
    ((code, (_, _, match_key)),) = heard
    assert code == 0
    return match_key


# --- TVM's codes -------------------------------------------------------------------------------


def test_a_request_gets_what_was_offered(scene):
    server, client = scene.tvm_server(), scene.connect()
    assert scene.put(server, "rpi4:1") == [0]
    assert scene.queue() == (1, 0)
    assert scene.say(client, [4, "rpi4", "ann", 1]) == [[0, ["10.0.0.7", 9090, "rpi4:1"]]]
    assert scene.queue() == (0, 0)


def test_a_request_waits_for_an_offer(scene):
    client, server = scene.connect(), scene.tvm_server()
    assert scene.say(client, [4, "rpi4", "", 1]) == []
    assert scene.queue() == (0, 1)
    assert scene.put(server, "rpi4:1") == [0]
    assert granted(scene.hear(client)) == "rpi4:1"
    assert scene.queue() == (0, 0)


def test_tvms_request_for_an_unknown_key_waits(scene):
    client = scene.connect()
    assert scene.say(client, [4, "gpu", "", 1]) == []
    scene.wait(1000)
    assert scene.hear(client) == []
    assert scene.queue("gpu") == (0, 1)


def test_higher_priority_first_then_by_arrival(scene):
    clients = [scene.connect() for _ in range(5)]
    for client, priority in zip(clients, [1, 2, 1, 2, 1.5], strict=True):
        scene.say(client, [4, "rpi4", "", priority])
    server = scene.tvm_server()
    for number in range(5):
        scene.put(server, f"rpi4:{number}")
    order = {granted(scene.hear(client)): index for index, client in enumerate(clients)}
    assert [order[f"rpi4:{number}"] for number in range(5)] == [1, 3, 4, 0, 2]


def test_offers_are_handed_out_in_the_order_they_came(scene):
    servers = [scene.tvm_server(port=port) for port in (1, 2, 3)]
    for number, server in enumerate(servers):
        scene.put(server, f"rpi4:{number}")
    client = scene.connect()
    assert [granted(scene.say(client, [4, "rpi4", "", 1])) for _ in range(3)] == [
        "rpi4:0",
        "rpi4:1",
        "rpi4:2",
    ]


def test_several_requests_on_one_connection_are_all_served(scene):
    client, server = scene.connect(), scene.tvm_server()
    scene.say(client, [4, "rpi4", "", 1])
    scene.say(client, [4, "rpi4", "", 1])
    assert scene.queue() == (0, 2)
    scene.put(server, "rpi4:1")
    scene.put(server, "rpi4:2")
    assert [reply[1][2] for reply in scene.hear(client)] == ["rpi4:1", "rpi4:2"]


def test_pending_match_keys_are_those_not_handed_out(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.put(server, "rpi4:2")
    assert scene.say(server, [7]) == [["rpi4:1", "rpi4:2"]]
    scene.say(client, [4, "rpi4", "", 1])
    assert scene.say(server, [7]) == [["rpi4:2"]]


def test_a_java_server_offers_the_same_match_key_again(scene):
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


def test_keys_with_colons(scene):
    server, client = scene.tvm_server("127.0.0.1:5555"), scene.connect()
    scene.put(server, "127.0.0.1:5555:0.25")
    assert granted(scene.say(client, [4, "127.0.0.1:5555", "", 1])) == "127.0.0.1:5555:0.25"


def test_one_of_tvms_proxies_offers_for_its_servers(scene):
    proxy, client = scene.connect("10.0.0.9"), scene.client()
    scene.put(proxy, "rpi4:1")
    scene.put(proxy, "rpi3:1")
    assert scene.say(proxy, [5, {"key": "server:proxy[rpi4,rpi3]", "addr": [None, 9090]}]) == [0]
    assert scene.summary()["server_info"] == [{"key": "server:proxy[rpi4,rpi3]", "addr": ["10.0.0.9", 9090]}]
    (answer,) = scene.ask(client, "request", key="rpi3")
    assert answer["leases"][0]["host"] == "10.0.0.9"


def test_stop_wants_the_stop_key():
    closed, open_ = Scene(), Scene(stop_key="open sesame")
    assert closed.say(closed.connect(), [2, ""]) == [-1]
    assert open_.say(open_.connect(), [2, "x"]) == [-1]
    assert not open_.stopped
    assert open_.say(open_.connect(), [2, "open sesame"]) == [0]
    assert open_.stopped


# --- what goes with a connection ---------------------------------------------------------------


def test_what_a_client_waited_for_goes_with_it(scene):
    gone, stays, server = scene.connect(), scene.connect(), scene.tvm_server()
    scene.say(gone, [4, "rpi4", "", 9])
    scene.say(gone, [4, "rpi4", "", 1])
    scene.say(stays, [4, "rpi4", "", 1])
    scene.leave(gone)
    assert scene.queue() == (0, 1)
    scene.put(server, "rpi4:1")
    assert granted(scene.hear(stays)) == "rpi4:1"
    assert scene.hear(gone) == []


def test_what_a_server_offered_goes_with_it(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.leave(server)
    assert scene.say(client, [4, "rpi4", "", 1]) == []
    assert scene.summary()["server_info"] == []


def test_nothing_of_a_key_is_left_when_all_have_gone(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "", 1])
    scene.say(client, [4, "other", "", 1])
    scene.leave(client)
    scene.leave(server)
    scene.wait(GRACE_S)
    assert scene.state.queues == {}
    assert scene.state.leases == {}
    assert scene.state.waiting == {}
    assert scene.state.next_deadline is None


def test_a_message_of_a_connection_that_is_gone_changes_nothing(scene):
    server = scene.tvm_server()
    scene.leave(server)
    assert scene.put(server, "rpi4:1") == []
    scene.leave(server)


# --- addresses ---------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("server_at", "custom", "client_at", "told"),
    [
        ("10.0.0.7", None, "10.0.0.5", "10.0.0.7"),
        ("10.0.0.7", "board.lab", "10.0.0.5", "board.lab"),
        ("127.0.0.1", None, "127.0.0.1", "127.0.0.1"),
        ("127.0.0.1", None, "10.0.0.5", "10.0.0.1"),
        ("127.0.0.1", "localhost", "10.0.0.5", "10.0.0.1"),
        ("127.0.0.1", "board.lab", "10.0.0.5", "board.lab"),
        ("10.0.0.7", "127.0.0.1", "10.0.0.5", "10.0.0.1"),
        ("::1", None, "10.0.0.5", "10.0.0.1"),
        ("10.0.0.7", None, "127.0.0.1", "10.0.0.7"),
    ],
)
def test_clients_are_told_an_address_they_can_reach(scene, server_at, custom, client_at, told):
    server = scene.tvm_server(address=server_at, custom=custom)
    scene.put(server, "rpi4:1", custom=custom)
    client = scene.connect(client_at, local="10.0.0.1")
    ((_, summary),) = scene.say(client, [6])
    assert summary["server_info"] == [{"key": "server:rpi4", "addr": [told, 9090]}]
    assert scene.say(client, [4, "rpi4", "", 1]) == [[0, [told, 9090, "rpi4:1"]]]


# --- our requests ------------------------------------------------------------------------------


def test_our_clients_get_a_lease_and_our_servers_hear_of_it(scene):
    server, client = scene.server(), scene.client()
    scene.put(server, "rpi4:1")
    (answer,) = scene.ask(client, "request", id=3, key="rpi4", session_timeout=60)
    assert (answer["id"], answer["ok"]) == (3, True)
    (lease,) = answer["leases"]
    place = {name: lease[name] for name in ("key", "host", "port", "matchkey", "server", "limit_s")}
    assert place == {
        "key": "rpi4",
        "host": "10.0.0.8",
        "port": 9090,
        "matchkey": "rpi4:1",
        "server": "board",
        "limit_s": 60,
    }
    (taken,) = scene.hear(server)
    assert taken == {
        "op": "taken",
        "id": 1,
        "lease": lease["lease"],
        "epoch": lease["epoch"],
        "matchkey": "rpi4:1",
        "user": "ann",
        "address": "10.0.0.5",
        "limit_s": 60,
    }
    assert scene.say(server, {"id": 1, "ok": True}) == []


def test_our_server_hears_of_tvms_clients_too(scene):
    server, client = scene.server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "bob", 1])
    (taken,) = scene.hear(server)
    assert (taken["op"], taken["user"], taken["limit_s"]) == ("taken", "bob", None)


def test_who_waits_is_told_its_position_and_when_it_changes(scene):
    server = scene.server()
    first, second, third = (scene.client() for _ in range(3))
    assert scene.ask(first, "request", key="rpi4")[0]["position"] == 1
    assert scene.ask(second, "request", id=2, key="rpi4") == [
        {"id": 2, "event": "queued", "position": 2, "ahead": 1, "eta_s": None, "ticket": None}
    ]
    assert scene.ask(third, "request", key="rpi4", priority=5)[0]["position"] == 1
    scene.wait(1)
    assert [event["position"] for event in scene.hear(first)] == [2]
    assert [event["position"] for event in scene.hear(second)] == [3]
    assert scene.hear(third) == []
    scene.put(server, "rpi4:1")
    scene.leave(first)
    assert scene.hear(third)[0]["ok"]
    assert scene.hear(second) == []
    scene.wait(1)
    assert [event["position"] for event in scene.hear(second)] == [1]
    scene.wait(100)
    assert scene.hear(second) == []


def test_wait_timeout(scene):
    scene.server()
    client = scene.client()
    scene.ask(client, "request", key="rpi4", wait_timeout=5)
    scene.wait(4.9)
    assert scene.hear(client) == []
    scene.wait(0.2)
    (answer,) = scene.hear(client)
    assert (answer["ok"], answer["error"]) == (False, "WaitTimeout")
    assert scene.queue() == (0, 0)


def test_no_wait_at_all(scene):
    server, client = scene.server(), scene.client()
    scene.ask(client, "request", key="rpi4", wait_timeout=0)
    scene.wait(0)
    assert scene.hear(client)[0]["error"] == "WaitTimeout"
    scene.put(server, "rpi4:1")
    assert scene.ask(client, "request", key="rpi4", wait_timeout=0)[0]["ok"]


def test_cancel(scene):
    scene.server()
    client, other = scene.client(), scene.client()
    scene.ask(client, "request", id=1, key="rpi4")
    scene.ask(client, "request", id=2, key="rpi4")
    scene.ask(other, "request", id=1, key="rpi4")
    answers = scene.ask(client, "cancel", id=3, request=1)
    assert [(answer["id"], answer["ok"]) for answer in answers] == [(1, False), (3, True)]
    assert answers[0]["error"] == "Cancelled"
    assert scene.ask(client, "cancel", id=4, request=1) == [{"id": 4, "ok": True, "cancelled": False}]
    assert scene.queue() == (0, 2)
    scene.wait(1)
    assert [event["position"] for event in scene.hear(client)] == [1]


def test_an_unknown_key_is_refused_with_the_nearest_names(scene):
    scene.server("raspberry4")
    scene.tvm_server("jetson")
    client = scene.client()
    (answer,) = scene.ask(client, "request", key="rapsberry4")
    assert answer["error"] == "UnknownKey"
    assert "raspberry4" in answer["message"]
    assert "jetson" not in answer["message"]
    (answer,) = scene.ask(client, "request", key="quantum")
    assert "jetson, raspberry4" in answer["message"]
    assert scene.state.queues.keys() == {"raspberry4", "jetson"}


def test_an_unknown_key_can_be_waited_for(scene):
    client = scene.client()
    assert scene.ask(client, "request", key="rpi4", wait_for_key=True)[0]["event"] == "queued"
    scene.wait(1000)
    scene.put(scene.server(), "rpi4:1")
    assert scene.hear(client)[-1]["ok"]


def test_a_tracker_that_has_just_started_waits_for_its_servers():
    scene = Scene()
    served, unserved = scene.client(), scene.client()
    assert scene.ask(served, "request", key="rpi4")[0]["event"] == "queued"
    assert scene.ask(unserved, "request", key="gpu")[0]["event"] == "queued"
    scene.wait(4)
    server = scene.server()
    scene.wait(GRACE_S)
    assert scene.now > START + GRACE_S
    assert scene.hear(unserved)[-1]["error"] == "UnknownKey"
    assert scene.hear(served) == []
    scene.put(server, "rpi4:1")
    assert scene.hear(served)[-1]["ok"]


def test_a_key_is_still_known_while_its_server_restarts(scene):
    server, client = scene.server(), scene.client()
    scene.leave(server)
    scene.wait(4)
    assert scene.ask(client, "request", key="rpi4")[0]["event"] == "queued"
    scene.put(scene.server(), "rpi4:1")
    assert scene.hear(client)[-1]["ok"]


def test_who_asked_while_the_key_was_served_waits_on(scene):
    server, client = scene.server(), scene.client()
    scene.ask(client, "request", key="rpi4")
    scene.leave(server)
    scene.wait(1000)
    assert scene.queue() == (0, 1)
    scene.put(scene.server(), "rpi4:1")
    assert scene.hear(client)[-1]["ok"]


@pytest.mark.parametrize("fields", [{"labels": {"os": "linux"}}, {"count": 2}, {"ticket": "t"}])
def test_what_is_not_supported_is_refused(scene, fields):
    scene.server()
    (answer,) = scene.ask(scene.client(), "request", key="rpi4", **fields)
    assert answer["error"] == "BadRequest"
    assert "does not support" in answer["message"]


@pytest.mark.parametrize(
    "fields",
    [
        *(
            {"op": "history"},
            {"op": "why"},
            {"op": "drain"},
            {"op": "enable", "server": "x"},
            {"op": "health"},
        ),
        *({"op": "renew", "lease": "x"}, {"op": "resolve", "name": "x"}, {"op": "end", "lease": "x"}),
    ],
)
def test_what_other_trackers_can_do_is_refused(scene, fields):
    (answer,) = scene.say(scene.client(), {"id": 1, **fields})
    assert answer["error"] == "BadRequest"


def test_an_id_in_use_is_refused(scene):
    scene.server()
    client = scene.client()
    scene.ask(client, "request", id=1, key="rpi4")
    (answer,) = scene.ask(client, "request", id=1, key="rpi4")
    assert answer["error"] == "BadRequest"
    assert scene.queue() == (0, 1)


# --- leases ------------------------------------------------------------------------------------


def lease_of(scene, server, client, number=1):
    scene.put(server, f"rpi4:{number}")
    scene.hear(server)
    lease = scene.ask(client, "request", key="rpi4")[-1]["leases"][0]
    scene.hear(server)
    return {"lease": lease["lease"], "epoch": lease["epoch"]}


def test_a_lease_from_grant_to_end(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    (row,) = scene.summary()["leases"]
    assert (row["state"], row["holder"], row["address"]) == ("granted", "ann", "10.0.0.5")
    assert scene.ask(server, "lease_started", **lease, peer="10.0.0.5:1") == [{"id": 1, "ok": True}]
    scene.wait(10)
    (row,) = scene.summary()["leases"]
    assert (row["state"], row["since_s"]) == ("running", 10)
    assert scene.summary()["servers"][0]["running"] == 1
    assert scene.ask(server, "lease_ended", **lease, outcome="closed") == [{"id": 1, "ok": True}]
    assert scene.summary()["leases"] == []


def test_epochs_rise(scene):
    server, client = scene.server(), scene.client()
    leases = [lease_of(scene, server, client, number) for number in range(5)]
    epochs = [lease["epoch"] for lease in leases]
    assert epochs == sorted(set(epochs))
    assert len({lease["lease"] for lease in leases}) == 5


def test_a_late_message_about_an_old_lease_changes_nothing(scene):
    server, other, client = scene.server(), scene.server(name="other"), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_ended", lease=lease["lease"], epoch=lease["epoch"] - 1, outcome="closed")
    scene.ask(other, "lease_ended", **lease, outcome="closed")
    assert len(scene.summary()["leases"]) == 1
    assert scene.ask(server, "lease_ended", lease="never was", epoch=0, outcome="closed")[0]["ok"]


def test_a_client_that_leaves_before_its_session_gives_the_device_back(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.leave(client)
    (end,) = scene.hear(server)
    assert end == {"op": "end", "id": 2, **lease, "reason": "unused"}
    scene.ask(server, "lease_ended", **lease, outcome="unused")
    assert scene.summary()["leases"] == []


def test_a_client_that_leaves_during_its_session_keeps_it(scene):
    server, client = scene.server(), scene.client()
    lease = lease_of(scene, server, client)
    scene.ask(server, "lease_started", **lease)
    scene.leave(client)
    assert scene.hear(server) == []
    assert len(scene.summary()["leases"]) == 1


def test_release(scene):
    server, client, other = scene.server(), scene.client(), scene.client()
    lease = lease_of(scene, server, client)
    assert scene.ask(other, "release", lease=lease["lease"])[0]["ok"]
    assert scene.hear(server) == []
    assert scene.ask(client, "release", lease=lease["lease"])[0]["ok"]
    (end,) = scene.hear(server)
    assert (end["op"], end["reason"]) == ("end", "released")


def test_leases_go_with_their_server(scene):
    server, client = scene.server(), scene.client()
    lease_of(scene, server, client)
    scene.leave(server)
    assert scene.summary()["leases"] == []
    scene.leave(client)


def test_a_tvm_servers_lease_lasts_until_its_next_offer(scene):
    server, client = scene.tvm_server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "", 1])
    assert len(scene.summary()["leases"]) == 1
    scene.put(server, "rpi4:2")
    assert scene.summary()["leases"] == []


# --- servers -----------------------------------------------------------------------------------


def test_a_row_for_each_slot(scene):
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
    }


def test_a_server_behind_a_proxy_has_a_row_too(scene):
    scene.server(port=None, address="proxy.lab")
    assert scene.summary()["server_info"] == [{"key": "server:rpi4", "addr": ["proxy.lab", None]}]


def test_names_are_made_different(scene):
    first, second = scene.server(port=1), scene.server(port=2)
    assert [row["name"] for row in scene.summary()["servers"]] == ["board", "board-2"]
    scene.leave(first)
    scene.leave(second)
    scene.server()
    assert [row["name"] for row in scene.summary()["servers"]] == ["board"]


def test_a_server_that_registers_again_replaces_its_dead_connection(scene):
    old = scene.server()
    scene.put(old, "rpi4:old")
    new = scene.server()
    assert scene.closed == [old]
    assert scene.queue() == (0, 0)
    assert scene.put(old, "rpi4:older") == []
    scene.put(new, "rpi4:new")
    (row,) = scene.summary()["servers"]
    assert (row["name"], row["free"]) == ("board", 1)


def test_a_registration_can_be_repeated(scene):
    server = scene.server(slots=1)
    (answer,) = scene.ask(server, "register", key="rpi4", name="board", port=9090, slots=2)
    assert answer["server"] == "board"
    assert scene.closed == []
    assert len(scene.summary()["server_info"]) == 2


def test_leases_that_outlived_the_tracker_come_back(scene):
    epoch = int((scene.now + 3600) * 1000)
    server = scene.server(running=[{"lease": "old-1", "epoch": epoch, "since_s": 30}])
    (row,) = scene.summary()["leases"]
    assert (row["lease"], row["since_s"], row["state"]) == ("old-1", 30, "running")
    assert lease_of(scene, server, scene.client())["epoch"] > epoch
    scene.ask(server, "lease_ended", lease="old-1", epoch=epoch, outcome="closed")
    assert len(scene.summary()["leases"]) == 1


# --- bounds ------------------------------------------------------------------------------------


def test_one_connection_can_offer_and_want_so_much_only(monkeypatch, scene):
    monkeypatch.setattr(state_module, "MAX_OFFERS", 10)
    monkeypatch.setattr(state_module, "MAX_WAITING", 10)
    server, client = scene.connect(), scene.client()
    assert [scene.put(server, f"k{number}:1") for number in range(12)] == [[0]] * 10 + [[-1]] * 2
    for number in range(10):
        scene.say(client, [4, "gpu", "", number])
    assert scene.say(client, [4, "gpu", "", 1])[0][0] == -1
    assert scene.ask(client, "request", key="gpu", wait_for_key=True)[0]["error"] == "BadRequest"
    assert scene.queue("gpu") == (0, 10)


def test_requests_made_and_taken_back_leave_nothing(scene):
    scene.server()
    client = scene.client()
    for number in range(2000):
        scene.ask(client, "request", id=number, key="rpi4", wait_timeout=1e6)
        scene.ask(client, "cancel", id=10_000, request=number)
    assert len(scene.state.deadlines._heap) < 200
    assert scene.state.waiting == {}
