"""The tracker's decisions, as transcripts: TVM's messages, the end of connections, and bounds."""

import pytest

from rpcsys.tracker import events, servers
from rpcsys.tracker import requests as requests_module
from rpcsys.tracker.state import TrackerState
from rpcsys.wire.tracker import Put, TvmRequest
from tests.tracker.transcripts import START


def granted(heard):
    """The match key of a TVM client's reply."""
    ((code, (_, _, match_key)),) = heard
    assert code == 0
    return match_key


# --- TVM's codes -------------------------------------------------------------------------------


def test_a_request_gets_an_earlier_offer(scene):
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


def test_requests_are_served_by_priority_then_arrival(scene):
    clients = [scene.connect() for _ in range(5)]
    for client, priority in zip(clients, [1, 2, 1, 2, 1.5], strict=True):
        scene.say(client, [4, "rpi4", "", priority])
    server = scene.tvm_server()
    for number in range(5):
        scene.put(server, f"rpi4:{number}")
    order = {granted(scene.hear(client)): index for index, client in enumerate(clients)}
    assert [order[f"rpi4:{number}"] for number in range(5)] == [1, 3, 4, 0, 2]


def test_offers_are_granted_in_the_order_in_which_they_came(scene):
    servers = [scene.tvm_server(port=port) for port in (1, 2, 3)]
    for number, server in enumerate(servers):
        scene.put(server, f"rpi4:{number}")
    client = scene.connect()
    assert [granted(scene.say(client, [4, "rpi4", "", 1])) for _ in range(3)] == ["rpi4:0", "rpi4:1", "rpi4:2"]


def test_several_requests_on_one_connection_are_all_served(scene):
    client, server = scene.connect(), scene.tvm_server()
    scene.say(client, [4, "rpi4", "", 1])
    scene.say(client, [4, "rpi4", "", 1])
    assert scene.queue() == (0, 2)
    scene.put(server, "rpi4:1")
    scene.put(server, "rpi4:2")
    assert [reply[1][2] for reply in scene.hear(client)] == ["rpi4:1", "rpi4:2"]


def test_keys_with_colons(scene):
    server, client = scene.tvm_server("127.0.0.1:5555"), scene.connect()
    scene.put(server, "127.0.0.1:5555:0.25")
    assert granted(scene.say(client, [4, "127.0.0.1:5555", "", 1])) == "127.0.0.1:5555:0.25"


# --- bounds ------------------------------------------------------------------------------------


def test_offers_and_requests_of_one_connection_are_bounded(monkeypatch, scene):
    monkeypatch.setattr(servers, "MAX_OFFERS", 10)
    monkeypatch.setattr(requests_module, "MAX_WAITING", 10)
    server, client = scene.connect(), scene.client()
    assert [scene.put(server, f"k{number}:1") for number in range(12)] == [[0]] * 10 + [[-1]] * 2
    for number in range(10):
        scene.say(client, [4, "gpu", "", number])
    assert scene.say(client, [4, "gpu", "", 1])[0][0] == -1
    assert scene.ask(client, "request", key="gpu", wait_for_key=True)[0]["error"] == "BadRequest"
    assert scene.queue("gpu") == (0, 10)


def test_cancelled_requests_leave_nothing(scene):
    scene.server()
    client = scene.client()
    for number in range(2000):
        scene.ask(client, "request", id=number, key="rpi4", wait_timeout=1e6)
        scene.ask(client, "cancel", id=10_000, request=number)
    assert len(scene.state.records.deadlines._heap) < 200
    assert scene.state.records.waiting == {}


@pytest.mark.slow
def test_ten_thousand_boards_serve_twice_as_many_requests():
    """Twice as many clients as boards come, all requests are granted, and all connections end."""
    boards, keys = 10_000, 40
    state = TrackerState(events.TrackerStarted(START, "run"))
    granted = []

    def happens(event):
        sent = [action for action in state.apply(event) if isinstance(action, events.Send)]
        granted.extend((action.conn, action.message[1][2]) for action in sent if type(action.message) is list)

    servers, clients = range(1, boards + 1), range(boards + 1, 3 * boards + 1)
    for conn in (*servers, *clients):
        happens(events.Connected(START, conn, "10.0.0.5", "10.0.0.1"))
    for conn in clients:
        happens(events.Received(START, conn, TvmRequest(f"key{conn % keys}", "", conn % 3)))
    for turn in range(2):
        for conn in servers:
            key = f"key{conn % keys}"
            happens(events.Received(START + 1, conn, Put(key, 9090, f"{key}:{conn}.{turn}")))
    assert sorted(conn for conn, _ in granted) == list(clients)
    assert len({match_key for _, match_key in granted}) == len(granted)
    priorities = [conn % 3 for conn, _ in granted if conn % keys == 0]
    assert priorities == sorted(priorities, reverse=True)
    for conn in (*clients, *servers):
        happens(events.Disconnected(START + 2, conn))
    happens(events.TimePassed(START + 60))
    assert not any((state.records.peers, state.records.queues, state.records.waiting, state.records.leases))
