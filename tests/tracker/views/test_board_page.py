"""A board's page, as fragments."""

from __future__ import annotations

from rpcsys.tracker.board_speed import BoardSpeed
from rpcsys.tracker.events import HistoryEntry
from rpcsys.tracker.views.board_page import board_fragments
from rpcsys.tracker.views.past import Past
from tests.live.sample_lab import slow_speed


def fragments(scene, name, past=None):
    found = board_fragments(scene.state.records, scene.now, name, past or Past())
    return {fragment.id: fragment.data for fragment in found}


def past_lease(scene, **more):
    row = {"since": scene.now - 600, "ended": scene.now - 60, "held_s": 540.0, "key": "rpi4", "user": "zoe"}
    return {**row, "lease": "x-1", "outcome": "closed", "reason": "its client closed it", "fault": "", **more}


def test_a_leased_board(scene) -> None:
    board = scene.server("rpi4", "shelf", labels={"rack": "2", "python": "3.11"}, devices=["cpu:0", "cuda:0"], slots=2)
    scene.put(board, "rpi4:1")
    scene.request(scene.client("ann"), session_timeout=600)
    found = fragments(scene, "shelf")
    state = found["state"]
    assert (state["state"], state["keys"], state["address"]) == ("partly busy", ("rpi4",), "10.0.0.8, 2 slots")
    assert state["leases"][0]["until"] == scene.now + 600
    facts = found["facts"]
    assert (facts["versions"], facts["labels"]) == ([("python", "3.11")], [("rack", "2")])
    assert facts["devices"] == ["cpu:0", "cuda:0"]
    assert found["day"]["leased"], "the lease that runs is on the strip"
    assert "speed" not in found


def test_the_speed_of_a_slow_board_is_shown_once(scene) -> None:
    scene.server("rpi4", "shelf")
    text, reason = slow_speed(scene.now)
    scene.state.records.speeds["shelf"] = BoardSpeed.restored("rpi4", text, reason, over=False, apart=False)
    found = fragments(scene, "shelf")
    assert found["state"]["trace"] is None
    assert found["speed"]["trace"]["points"]
    assert found["speed"]["reason"] == reason
    del scene.state.records.speeds["shelf"]


def test_a_drained_board_says_by_whom(scene) -> None:
    scene.server("rpi4", "shelf")
    scene.ask(scene.client("bob"), "drain", server="shelf")
    events = [HistoryEntry(scene.now, "drained", {"server": "shelf", "by": "bob"})]
    found = fragments(scene, "shelf", Past(events=events))
    assert (found["state"]["state"], found["state"]["reason"]) == ("drained", "by bob")
    assert found["events"]["events"] == [{"at": scene.now, "what": "drained", "why": "by bob"}]


def test_a_board_that_left_and_one_that_only_the_history_knows(scene) -> None:
    scene.leave(scene.server("rpi4", "shelf"))
    found = fragments(scene, "shelf", Past([past_lease(scene)]))
    assert found["state"]["state"] == "gone"
    assert found["past"]["leases"][0]["user"] == "zoe"
    assert "facts" not in found
    old = fragments(scene, "old", Past([past_lease(scene)]))
    assert (old["state"]["state"], old["state"]["keys"]) == ("not here", ("rpi4",))


def test_a_board_that_nobody_knows_has_no_page(scene) -> None:
    assert fragments(scene, "nothing") == {}
    assert fragments(scene, "") == {}
