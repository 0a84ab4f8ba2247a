"""A lease's page, as fragments."""

from __future__ import annotations

from rpcsys.tracker.views.lease_page import lease_fragments
from rpcsys.tracker.views.past import Past
from tests.live.sample_lab import CLEANED


def fragments(scene, name, past=None):
    return {each.id: each.data for each in lease_fragments(scene.state.records, name, past or Past())}


def test_a_lease_that_runs(scene) -> None:
    scene.put(scene.server("rpi4", "shelf"), "rpi4:1")
    lease = scene.request(scene.client("ann"), session_timeout=600)["leases"][0]["lease"]
    found = fragments(scene, lease)
    assert list(found) == ["state"]
    state = found["state"]
    assert (state["server"], state["key"], state["who"]) == ("shelf", "rpi4", "ann @ 10.0.0.5")
    assert (state["state"], state["over"], state["until"]) == ("granted", None, scene.now + 600)


def test_a_lease_of_one_of_tvms_servers_says_what_is_not_known(scene) -> None:
    scene.put(scene.tvm_server(), "rpi4:1")
    scene.say(scene.connect(), [4, "rpi4", "", 1])
    (lease,) = scene.state.records.leases
    assert "reports nothing" in fragments(scene, lease)["state"]["how"]


def test_a_lease_that_is_over_says_how_and_what_was_cleaned(scene) -> None:
    row = {
        "lease": "x-1", "key": "rpi4", "server": "shelf", "user": "ann", "address": "10.0.0.5", "how": "ours",
        "since": 1.0, "begun": 2.0, "ended": 9.0, "held_s": 8.0, "limit_s": None, "waited_s": 3.0,
        "outcome": "crashed", "reason": "its session's process died", "fault": "", "cleaned": {**CLEANED, "odd": 7},
    }  # fmt: skip
    found = fragments(scene, "x-1", Past([row]))
    assert (found["state"]["state"], found["state"]["over"]["outcome"]) == ("over", "crashed")
    assert found["cleaned"]["cleaned"] == [*((kind, names) for kind, names in CLEANED.items()), ("odd", ["7"])]


def test_an_unknown_lease_has_no_page(scene) -> None:
    assert fragments(scene, "x-1") == {}
