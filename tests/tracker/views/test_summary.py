"""The summary of a lab: in pages for our tools, and as one text for TVM's."""

import json
import time

import pytest

from rpcsys.tracker import events, policy
from rpcsys.tracker.lab_view import LabView
from rpcsys.tracker.state import TrackerState
from rpcsys.tracker.views import summary
from rpcsys.tracker.views.summary import FRESH_S, MAX_CHARACTERS, SummaryText
from rpcsys.wire import control
from rpcsys.wire.labels import MAX_LABELS
from rpcsys.wire.tracker import MAX_FRAME
from tests.tracker.closed_lab import ClosedLab
from tests.tracker.transcripts import START, Scene


def pages(scene, viewer):
    """All pages, as they come over a connection."""
    after = None
    while True:
        (answer,) = scene.ask(viewer, "summary", after=after)
        yield answer
        after = answer["next"]
        if after is None:
            return


def joined(found):
    whole = {"queue_info": {}, "server_info": [], "servers": [], "leases": []}
    for answer in found:
        whole["queue_info"].update(answer["summary"].pop("queue_info"))
        for part, rows in answer["summary"].items():
            whole.setdefault(part, []).extend(rows)
    return whole


def lab(scene, servers=300):
    """Our servers and TVM's, half of them leased, and requests for unknown keys."""
    for number in range(servers):
        board = scene.server(key=f"k{number % 7}", name=f"board-{number}", slots=2, labels={"rack": "ü" * 40})
        scene.put(board, f"k{number % 7}:{number}")
    for number in range(servers // 10):
        scene.put(scene.tvm_server(key="tvm", port=9000 + number), f"tvm:{number}")
    client = scene.client()
    for number in range(servers // 2):
        scene.ask(client, "request", number, key=f"k{number % 7}")
    tvm = scene.connect("10.0.0.6")
    for number in range(50):
        scene.say(tvm, [4, f"nobody-{number}", "", 1])


@pytest.mark.parametrize("room", [0, 1, 700, 10_000, 1 << 30])
def test_pages_of_any_size_make_the_same_whole(scene, monkeypatch, room):
    lab(scene, servers=40)
    viewer = scene.connect()
    monkeypatch.setattr(summary, "ROOM", 1 << 30)
    (whole,) = pages(scene, viewer)
    monkeypatch.setattr(summary, "ROOM", room)
    found = list(pages(scene, viewer))
    assert (len(found) == 1) == (room == 1 << 30)
    assert joined(found) == whole["summary"]
    names = [server["name"] for server in whole["summary"]["servers"]]
    assert len(names) == len(set(names)) == 44
    assert len(whole["summary"]["server_info"]) == 84
    assert len({lease["lease"] for lease in whole["summary"]["leases"]}) == 20
    assert len(whole["summary"]["queue_info"]) == 58


def test_pages_are_well_below_a_frames_limit(scene):
    lab(scene, servers=100)
    greedy = scene.connect("10.0.0.66")
    for number in range(600):
        scene.say(greedy, [4, "é" * 240 + str(number), "", 1])
    labels = {f"{number}" + "\N{SNOWMAN}" * 250: "\N{SNOWMAN}" * 256 for number in range(MAX_LABELS)}
    for number in range(4):
        scene.server(name=f"talker-{number}", labels=labels, key="\N{GRINNING FACE}" * 255, slots=256)
    viewer = scene.connect()
    found = list(pages(scene, viewer))
    assert len(found) > 5
    assert all(len(json.dumps(answer)) < MAX_FRAME for answer in found)
    assert len(joined(found)["queue_info"]) == 7 + 1 + 50 + 600 + 1


def test_a_server_with_too_many_labels_is_refused(scene):
    board = scene.connect()
    scene.say(board, [1, {"op": "hello", "version": "0"}])
    many = {str(number): "x" for number in range(MAX_LABELS + 1)}
    for fields in ({"labels": many}, {"loads": list(many)}, {"slots": 257}):
        (answer,) = scene.ask(board, "register", key="rpi4", name="board", port=1, **fields)
        assert (answer["ok"], answer["error"]) == (False, "BadRequest")
        assert "more than 256 slots" in answer["message"]


def test_entries_that_end_between_two_pages_may_be_missing_and_none_comes_twice(scene, monkeypatch):
    monkeypatch.setattr(summary, "ROOM", 2000)
    boards = [scene.server(name=f"board-{number}") for number in range(30)]
    viewer = scene.connect()
    (first,) = scene.ask(viewer, "summary")
    seen = [server["name"] for server in first["summary"]["servers"]]
    for board in boards[: len(seen) + 5]:
        scene.leave(board)
    (second,) = scene.ask(viewer, "summary", after=first["next"])
    names = [server["name"] for server in second["summary"]["servers"]]
    assert names[0] == f"board-{len(seen) + 5}"


@pytest.mark.parametrize("after", [7, [1], [1, 2, 3], ["a", 2], [-1, 0], [1, 2**60], {}])
def test_an_invalid_page_start_is_refused(scene, after):
    with pytest.raises(Exception, match=r"place|whole number"):
        scene.ask(scene.connect(), "summary", after=after)


def test_a_page_start_behind_everything_is_an_empty_page(scene):
    lab(scene, servers=10)
    (answer,) = scene.ask(scene.connect(), "summary", after=[9, 9])
    assert answer["next"] is None
    assert not any(answer["summary"].values())


# TVM's.


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


def test_a_key_whose_servers_are_gone_stays_for_a_week(scene):
    made, viewer, client = SummaryText(), scene.connect(), scene.connect()
    board, silent = scene.server(), scene.tvm_server("pixel", 7000)
    scene.put(silent, "pixel:1")
    for leaving in (board, silent):
        scene.leave(leaving)
    nobody = {"free": 0, "pending": 0}
    assert said(scene, viewer, made) == {"queue_info": {"rpi4": nobody, "pixel": nobody}, "server_info": []}
    scene.say(client, [4, "pixel", "", 1])
    assert said(scene, viewer, made)["queue_info"] == {"rpi4": nobody, "pixel": {"free": 0, "pending": 1}}
    scene.leave(client)
    scene.wait(7 * 86400.0)
    assert said(scene, viewer, made)["queue_info"] == {"rpi4": nobody, "pixel": nobody}
    scene.server()
    scene.wait(1.0)
    assert list(said(scene, viewer, made)["queue_info"]) == ["rpi4"]
    assert "pixel" not in joined(pages(scene, viewer))["queue_info"]


def test_the_keys_of_gone_servers_are_bounded(scene):
    for number in range(1025):
        scene.leave(scene.tvm_server(f"k{number}", 7000))
    told = said(scene, scene.connect())["queue_info"]
    assert list(told) == [f"k{number}" for number in range(1, 1025)]


def test_each_viewer_gets_addresses_that_it_can_reach():
    scene, made = Scene(), SummaryText()
    scene.server(at="127.0.0.1")
    hosts = {}
    for address, local in (("127.0.0.1", "127.0.0.1"), ("10.0.0.5", "10.0.0.1"), ("fd00::5", "fd00::1")):
        for _ in range(2):
            viewer = scene.connect(address, local)
            hosts[address] = said(scene, viewer, made)["server_info"][0]["addr"][0]
    assert hosts == {"127.0.0.1": "127.0.0.1", "10.0.0.5": "10.0.0.1", "fd00::5": "fd00::1"}


def test_rows_follow_the_servers_registrations(scene):
    made, viewer = SummaryText(), scene.connect()
    board, silent = scene.server(), scene.tvm_server()
    assert len(said(scene, viewer, made)["server_info"]) == 2
    scene.ask(board, "register", key="rpi4", name="board", port=9090, slots=3)
    scene.say(silent, [5, {"key": "server:pixel", "addr": [None, 7]}])
    keys = [row["key"] for row in said(scene, viewer, made)["server_info"]]
    assert keys == ["server:rpi4"] * 3 + ["server:pixel"]
    scene.leave(board)
    assert len(said(scene, viewer, made)["server_info"]) == 1


def test_a_large_summary_is_cached_for_a_second(scene, monkeypatch):
    made, viewer = SummaryText(), scene.connect()
    monkeypatch.setattr(summary, "LARGE", 100)
    assert said(scene, viewer, made)["server_info"] == []
    scene.server()
    assert len(said(scene, viewer, made)["server_info"]) == 1, "a small one is not"
    scene.server(port=1)
    assert len(said(scene, viewer, made)["server_info"]) == 1
    scene.now += FRESH_S
    assert len(said(scene, viewer, made)["server_info"]) == 2


def test_cached_summaries_are_bounded(scene):
    made = SummaryText()
    for number in range(50):
        said(scene, scene.connect(local=f"10.1.0.{number}"), made)
    assert len(made._views) == summary._VIEWS


@pytest.mark.slow
def test_long_names_do_not_displace_other_servers(scene):
    """Proxies have names as long as a frame allows, and clients wait for thousands of long keys."""
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
    state = TrackerState(events.TrackerStarted(START, "run"))
    for conn in range(1, servers + 1):
        state.apply(events.Connected(START, conn, "10.0.0.8", "10.0.0.1"))
        state.apply(events.Received(START, conn, control.Register(1, "key", f"b{conn}", 1, 9090)))
    state.apply(events.Connected(START, servers + 1, "10.0.0.5", "10.0.0.1"))
    return state, state.records.peers[servers + 1]


@pytest.mark.slow
def test_many_summaries_of_a_large_lab_cost_little(record_property):
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


@pytest.mark.parametrize("room", [1, 1 << 30])
def test_an_open_lab_shows_who_has_come_in_the_clear(monkeypatch, room):
    monkeypatch.setattr(summary, "ROOM", room)
    lab = ClosedLab()
    assert "clear" not in joined(pages_of(lab))
    rules = policy.parse('[tvm]\nfrom = ["10.0.0.9"]\n[[allow]]\nwho = ["bo"]\nrights = ["see"]\n', "basement")
    lab.apply(events.LabChanged(lab.now, LabView(rules, "lab-host:9190", (), open=True)))
    users = [lab.connect() for _ in range(3)]
    for conn in users[:2]:
        lab.say(conn, [1, {"op": "hello", "version": "0", "user": "bo"}])
    lab.state.records.peers[users[1]].address = "10.0.0.9"
    rows = [row for row in joined(pages_of(lab))["clear"] if row["user"]]
    assert rows == [
        {"address": f"10.0.0.{users[0]}", "user": "bo (unproven)", "server": "", "allowed": False},
        {"address": "10.0.0.9", "user": "bo (unproven)", "server": "", "allowed": True},
    ]


def pages_of(lab):
    """All pages of a lab's summary."""
    viewer, after, found = lab.come("bo"), None, []
    while not found or after:
        found += lab.say(viewer, {"op": "summary", "id": 1, "after": after})
        after = found[-1]["next"]
    return found
