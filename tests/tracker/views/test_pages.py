"""The tracker's pages, over HTTP and as values."""

import json
import random
import urllib.error
import urllib.request

import pytest

from rpcsys.client import connect_tracker
from rpcsys.tracker.views import pages
from tests.live.daemons import free_port
from tests.live.probe import TrackerProbe
from tests.tracker.test_service import HELLO, throw


def get(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
        return reply.headers.get_content_type(), reply.read().decode()


@pytest.mark.live
def test_the_pages_are_served(daemons):
    port = free_port()
    tracker = daemons.tracker("--http-port", str(port))
    assert tracker.ready["http_port"] == port
    with TrackerProbe(tracker.address) as server, TrackerProbe(tracker.address) as client:
        server.ask([3, "rpi4", [9090, "rpi4:1"], None])
        client.send([4, "gpu", "", 1])
        client.ask([1])
        assert get(port, "/healthz") == ("text/plain", "ok\n")
        kind, body = get(port, "/api/summary")
        assert kind == "application/json"
        assert json.loads(body)["queue_info"]["rpi4"] == {"free": 1, "pending": 0}
        kind, body = get(port, "/metrics")
        assert kind == "text/plain"
        assert 'rpcsys_tracker_free{key="rpi4"} 1.0' in body
        assert 'rpcsys_tracker_pending{key="gpu"} 1.0' in body
        assert 'rpcsys_tracker_frames_total{direction="in"} 3.0' in body
        assert "rpcsys_tracker_connections 2.0" in body
        with pytest.raises(urllib.error.HTTPError, match="404"):
            get(port, "/etc/passwd")
    throw(("127.0.0.1", port), random.Random(3), 100)
    assert get(port, "/healthz")[1] == "ok\n"
    assert "Traceback" not in tracker.stderr()


@pytest.mark.live
def test_a_page_of_the_whole_summary_over_http(daemons):
    port = free_port()
    tracker = daemons.tracker("--http-port", str(port))
    with TrackerProbe(tracker.address) as server, connect_tracker(tracker.address) as viewer:
        for read in (viewer.summary, lambda: read_json(port, "/api/summary")):
            assert read() == {"queue_info": {}, "server_info": [], "servers": [], "leases": []}
        server.ask(HELLO)
        server.ask({"op": "register", "id": 1, "key": "rpi4", "name": "board", "port": 9000, "slots": 2})
        server.ask([3, "rpi4", [9000, "rpi4:1"], None])
        assert server.ask([6]) == [0, {name: viewer.summary()[name] for name in ("queue_info", "server_info")}]
        over_http, over_the_wire = read_json(port, "/api/summary"), viewer.summary()
        for each in (over_http, over_the_wire):
            assert each["servers"][0].pop("since_s") < 60
        assert over_http == over_the_wire


def read_json(port, path):
    with urllib.request.urlopen(f"http://127.0.0.1:{port}{path}", timeout=30) as reply:
        return json.load(reply)


def test_the_lab_as_json(scene, monkeypatch):
    monkeypatch.setattr(pages, "MAX_WAITING", 2)
    server = scene.server(name="board", slots=2)
    scene.put(server, "rpi4:1")
    scene.request(scene.client("ann"))
    for user in ("bob", "cy", "dee"):
        scene.ask(scene.client(user), "request", key="rpi4")
    scene.wait(5)
    lab = pages.lab(scene.state.records, scene.now)
    (key,) = lab["keys"]
    assert (key["slots"], key["free"], key["leased"], key["waiting"], len(key["queue"])) == (2, 0, 1, 3, 2)
    assert key["queue"][0]["since"] == scene.now - 5
    (shown,) = lab["servers"]
    assert (shown["state"], [lease["user"] for lease in shown["leases"]]) == ("partly busy", ["ann"])
    assert lab["totals"] == {"slots": 2, "free": 0, "leased": 1, "out_of_use": 0, "waiting": 3}
    scene.leave(server)
    assert [lease["server"] for lease in pages.lab(scene.state.records, scene.now)["away"]] == ["board"]


def test_gone_and_drained_servers_as_json(scene):
    lost = scene.server("rpi4", "lost")
    scene.server("gpu", "out", 7)
    scene.wait(5)
    scene.ask(scene.client("bob"), "drain", server="out")
    scene.leave(lost)
    left, drained_at = scene.now, scene.now
    scene.wait(60)
    lab = pages.lab(scene.state.records, scene.now)
    assert lab["gone"] == [{"name": "lost", "key": "rpi4", "since": left, "reason": "its connection ended"}]
    (shown,) = lab["servers"]
    assert (shown["state"], shown["reason"], shown["since"]) == ("drained", "by bob", drained_at)


def test_the_totals_count_slots(scene):
    for number in range(3):
        board = scene.server("rpi4", f"board{number}", port=number + 1, slots=4)
        for slot in range(4):
            scene.put(board, f"rpi4:{number}.{slot}", port=number + 1)
    scene.put(scene.tvm_server("pixel", 7000), "pixel:1")
    for wants in ({"server": "board0"}, {"server": "board0"}, {"server": "board2"}):
        scene.ask(scene.client(), "request", key="rpi4", labels=wants)
    operator = scene.client("operator")
    scene.ask(operator, "drain", server="board0")
    totals = pages.lab(scene.state.records, scene.now)["totals"]
    assert totals == {"slots": 13, "free": 8, "leased": 3, "out_of_use": 2, "waiting": 0}


def test_servers_and_keys_beyond_the_list_are_counted(scene, monkeypatch):
    monkeypatch.setattr(pages, "MAX_KEYS", 2)
    monkeypatch.setattr(pages, "MAX_SERVERS", 3)
    for number in range(5):
        scene.server(f"key{number}", f"board{number}", port=number + 1)
    lab = pages.lab(scene.state.records, scene.now)
    assert (len(lab["keys"]), lab["more_keys"], len(lab["servers"]), lab["more_servers"]) == (2, 3, 3, 2)
    assert lab["totals"]["slots"] == 5
