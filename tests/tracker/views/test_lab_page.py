"""The lab's page, as fragments."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.tracker.board_speed import BoardSpeed
from rpcsys.tracker.views import lab_page
from rpcsys.tracker.views.lab_page import lab_fragments
from tests.live.sample_lab import slow_speed


def fragments(scene) -> dict[tuple[str, str], dict[str, Any]]:
    found = list(lab_fragments(scene.state.records, scene.now))
    assert len({(each.group, each.id) for each in found}) == len(found), "IDs are unique"
    return {(each.group, each.id): each.data for each in found}


def test_an_empty_lab_says_so(scene) -> None:
    found = fragments(scene)
    assert found["keys-head", "keys"] == {"word": "Keys", "count": 0, "more": 0, "none": lab_page.NOBODY}
    assert found["boards-head", "boards"]["none"] == "No board is here."
    assert found["totals", "totals"] == {"slots": 0, "free": 0, "leased": 0, "out_of_use": 0, "waiting": 0}


def test_a_key_has_its_first_requests_and_the_others_are_counted(scene) -> None:
    scene.server("rpi4", "board")
    for number in range(7):
        labels = {"rack": "2", "cores": ">=4"} if number == 0 else {}
        scene.ask(scene.client(f"user{number}"), "request", key="rpi4", priority=3, labels=labels, wait_for_key=True)
    card = fragments(scene)["keys", "rpi4"]
    assert (card["waiting"], len(card["queue"])) == (7, lab_page.MAX_WAITING)
    first = next(row for row in card["queue"] if row["who"] == "user0 @ 10.0.0.5")
    assert first["since"] == scene.now
    assert first["details"].startswith("cores>=4 rack=2; priority 3")


def test_boards_are_listed_by_key_and_name_with_those_that_left(scene) -> None:
    left = scene.server("a-key", "lost", 1)
    held = scene.server("rpi4", "away", 2)
    scene.put(held, "rpi4:1", 2)
    scene.request(scene.client("ann"))
    scene.server("rpi4", "here", 3, labels={"rack": "1", "python": "3.11"}, slots=2, devices=["cpu:0", "cuda:0"])
    scene.server("rpi4", "gone away", 4)  # another board
    scene.leave(left)
    scene.leave(held)
    rows = {name: data for (group, name), data in fragments(scene).items() if group == "boards"}
    assert list(rows) == ["gone\nlost", "gone\naway", "gone away", "here"]
    assert (rows["gone\nlost"]["state"], rows["gone\nlost"]["reason"]) == ("gone", "its connection ended")
    assert rows["gone\naway"]["reason"] == "its connection ended; its sessions may go on"
    (cell,) = rows["gone\naway"]["leases"]
    assert (cell["who"], cell["note"]) == ("ann @ 10.0.0.5", "opening")
    assert rows["here"]["facts"] == "10.0.0.8 2 slots rack=1 device=cpu:0 device=cuda:0", "versions are on its own page"


def test_a_slow_board_has_its_canarys_picture(scene) -> None:
    scene.server("rpi4", "board")
    text, reason = slow_speed(scene.now)
    scene.state.records.speeds["board"] = BoardSpeed.restored("rpi4", text, reason, over=False, apart=False)
    row = lab_page.board_row(scene.state.records, scene.now, scene.state.records.peers[1])
    assert row["slow"] == reason
    assert row["trace"]["points"][-1][2] == 1
    del scene.state.records.speeds["board"]


def test_a_board_that_leaves_while_the_page_is_made_has_no_row(scene) -> None:
    boards = [scene.server("rpi4", f"board{number}", port=number + 1) for number in range(3)]
    made = []
    for fragment in lab_fragments(scene.state.records, scene.now):
        if fragment.group == "boards-head":
            scene.leave(boards[1])
        made.append(fragment.id)
    assert made[-2:] == ["board0", "board2"]


def test_a_long_pause_changes_no_row(scene) -> None:
    """A row has times, not ages: it is drawn again when something happened."""
    scene.put(scene.server("rpi4", "board"), "rpi4:1")
    scene.request(scene.client("ann"), session_timeout=600)
    before = fragments(scene)
    scene.wait(30)
    assert fragments(scene) == before


@pytest.mark.parametrize(("replicas", "bad"), [("2 replicas", False), ("lab-2:9190 is 4 s behind", True)])
def test_what_concerns_the_tracker_itself_comes_first(scene, monkeypatch, replicas, bad) -> None:
    monkeypatch.setattr(scene.state.records, "replicas_text", replicas)
    notices = fragments(scene)["notices", "notices"]
    assert (notices["lines"], notices["bad"], notices["settling"]) == ([replicas], bad, False)
    monkeypatch.undo()


def test_more_than_are_listed_are_counted(scene, monkeypatch) -> None:
    monkeypatch.setattr(lab_page, "MAX_KEYS", 2)
    monkeypatch.setattr(lab_page, "MAX_BOARDS", 3)
    for number in range(5):
        scene.server(f"key{number}", f"board{number}", port=number + 1)
    found = fragments(scene)
    assert (found["keys-head", "keys"]["more"], found["boards-head", "boards"]["more"]) == (3, 2)
    assert sum(group == "boards" for group, _ in found) == 3
