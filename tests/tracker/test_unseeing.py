"""A member without the right to see: what it is told of others, of keys and of modules."""

from __future__ import annotations

import json

import pytest

from rpcsys.tracker.events import Revoked
from tests.tracker.closed_lab import ClosedLab


@pytest.fixture
def lab() -> ClosedLab:
    return ClosedLab()


def test_who_waits_is_told_its_place_and_not_who_is_before(lab: ClosedLab) -> None:
    (granted,) = lab.say(lab.come("bo"), {"op": "request", "id": 1, "key": "rpi4"})
    assert granted["ok"]
    ann = lab.come("ann")
    (queued,) = lab.say(ann, {"op": "request", "id": 1, "key": "rpi4", "wait_timeout": 5})
    assert (queued["position"], queued["holders"], queued["note"]) == (1, [], "")
    lab.wait(6)
    assert "bo" not in json.dumps(lab.heard[ann])
    assert lab.heard[ann][-1]["error"] == "WaitTimeout"


def test_who_may_see_is_told_who_has_the_device(lab: ClosedLab) -> None:
    lab.say(lab.come("ann"), {"op": "request", "id": 1, "key": "rpi4"})
    (queued,) = lab.say(lab.come("bo"), {"op": "request", "id": 1, "key": "rpi4"})
    assert [row["user"] for row in queued["holders"]] == ["ann"]


def test_an_unknown_key_names_no_others(lab: ClosedLab) -> None:
    lab.wait(60)
    (refused,) = lab.say(lab.come("ann"), {"op": "request", "id": 1, "key": "free"})
    assert (refused["error"], refused["message"]) == ("UnknownKey", "no server offers 'free' now")
    (hinted,) = lab.say(lab.come("bo"), {"op": "request", "id": 1, "key": "free"})
    assert "rpi4" in hinted["message"]


@pytest.mark.parametrize("name", ["ann", "bo"])
def test_modules_are_those_that_one_may_call(lab: ClosedLab, name: str) -> None:
    conn = lab.come(name)
    (found,) = lab.say(conn, {"op": "resolve", "id": 1, "name": ""})
    assert [row["name"] for row in found["modules"]] == ["head"]
    (refused,) = lab.say(conn, {"op": "resolve", "id": 2, "name": "secret"})
    assert refused["error"] == "Forbidden"


def test_a_revoked_members_lease_ends_with_its_connection(lab: ClosedLab) -> None:
    ann = lab.come("ann")
    lab.say(ann, {"op": "request", "id": 1, "key": "rpi4"})
    lab.heard[1].clear()
    lab.apply(Revoked(lab.now, "ann"))
    assert ann in lab.closed
    (order,) = lab.heard[1]  # one, though her connection ends, too
    assert (order["op"], order["why"]) == ("end", "the membership of ann has ended")
