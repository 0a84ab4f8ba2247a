"""Canaries' reports at the tracker, as transcripts."""

from __future__ import annotations

import pytest

from rpcsys.tracker import events
from rpcsys.tracker.board_speed import SLOW, SPEED, WELL
from rpcsys.tracker.canaries import MAX_SPEEDS, PAUSE_S, Canaries, labelled
from rpcsys.tracker.speed import LEARN
from rpcsys.tracker.state import TrackerState
from tests.tracker.transcripts import START, Scene

OWN_S, SLOW_S = 0.01, 0.0103


class Lab:
    """Boards of a tracker, by name, and runs of their canaries."""

    def __init__(self, scene, **fields):
        self.scene = scene
        self.fields = fields
        self.boards = {}

    def add(self, name="board", key="rpi4", **fields):
        self.boards[name] = self.scene.server(key, name, **fields)
        return self.boards[name]

    def run(self, name="board", seconds=OWN_S, times=1, canary="builtin", every=300, **fields):
        for _ in range(times):
            self.scene.wait(every)
            (answer,) = [
                told
                for told in self.scene.ask(self.boards[name], "canary", canary=canary, seconds=seconds, **fields)
                if told.get("id") == 1
            ]
            assert answer["ok"]

    def row(self, name="board"):
        return next(row for row in self.scene.summary()["servers"] if row["name"] == name)


@pytest.fixture
def aside():
    scene = Scene()
    started = events.TrackerStarted(START, "run", canary_aside=True)
    scene.log, scene.state = [], TrackerState(started)
    return Lab(scene)


@pytest.fixture
def lab(scene):
    return Lab(scene)


def test_a_board_is_marked_and_comes_back(scene, lab):
    board = lab.add()
    scene.put(board, "rpi4:1")
    lab.run(times=LEARN - 1)
    assert (lab.row()["speed"], lab.row()["labels"]) == ("", {})
    lab.run(times=60)
    assert (lab.row()["speed"], lab.row()["labels"]) == ("ok", {SPEED: "ok"})
    lab.run(seconds=SLOW_S, times=30)
    row = lab.row()
    assert (row["speed"], row["labels"], row["state"], row["free"]) == ("slow", {SPEED: "slow"}, "ok", 1)
    assert row["slow"] == "its canary takes 3.0% longer than its own 10 ms"
    assert scene.recorded("slow") == [{"server": "board", "reason": row["slow"]}]
    lab.run(times=30)
    assert (lab.row()["speed"], lab.row()["slow"]) == ("ok", "")
    assert scene.recorded("well") == [{"server": "board"}]
    assert scene.replayed() == scene.state


def test_requests_can_want_boards_that_are_well(scene, lab):
    board = lab.add()
    scene.put(board, "rpi4:1")
    client = scene.client()
    assert scene.request(client, labels={SPEED: "ok"}).get("error") == "UnknownKey"
    lab.run(times=100)
    assert scene.request(client, 2, labels={SPEED: "ok"})["leases"][0]["matchkey"] == "rpi4:1"
    scene.put(board, "rpi4:2")
    lab.run(seconds=SLOW_S, times=30)
    waiting = scene.request(client, 3, labels={SPEED: "ok"}, wait_for_key=True)
    assert waiting["event"] == "queued"
    assert scene.queue() == (1, 1)
    lab.run(times=30)
    assert scene.granted(client) == ["rpi4:2"]


def test_a_request_for_several_keeps_its_offers_where_they_still_fit(scene, lab):
    board = lab.add(slots=2)
    lab.run(times=100)
    scene.put(board, "rpi4:1")
    plain, picky = scene.client(), scene.client("bob")
    scene.request(plain, count=2)
    lab.run(seconds=SLOW_S, times=30, every=1)
    scene.request(picky, labels={SPEED: "ok"}, wait_for_key=True)
    scene.put(board, "rpi4:2")
    assert scene.granted(plain) == ["rpi4:1", "rpi4:2"]
    assert scene.replayed() == scene.state


def test_a_server_cannot_say_itself_that_it_is_well(lab):
    lab.add(labels={SPEED: "ok", "os": "linux"})
    assert lab.row()["labels"] == {"os": "linux"}
    assert labelled({SPEED: "ok"}, SLOW) == {SPEED: "slow"}


def test_a_slow_board_can_be_set_aside(aside):
    scene, lab = aside.scene, aside
    board = lab.add()
    scene.put(board, "rpi4:1")
    lab.run(times=100)
    lab.run(seconds=SLOW_S, times=30)
    row = lab.row()
    assert (row["state"], row["reason"], row["free"]) == ("unhealthy", row["slow"], 0)
    assert scene.request(scene.client(), wait_timeout=0).get("leases") is None
    lab.run(times=30)
    assert (lab.row()["state"], lab.row()["free"]) == ("ok", 1)
    assert scene.state.records.conditions == {}


def test_a_slow_board_that_registers_again_is_still_aside(aside):
    scene, lab = aside.scene, aside
    lab.add()
    lab.run(times=100)
    lab.run(seconds=SLOW_S, times=30)
    scene.leave(lab.boards["board"])
    board = lab.add()
    scene.put(board, "rpi4:1")
    assert (lab.row()["state"], lab.row()["labels"], lab.row()["free"]) == ("unhealthy", {SPEED: "slow"}, 0)


