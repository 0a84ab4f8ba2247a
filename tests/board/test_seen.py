"""What trackers say of a board."""

from __future__ import annotations

import pytest

from rpcsys.board import seen

OURS = {
    "server_info": [{"key": "server:k", "addr": ["h", 1]}],
    "servers": [
        {"name": "b1:9090", "labels": {"name": "b1"}, "free": 1, "slots": 2, "running": 1, "state": "ok"},
        {"name": "b2:9090", "labels": {"name": "b2"}, "free": 0, "slots": 2, "running": 2, "state": "ok"},
        {"name": "b3:k", "labels": {}, "free": 0, "slots": 1, "running": 0, "state": "drained", "reason": "repair"},
    ],
}
TVMS = {"queue_info": {}, "server_info": [{"key": "server:k", "addr": ["h", 1]}]}


def test_shown_by_name_or_where_there_are_none_by_key() -> None:
    assert seen.shown(OURS, "b1", "k")
    assert seen.shown(OURS, "b3", "k")
    assert not seen.shown(OURS, "b", "k")
    assert seen.shown(TVMS, "b1", "k")
    assert not seen.shown(TVMS, "b1", "other")


@pytest.mark.parametrize(
    ("name", "says"),
    [
        ("b1", "serves, 1 of 2 free"),
        ("b2", "serves, 2 of 2 leased"),
        ("b3", "drained: repair"),
        ("b4", "not in the tracker"),
    ],
)
def test_state(name: str, says: str) -> None:
    assert seen.state(OURS, name) == says


def test_waiting_ends_where_there_is_no_tracker() -> None:
    slept: list[float] = []
    assert not seen.wait(("127.0.0.1", 1), "b1", "k", 0.0, sleep=slept.append)
    assert slept == []
