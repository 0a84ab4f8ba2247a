"""What is shown of all of a lab, page by page."""

import json

import pytest

from rpcsys.tracker.views import summary
from rpcsys.wire.tracker import MAX_FRAME


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
            whole[part] += rows
    return whole


def lab(scene, servers=300):
    """Servers of ours and of TVM's, half of them leased, and requests for what is not there."""
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


def test_pages_stay_far_from_what_a_frame_may_hold(scene):
    lab(scene, servers=100)
    greedy = scene.connect("10.0.0.66")
    for number in range(600):
        scene.say(greedy, [4, "é" * 240 + str(number), "", 1])
    labels = {f"{number}" + "\N{SNOWMAN}" * 250: "\N{SNOWMAN}" * 256 for number in range(32)}
    for number in range(4):
        scene.server(name=f"talker-{number}", labels=labels, key="\N{GRINNING FACE}" * 255, slots=256)
    viewer = scene.connect()
    found = list(pages(scene, viewer))
    assert len(found) > 5
    assert all(len(json.dumps(answer)) < MAX_FRAME for answer in found)
    assert len(joined(found)["queue_info"]) == 7 + 1 + 50 + 600 + 1


def test_a_server_that_describes_itself_at_length_is_refused(scene):
    board = scene.connect()
    scene.say(board, [1, {"op": "hello", "version": "0"}])
    many = {str(number): "x" for number in range(33)}
    for fields in ({"labels": many}, {"loads": list(many)}, {"slots": 257}):
        (answer,) = scene.ask(board, "register", key="rpi4", name="board", port=1, **fields)
        assert (answer["ok"], answer["error"]) == (False, "BadRequest")
        assert "more than 256 slots" in answer["message"]


def test_what_goes_between_two_pages_may_be_missing_and_nothing_comes_twice(scene, monkeypatch):
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
def test_a_place_that_no_page_named_is_refused(scene, after):
    with pytest.raises(Exception, match=r"place|whole number"):
        scene.ask(scene.connect(), "summary", after=after)


def test_a_place_behind_everything_is_an_empty_page(scene):
    lab(scene, servers=10)
    (answer,) = scene.ask(scene.connect(), "summary", after=[9, 9])
    assert answer["next"] is None
    assert not any(answer["summary"].values())