def test_an_operator_takes_a_slow_board_as_it_is(scene, lab):
    lab.add()
    lab.run(times=100)
    lab.run(seconds=SLOW_S, times=30)
    (answer,) = scene.ask(scene.client(), "enable", server="board")
    assert answer["changed"]
    assert (lab.row()["speed"], lab.row()["labels"]) == ("", {})
    lab.run(seconds=SLOW_S, times=100)
    assert lab.row()["speed"] == "ok"
    (answer,) = scene.ask(scene.client(), "enable", server="board")
    assert not answer["changed"]


def test_a_limit_names_a_board_at_once(lab):
    lab.add()
    lab.run(seconds=0.006, limit_s=0.005)
    assert lab.row()["slow"] == "its canary takes 6 ms, and its limit is 5 ms"
    lab.run(seconds=0.004, times=3, limit_s=0.005)
    assert lab.row()["slow"] == ""


def test_a_board_that_was_slow_from_the_beginning_is_named_by_its_siblings(lab):
    for number in range(5):
        lab.add(f"board-{number}", port=9000 + number)
        lab.run(f"board-{number}", times=32)
    lab.add("late", port=9100)
    lab.run("late", 0.012, times=32)
    assert lab.row("late")["slow"] == "its canary takes 20.0% longer than those of its 5 siblings"
    assert [lab.row(f"board-{number}")["speed"] for number in range(5)] == ["ok"] * 5


@pytest.mark.parametrize(("key", "canary"), [("rpi5", "builtin"), ("rpi4", "other")])
def test_boards_of_another_key_or_canary_are_no_siblings(lab, key, canary):
    for number in range(5):
        lab.add(f"board-{number}", port=9000 + number)
        lab.run(f"board-{number}", times=32)
    lab.add("late", key, port=9100)
    lab.run("late", 0.012, times=32, canary=canary)
    assert lab.row("late")["speed"] == "ok"


def test_another_canary_is_learnt_anew(scene, lab):
    lab.add()
    lab.run(times=100)
    lab.run(seconds=SLOW_S, times=30)
    lab.run(seconds=1.0, canary="builtin/2")
    assert (lab.row()["speed"], lab.row()["labels"]) == ("", {})
    assert scene.recorded("well") == [{"server": "board"}]
    lab.run(seconds=1.0, canary="builtin/2", times=LEARN)
    assert lab.row()["speed"] == "ok"


def test_disturbed_runs_and_those_that_failed_say_nothing(scene, lab):
    lab.add()
    lab.run(times=100)
    lab.run(seconds=1.0, times=100, disturbed=True)
    lab.run(seconds=0, times=100, problem="no such file", canary="")
    board = scene.state.records.speeds["board"]
    assert (board.state, board.disturbed, board.problem, board.test.runs) == (WELL, 100, "no such file", 100)
    lab.run()
    assert (board.disturbed, board.problem) == (0, "")


def test_a_flood_of_reports_is_not_counted(scene, lab):
    board = lab.add()
    for _ in range(100):
        scene.ask(board, "canary", canary="builtin", seconds=0.01)
        scene.wait(PAUSE_S / 10)
    assert scene.state.records.speeds["board"].test.runs <= 11


def test_who_is_no_server_has_no_canary(scene):
    client = scene.client()
    assert scene.ask(client, "canary", canary="builtin", seconds=1)[0]["ok"]
    assert scene.state.records.speeds == {}


def test_what_is_known_outlives_the_tracker(scene, lab):
    lab.add()
    lab.run(times=100)
    lab.run(seconds=SLOW_S, times=30)
    entry = [entry for entry in scene.entries if entry.kind == "canary"][-1]
    later = Scene(now=scene.now + 60)
    later.apply(events.Restored(later.now, (entry,)))
    assert later.state.records.speeds["board"].state is SLOW
    again = Lab(later)
    again.add()
    assert (again.row()["speed"], again.row()["labels"]) == ("slow", {SPEED: "slow"})
    again.run(times=30)
    assert again.row()["speed"] == "ok"
    assert len(str(entry.details)) < 12_000


def test_what_is_known_is_bounded():
    scene = Scene()
    lab = Lab(scene)
    speeds = scene.state.records.speeds
    lab.add()
    lab.run()
    kept = speeds["board"]
    speeds.update((f"gone-{number}", kept) for number in range(MAX_SPEEDS - 1))
    lab.add("new", port=9091)
    lab.run("new")
    assert len(speeds) == MAX_SPEEDS
    assert {"board", "new"} <= speeds.keys()
    assert scene.recorded("unlearnt") == [{"server": "gone-0"}]


def test_a_damaged_record_is_left_out(scene):
    canaries = Canaries(scene.state.records, None, None)
    details = {"server": "board", "key": "rpi4", "test": "{}", "reason": "", "over": False, "apart": False}
    assert canaries.restore(events.HistoryEntry(START, "canary", details)) == []
    assert scene.state.records.speeds == {}
