"""The tracker's decisions, as transcripts: requests of our clients, and of TVM's beside them."""

import pytest

from rpcsys.tracker.records import GRACE_S
from rpcsys.tracker.scheduler import GATHER_S, RESTS
from tests.tracker.transcripts import START, Scene


def test_a_lease_is_sent_to_our_client_and_our_server(scene):
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


def test_our_server_receives_leases_of_tvm_clients(scene):
    server, client = scene.server(), scene.connect()
    scene.put(server, "rpi4:1")
    scene.say(client, [4, "rpi4", "bob", 1])
    (taken,) = scene.hear(server)
    assert (taken["op"], taken["user"], taken["limit_s"]) == ("taken", "bob", None)


def test_a_waiting_client_gets_its_position_and_each_change(scene):
    server = scene.server()
    first, second, third = (scene.client() for _ in range(3))
    assert scene.ask(first, "request", key="rpi4")[0]["position"] == 1
    assert scene.ask(second, "request", id=2, key="rpi4") == [
        {
            "id": 2,
            "event": "queued",
            "position": 2,
            "ahead": 1,
            "eta_s": None,
            "ticket": f"{scene.state.records.arrivals}@run",
            "holders": [],
            "note": "",
        }
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


def test_a_request_ends_after_its_wait_timeout(scene):
    scene.server()
    client = scene.client()
    scene.ask(client, "request", key="rpi4", wait_timeout=5)
    scene.wait(4.9)
    assert scene.hear(client) == []
    scene.wait(0.2)
    (answer,) = scene.hear(client)
    assert (answer["ok"], answer["error"]) == (False, "WaitTimeout")
    assert scene.queue() == (0, 0)


@pytest.mark.parametrize(
    ("labels", "happens", "why"),
    [
        ({}, None, ": taken by ann"),
        ({"rev": "9"}, None, ": no server is 'rpi4' with rev=9 now"),
        ({}, "drain", ": board is drained by bob: type rpcsys enable board"),
        (
            {"rev": "1"},
            "drain",
            ": no server in use is 'rpi4' with rev=1: board is drained by bob: type rpcsys enable board",
        ),
        ({}, "leave", ": no server offers 'rpi4' now: the last one left 5 s ago"),
    ],
)
def test_a_wait_timeout_gives_the_reason(scene, labels, happens, why):
    server, client = scene.server(labels={"rev": "1"}), scene.client("bob")
    scene.put(server, "rpi4:1")
    scene.request(scene.client("ann"))
    scene.ask(client, "request", key="rpi4", labels=labels, wait_timeout=5, wait_for_key=True)
    if happens == "drain":
        scene.ask(client, "drain", 2, server="board")
    elif happens == "leave":
        scene.leave(server)
    scene.wait(5)
    message = scene.hear(client)[-1]["message"]
    assert message.endswith(f" became free in the time allowed for waiting{why}")


def test_a_wait_timeout_without_a_known_reason_ends_there(scene):
    scene.server()
    client = scene.client()
    assert scene.request(client, wait_timeout=1)["note"] == ""
    scene.wait(1)
    assert scene.hear(client)[-1]["message"].endswith("in the time allowed for waiting")


def test_a_waiting_client_gets_each_new_note(scene):
    server, client = scene.server(name="board", labels={"rev": "1"}), scene.client()
    sent = [scene.request(client)["note"]]
    second = scene.client()
    assert scene.request(second, labels={"rev": "2"}, key=None, wait_for_key=True)["note"] == (
        "no server is any device with rev=2 now"
    )

    def notes(conn):
        scene.wait(1)
        return [event["note"] for event in scene.hear(conn)]

    scene.ask(client, "drain", 2, server="board")
    scene.hear(client)
    sent += notes(client)
    scene.ask(client, "enable", 2, server="board")
    scene.hear(client)
    sent += notes(client)
    scene.ask(server, "health", problem="too hot")
    sent += notes(client)
    scene.leave(server)
    sent += notes(client)
    assert sent == [
        "",
        "board is drained by ann: type rpcsys enable board",
        "",
        "board is unhealthy: too hot",
        "no server offers 'rpi4' now: the last one left 1 s ago",
    ]
    assert notes(second) == []  # nothing changes for it
    scene.server(name="new", port=7, labels={"rev": "2"})
    assert notes(client) == notes(second) == [""]


def test_a_request_that_is_passed_over_gets_each_new_note(scene):
    server, client = scene.server(slots=1), scene.client()
    few = "2 devices are wanted together ('rpi4'), and there is 1: lower the count to 1 (--count 1)"
    assert scene.request(client, count=2)["note"] == few
    scene.wait(1)
    assert scene.hear(client) == []
    other = scene.server(name="other", port=7)
    scene.wait(1)
    assert [event["note"] for event in scene.hear(client)] == [""]
    scene.put(server, "rpi4:1")
    scene.wait(GATHER_S + 1)
    assert RESTS in [event["note"] for event in scene.hear(client)]
    scene.leave(other)
    scene.wait(1)
    assert [event["note"] for event in scene.hear(client)] == [few]


def test_a_waiting_client_gets_the_holders_of_devices_that_fit(scene):
    one, two = scene.server(name="one", labels={"rev": "1"}), scene.server(name="two", port=7, labels={"rev": "2"})
    for number, (server, user) in enumerate([(one, "ann"), (two, "bob")]):
        scene.put(server, f"rpi4:{number}")
        scene.request(scene.client(user))
    for labels, users in (({}, ["ann", "bob"]), ({"rev": "2"}, ["bob"])):
        event = scene.request(scene.client(), labels=labels)
        assert [holder["user"] for holder in event["holders"]] == users
    scene.put(one, "rpi4:9")  # fits the first, not the second
    assert scene.queue() == (0, 1)


def test_a_wait_timeout_of_zero_does_not_wait(scene):
    server, client = scene.server(), scene.client()
    scene.ask(client, "request", key="rpi4", wait_timeout=0)
    scene.wait(0)
    assert scene.hear(client)[0]["error"] == "WaitTimeout"
    scene.put(server, "rpi4:1")
    assert scene.ask(client, "request", key="rpi4", wait_timeout=0)[0]["ok"]


def test_a_cancelled_request_leaves_the_queue(scene):
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
    assert scene.state.records.queues.keys() == {"raspberry4", "jetson"}


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
    assert [event["note"] for event in scene.hear(served)] == [""]  # the obstacle is gone
    scene.put(server, "rpi4:1")
    assert scene.hear(served)[-1]["ok"]


def test_a_key_is_still_known_while_its_server_restarts(scene):
    server, client = scene.server(), scene.client()
    scene.leave(server)
    scene.wait(4)
    assert scene.ask(client, "request", key="rpi4")[0]["event"] == "queued"
    scene.put(scene.server(), "rpi4:1")
    assert scene.hear(client)[-1]["ok"]


def test_a_request_waits_on_after_its_keys_last_server_leaves(scene):
    server, client = scene.server(), scene.client()
    scene.ask(client, "request", key="rpi4")
    scene.leave(server)
    scene.wait(1000)
    assert scene.queue() == (0, 1)
    scene.put(scene.server(), "rpi4:1")
    assert scene.hear(client)[-1]["ok"]


@pytest.mark.parametrize(
    "fields",
    [
        *({"op": "history"}, {"op": "why"}, {"op": "drain"}, {"op": "enable", "server": "x"}),
        *({"op": "renew", "lease": "x"}, {"op": "end", "lease": "x"}),
    ],
)
def test_invalid_or_unsupported_requests_are_refused(scene, fields):
    (answer,) = scene.say(scene.client(), {"id": 1, **fields})
    assert answer["error"] == "BadRequest"


def test_an_id_in_use_is_refused(scene):
    scene.server()
    client = scene.client()
    scene.ask(client, "request", id=1, key="rpi4")
    (answer,) = scene.ask(client, "request", id=1, key="rpi4")
    assert answer["error"] == "BadRequest"
    assert scene.queue() == (0, 1)


def test_gathered_devices_do_not_go_to_the_same_clients_other_requests(scene):
    """The client's other requests end with its connection, so another client gets the device."""
    servers = [scene.server(name=f"s{number}", port=number) for number in (1, 2)]
    pair, other = scene.client(), scene.client("bob")
    scene.put(servers[0], "rpi4:1")
    scene.request(pair, count=2)
    for number in (2, 3):
        scene.request(pair, number)
    scene.request(other)
    scene.leave(pair)
    assert scene.granted(pair) == []
    assert scene.granted(other) == ["rpi4:1"]
    assert (scene.state.records.waiting, len(scene.state.records.places)) == ({}, 3)
