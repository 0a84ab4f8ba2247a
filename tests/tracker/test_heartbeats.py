"""Servers that hang, as transcripts: their offers are withdrawn until they answer again."""

from __future__ import annotations

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.heartbeats import CHECK_S, MISSES, SILENT, UNOPENED_S
from tests.tracker.transcripts import Scene

QUESTION = {"op": "keepalive", "id": 0}
SILENT_S = (MISSES + 2) * CHECK_S
"""The longest time without an answer after which a server is silent."""


def server(scene: Scene, name: str = "board", **fields: object) -> int:
    conn = scene.connect("10.0.0.8")
    scene.say(conn, [1, {"op": "hello", "version": "0", "capabilities": ["session/1", "keepalive/1"]}])
    (answer,) = scene.ask(conn, "register", key="rpi4", name=name, port=9090, identity=name, **fields)
    assert answer["ok"]
    return conn


def live(scene: Scene, seconds: float, *answering: int) -> int:
    """Let time pass while these servers answer; the number of heartbeats."""
    asked = 0
    for _ in range(round(seconds / 0.1)):
        scene.wait(0.1)
        for conn in answering:
            for question in scene.hear(conn):
                if question.get("op") == "keepalive":
                    scene.say(conn, {"id": question["id"], "ok": True})
                    asked += 1
    return asked


def state(scene: Scene) -> tuple[str, str]:
    (row,) = scene.summary()["servers"]
    return row["state"], row["reason"]


@pytest.fixture
def scene():
    scene = Scene()
    yield scene
    assert scene.replayed() == scene.state


def test_a_server_that_answers_gets_a_heartbeat_every_few_seconds(scene):
    conn = server(scene)
    scene.put(conn, "rpi4:1")
    assert live(scene, 100, conn) in (20, 21)
    assert (scene.queue(), state(scene)) == ((1, 0), ("ok", ""))


def test_a_silent_server_gets_one_heartbeat_and_its_offers_are_withdrawn(scene):
    conn = server(scene)
    scene.put(conn, "rpi4:1")
    live(scene, 20, conn)
    scene.wait(SILENT_S)
    assert scene.hear(conn) == [QUESTION]
    assert (scene.queue(), state(scene)) == ((0, 0), ("unhealthy", SILENT))
    scene.wait(600)
    assert scene.hear(conn) == []
    client = scene.client()
    assert scene.request(client)["event"] == "queued"
    (answer,) = scene.ask(client, "why", 2, key="rpi4")
    assert answer["why"]["servers"][0]["reason"] == SILENT
    assert f"board is unhealthy: {SILENT}" in answer["why"]["reasons"]


def test_the_offers_of_a_silent_server_are_withdrawn_in_time_and_not_before(scene):
    conn = server(scene)
    scene.put(conn, "rpi4:1")
    live(scene, 20, conn)
    while not scene.hear(conn):
        scene.wait(0.1)
    scene.wait(MISSES * CHECK_S - 0.2)
    assert scene.queue() == (1, 0)
    scene.wait(0.4)
    assert scene.queue() == (0, 0)


def test_offers_come_back_with_the_servers_answer(scene):
    conn = server(scene)
    scene.put(conn, "rpi4:1")
    scene.wait(SILENT_S)
    waiting = scene.client()
    scene.request(waiting)
    scene.hear(waiting)
    scene.say(conn, {"id": 0, "ok": True})
    assert scene.granted(waiting) == ["rpi4:1"]
    assert state(scene) == ("ok", "")
    assert [record["reason"] for record in scene.recorded("unhealthy")] == [SILENT]
    assert len(scene.recorded("healthy")) == 1


def test_offers_of_a_silent_server_are_not_granted(scene):
    conn = server(scene, slots=2)
    scene.put(conn, "rpi4:1")
    scene.wait(SILENT_S)
    scene.put(conn, "rpi4:2")
    assert scene.queue() == (0, 0)


