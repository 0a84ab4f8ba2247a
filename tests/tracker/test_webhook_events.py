"""Which entries of the history make an event, as transcripts of a tracker's state."""

import json

import pytest

from rpcsys.tracker.transitions import FAILURES
from rpcsys.tracker.webhook_events import WebhookEvents
from tests.tracker import entries
from tests.tracker.test_canaries import OWN_S, SLOW_S, Lab
from tests.tracker.test_health import SessionRunner
from tests.tracker.transcripts import Scene


class Listener:
    """Makes the events of all entries that a scene's state has made since it was last asked."""

    def __init__(self, scene, *wanted, page=""):
        self.scene, self.made = scene, WebhookEvents(wanted, page)
        self.seen = len(scene.entries)

    def heard(self):
        fresh, self.seen = self.scene.entries[self.seen :], len(self.scene.entries)
        events = [self.made.of(entry, self.scene.state.records) for entry in fresh]
        return [json.loads(event.body) for event in events if event is not None]

    def one(self):
        (event,) = self.heard()
        return event["type"], event["data"]


def test_a_lease_that_ended_badly_and_one_that_did_not(scene):
    listener = Listener(scene, page="http://lab:8080")
    runner = SessionRunner(scene)
    runner.session("closed")
    runner.session("lost")  # the board says that its client is gone
    runner.session("unused", started=False)
    assert listener.heard() == []
    runner.session("memory")
    what, data = listener.one()
    assert what == "lease.failed"
    assert data == {
        "board": "board",
        "key": "rpi4",
        "user": "ann",
        "lease": data["lease"],
        "outcome": "memory",
        "reason": "its session wanted more memory than the server allows",
        "held_s": 0.0,
        "link": f"http://lab:8080/lease/{data['lease']}",
    }
    runner.session("closed", fault="it could not be cleaned: /tmp/x is left")
    assert listener.one()[1]["reason"] == "it could not be cleaned: /tmp/x is left"


def test_a_board_that_is_lost_with_its_lease_and_comes_back(scene):
    listener = Listener(scene, page="http://lab:8080")
    board = scene.server(name="a/b c")
    assert listener.heard() == []  # it is new: not back
    scene.put(board, "rpi4:1")
    scene.request(scene.client())
    scene.leave(board)
    what, data = listener.one()
    assert (what, data["board"], data["key"], data["state"]) == ("board.gone", "a/b c", "rpi4", "gone")
    assert data["link"] == "http://lab:8080/board/a%2Fb%20c"
    scene.wait(11)
    what, data = listener.one()
    assert (what, data["outcome"], data["board"]) == ("lease.failed", "lost", "a/b c")
    assert "has been gone for 10 s" in data["reason"]
    scene.server(name="a/b c")
    what, data = listener.one()
    assert (what, data["was"], data["state"]) == ("board.back", "gone", "ok")


def test_a_leader_that_leads_again_does_not_say_that_boards_are_back(scene):
    """It was told that the board is gone in its first term; another leader has said that it is back."""
    first = Listener(scene)
    board = scene.server(name="a")
    scene.leave(board)
    assert first.one()[0] == "board.gone"
    again = Listener(Scene())
    again.made = first.made
    again.scene.server(name="a")
    assert again.heard() == []


def test_a_board_that_is_drained_enabled_and_set_aside(scene):
    listener = Listener(scene)
    runner, keeper = SessionRunner(scene), scene.client("mo")
    scene.ask(keeper, "drain", server="board")
    what, data = listener.one()
    assert (what, data["user"], data["state"], data["link"]) == ("board.drained", "mo", "drained", "")
    scene.ask(keeper, "enable", server="board")
    what, data = listener.one()
    assert (what, data["was"], data["user"], data["state"]) == ("board.back", "drained", "mo", "ok")
    for _ in range(FAILURES):
        runner.session("crashed", fault="no process")
    told = listener.heard()
    assert [event["type"] for event in told] == ["lease.failed"] * FAILURES + ["board.set_aside"]
    assert (told[-1]["data"]["reason"], told[-1]["data"]["state"]) == ("no process", "set aside")
    scene.wait(60)
    runner.session()
    assert listener.one()[1]["was"] == "set_aside"


def test_a_board_that_is_unhealthy_or_slow(scene):
    listener, lab = Listener(scene), Lab(scene)
    board = lab.add()
    scene.ask(board, "health", problem="its disk is full")
    what, data = listener.one()
    assert (what, data["reason"], data["key"]) == ("board.unhealthy", "its disk is full", "rpi4")
    scene.ask(board, "health", problem="")
    assert listener.one()[1]["was"] == "unhealthy"
    lab.run(seconds=OWN_S, times=100)
    assert listener.heard() == []
    lab.run(seconds=SLOW_S, times=40)
    what, data = listener.one()
    assert (what, data["state"]) == ("board.slow", "ok")  # it is marked, and offered


def test_other_kinds_are_left_out_where_some_are_named(scene):
    listener = Listener(scene, "board.gone")
    board = scene.server()
    scene.ask(board, "health", problem="its disk is full")
    scene.leave(board)
    assert listener.one()[0] == "board.gone"


def test_the_id_is_that_of_the_entry_whoever_sends_it(scene):
    entry = entries.over("a-1", 5.0, outcome="crashed")
    ids = {WebhookEvents(page=page).of(entry, scene.state.records).id for page in ("", "http://other:1")}
    assert len(ids) == 1
    others = [entries.over("a-2", 5.0, outcome="crashed"), entries.over("a-1", 5.5, outcome="crashed")]
    ids |= {WebhookEvents().of(other, scene.state.records).id for other in others}
    assert len(ids) == 3
    assert all(each.startswith("msg_") and "." not in each for each in ids)


@pytest.mark.parametrize("at", [0.0, 1764280000.123456])
def test_the_time_is_in_iso_8601(scene, at):
    event = WebhookEvents().of(entries.over("a-1", at, outcome="crashed"), scene.state.records)
    assert json.loads(event.body)["timestamp"] == {0.0: "1970-01-01T00:00:00.000Z"}.get(at, "2025-11-27T21:46:40.123Z")
