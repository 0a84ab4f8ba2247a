"""TVM's summary: what it says, whom it leaves out when there is no room, and what it costs to ask often."""

import json
import time

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.state import State
from rpcsys.tracker.views import tvm_summary
from rpcsys.tracker.views.tvm_summary import FRESH_S, MAX_CHARACTERS, SummaryText
from rpcsys.wire import control
from tests.tracker.transcripts import START, Scene


def said(scene, viewer, made=None):
    code, told = json.loads(
        (made or SummaryText()).text(scene.state.records, scene.now, scene.state.records.peers[viewer])
    )
    assert code == 0
    return told


def test_a_row_for_each_slot_and_a_queue_for_each_key(scene):
    board, silent = scene.server(slots=2), scene.tvm_server("pixel", 7000)
    scene.put(board, "rpi4:1")
    scene.put(silent, "pixel:1")
    scene.say(scene.connect(), [4, "nobody-\N{SNOWMAN}", "", 1])
    told = said(scene, scene.connect())
    assert told["queue_info"] == {
        "rpi4": {"free": 1, "pending": 0},
        "pixel": {"free": 1, "pending": 0},
        "nobody-\N{SNOWMAN}": {"free": 0, "pending": 1},
    }
    row = {"key": "server:rpi4", "addr": ["10.0.0.8", 9090]}
    assert told["server_info"] == [row, row, {"key": "server:pixel", "addr": ["10.0.0.7", 7000]}]


def test_every_viewer_sees_servers_where_they_can_be_reached():
    scene, made = Scene(), SummaryText()
    scene.server(at="127.0.0.1")
    hosts = {}
    for address, local in (("127.0.0.1", "127.0.0.1"), ("10.0.0.5", "10.0.0.1"), ("fd00::5", "fd00::1")):
        for _ in range(2):
            viewer = scene.connect(address, local)
            hosts[address] = said(scene, viewer, made)["server_info"][0]["addr"][0]
    assert hosts == {"127.0.0.1": "127.0.0.1", "10.0.0.5": "10.0.0.1", "fd00::5": "fd00::1"}


def test_rows_follow_what_servers_say(scene):
    made, viewer = SummaryText(), scene.connect()
    board, silent = scene.server(), scene.tvm_server()
    assert len(said(scene, viewer, made)["server_info"]) == 2
    scene.ask(board, "register", key="rpi4", name="board", port=9090, slots=3)
    scene.say(silent, [5, {"key": "server:pixel", "addr": [None, 7]}])
    keys = [row["key"] for row in said(scene, viewer, made)["server_info"]]
    assert keys == ["server:rpi4"] * 3 + ["server:pixel"]
    scene.leave(board)
    assert len(said(scene, viewer, made)["server_info"]) == 1


def test_a_large_one_is_remembered_for_a_second(scene, monkeypatch):
    made, viewer = SummaryText(), scene.connect()
    monkeypatch.setattr(tvm_summary, "LARGE", 100)
    assert said(scene, viewer, made)["server_info"] == []
    scene.server()
    assert len(said(scene, viewer, made)["server_info"]) == 1, "a small one is not"
    scene.server(port=1)
    assert len(said(scene, viewer, made)["server_info"]) == 1
    scene.now += FRESH_S
    assert len(said(scene, viewer, made)["server_info"]) == 2


def test_it_remembers_so_many_views(scene):
    made = SummaryText()
    for number in range(50):
        said(scene, scene.connect(local=f"10.1.0.{number}"), made)
    assert len(made._views) == tvm_summary._VIEWS


def test_nobody_keeps_others_out_of_it(scene):
    """Proxies with names as long as a frame allows, and clients that wait for thousands of long keys."""
    scene.server()
    for number in range(14):
        conn = scene.connect()
        scene.say(conn, [5, {"key": "server:" + "x" * 250_000, "addr": [None, number]}])
    for _ in range(3):
        conn = scene.connect()
        for number in range(4000):
            scene.say(conn, [4, f"{conn}-{number}-" + "y" * 240, "", 1])
    scene.server(name="last", port=2)
    text = SummaryText().text(scene.state.records, scene.now, scene.state.records.peers[scene.connect()])
    assert len(text) <= MAX_CHARACTERS
    told = json.loads(text)[1]
    assert "rpi4" in told["queue_info"]
    assert [row["addr"][1] for row in told["server_info"]][:2] == [9090, 2]


def large_lab(servers):
    state = State(events.Started(START, "run"))
    for conn in range(1, servers + 1):
        state.apply(events.Connected(START, conn, "10.0.0.8", "10.0.0.1"))
        state.apply(events.Received(START, conn, control.Register(1, "key", f"b{conn}", 1, 9090)))
    state.apply(events.Connected(START, servers + 1, "10.0.0.5", "10.0.0.1"))
    return state, state.records.peers[servers + 1]


@pytest.mark.slow
def test_many_who_ask_about_a_large_lab_cost_little(record_property):
    state, viewer = large_lab(15_000)
    made = SummaryText()
    made.text(state.records, START, viewer)  # the rows are made once
    began = time.process_time()
    for number in range(20):
        made.text(state.records, START + FRESH_S * (1 + number), viewer)
    anew = (time.process_time() - began) / 20
    began = time.process_time()
    for _ in range(1000):
        made.text(state.records, START + FRESH_S * 20, viewer)
    remembered = (time.process_time() - began) / 1000
    record_property("a summary of 15,000 servers, anew and remembered, s", f"{anew:.4f}, {remembered:.6f}")
    assert anew < 0.1
    assert remembered < anew / 20