def test_the_health_check_of_a_silent_server_is_kept(scene):
    conn = server(scene)
    scene.put(conn, "rpi4:1")
    scene.ask(conn, "health", problem="too hot")
    scene.wait(SILENT_S)
    assert state(scene) == ("unhealthy", SILENT)
    scene.say(conn, {"id": 0, "ok": True})
    assert state(scene) == ("unhealthy", "too hot")
    scene.ask(conn, "health", problem="")
    assert (scene.queue(), state(scene)) == ((1, 0), ("ok", ""))


def test_servers_without_the_capability_get_no_heartbeat(scene):
    older, tvms = scene.server(), scene.tvm_server()
    scene.put(older, "rpi4:1")
    scene.put(tvms, "rpi4:2")
    scene.hear(older), scene.hear(tvms)
    scene.wait(100)
    assert (scene.hear(older), scene.hear(tvms), scene.queue()) == ([], [], (2, 0))


def test_a_server_that_has_left_gets_no_heartbeat(scene):
    conn = server(scene)
    scene.leave(conn)
    scene.wait(100)
    assert scene.state.next_deadline is None


def test_a_pause_of_the_tracker_makes_no_server_silent(scene):
    """When it goes on, due checks come first, and then the answers that have come meanwhile."""
    conns = [server(scene, f"board{number}") for number in range(20)]
    for conn in conns:
        scene.put(conn, f"rpi4:{conn}")
    live(scene, 20.0, *conns)
    for _ in range(3):
        scene.now += 30
        scene.apply(events.TimePassed(scene.now))
        assert scene.queue() == (20, 0)
        live(scene, 5.0, *conns)
    assert scene.recorded("unhealthy") == []


def test_heartbeats_are_spread_over_time(scene):
    conns = [server(scene, f"board{number}") for number in range(200)]
    live(scene, 10.0, *conns)
    busiest = max(live(scene, 0.1, *conns) for _ in range(80))
    assert busiest <= 2 * 200 * 0.1 / CHECK_S + 2


def test_a_lease_that_stays_unopened_is_ended(scene):
    conn, client = server(scene), scene.client()
    scene.put(conn, "rpi4:1")
    scene.request(client)
    asked = []
    for _ in range(round((UNOPENED_S + 2 * CHECK_S) / 0.1)):
        scene.wait(0.1)
        for message in scene.hear(conn):
            asked.append(message)
            scene.say(conn, {"id": message["id"], "ok": True})
    ends = [message for message in asked if message["op"] == "end"]
    assert {end["reason"] for end in ends} == {"unused"}
    scene.ask(conn, "lease_ended", lease=ends[0]["lease"], epoch=ends[0]["epoch"], outcome="unused")
    assert scene.summary()["leases"] == []


@pytest.mark.parametrize("left_first", [True, False])
def test_a_lease_of_a_silent_server_ends_with_its_client(scene, left_first):
    """No client can use it any more, and the server cannot confirm its end."""
    conn, client = server(scene), scene.client()
    scene.put(conn, "rpi4:1")
    scene.request(client)
    if left_first:
        scene.leave(client)
    scene.wait(SILENT_S)
    if not left_first:
        scene.leave(client)
    assert scene.summary()["leases"] == []
    assert [over["outcome"] for over in scene.recorded("over")] == ["unused"]
    lease = scene.recorded("over")[0]
    scene.say(conn, {"id": 0, "ok": True})
    assert scene.ask(conn, "lease_ended", lease=lease["lease"], epoch=lease["epoch"], outcome="unused")[-1]["ok"]


def test_a_session_of_a_silent_server_keeps_its_lease(scene):
    """The session's own process goes on."""
    conn, client = server(scene), scene.client()
    scene.put(conn, "rpi4:1")
    lease = scene.request(client)["leases"][0]
    scene.ask(conn, "lease_started", lease=lease["lease"], epoch=lease["epoch"], peer="10.0.0.5:1")
    scene.leave(client)
    scene.wait(100)
    assert [row["state"] for row in scene.summary()["leases"]] == ["running"]
