"""The types of answers have the fields that the tracker and the server send."""

from __future__ import annotations

from typing import Any

import pytest

from rpcsys.client import rows
from rpcsys.server.models.store import Version
from rpcsys.tracker import tables
from tests.tracker.transcripts import Scene

SNIPPET = """
from typing_extensions import assert_type
from rpcsys.client import Session, Tracker, rows
from rpcsys.client.deploying import Deployment

def check(tracker: Tracker, session: Session, deployment: Deployment) -> None:
    assert_type(tracker.history()[0]["held_s"], float)
    assert_type(tracker.usage(), list[rows.UsageRow])
    assert_type(tracker.leases()[0]["holder"], str)
    assert_type(tracker.summary()["queue_info"]["k"]["free"], int)
    assert_type(tracker.why("k")["holders"][0]["server"], str)
    assert_type(tracker.resolve()[0]["workers"], int)
    assert_type(deployment.put("m.so")["version"], str)
    assert_type(deployment.list()[0]["clients"], int)
    assert_type(session.memory()["bytes"], int)
    assert_type(session.run(len, "abc"), int)
    tracker.history()[0]["hold_s"]
"""


@pytest.fixture
def scene() -> Scene:
    scene = Scene()
    scene.wait(60)
    return scene


def fields(kind: Any) -> set[str]:
    return set(kind.__required_keys__ | kind.__optional_keys__)


def test_rows_of_the_summary(scene: Scene) -> None:
    scene.put(scene.server(name="board", slots=1), "rpi4:1")
    scene.request(scene.client("ann"))
    (answer,) = scene.ask(scene.client("bob"), "summary", 9)
    summary = answer["summary"]
    assert set(summary) == fields(rows.TrackerSummary) - {
        "gone",
        "clear",
        "replicas",
        "sites",
    }  # there is none of these
    assert rows.TrackerSummary.__required_keys__ == {"queue_info", "server_info"}
    assert set(summary["queue_info"]["rpi4"]) == fields(rows.QueueCounts)
    for part, kind in (("server_info", rows.ServerPlace), ("servers", rows.ServerRow), ("leases", rows.LeaseRow)):
        (row,) = summary[part]
        assert set(row) == fields(kind), part


def test_rows_of_why(scene: Scene) -> None:
    scene.put(scene.server(name="board", slots=1), "rpi4:1")
    scene.request(scene.client("ann"))
    client = scene.client("bob")
    scene.ask(client, "request", 1, key="rpi4")
    (answer,) = scene.ask(client, "why", 9, request=1)
    why = answer["why"]
    assert set(why) == fields(rows.WhyAnswer)
    for part, kind in (("servers", rows.ServerBrief), ("holders", rows.HolderRow), ("queue", rows.WaitingRow)):
        (row,) = why[part]
        assert set(row) == fields(kind), part


def test_rows_of_deployed_modules(scene: Scene) -> None:
    server = scene.server(name="board", slots=1)
    load = {"workers": 2, "running": 0, "waiting": 0, "clients": 0}
    scene.ask(server, "deployed", modules=[{"name": "head", "version": "1", **load}], key="")
    (answer,) = scene.ask(scene.client(), "resolve", 9, name="head")
    (row,) = answer["modules"]
    assert set(row) == fields(rows.ModulePlace)
    assert set(Version._fields) == fields(rows.DeployedVersion)


def test_rows_of_the_history() -> None:
    assert set(tables.COLUMNS["leases"]) - {"id"} == fields(rows.PastLease)
    assert set(tables.COLUMNS["usage"]) - {"hour"} == fields(rows.UsageRow)


@pytest.mark.slow
def test_a_type_checker_finds_the_fields_and_a_wrong_one(tmp_path: Any) -> None:
    """The function that `Session.run` runs gives its result's type."""
    api = pytest.importorskip("mypy.api")
    path = tmp_path / "use.py"
    path.write_text(SNIPPET)
    output, _, _ = api.run(["--strict", "--no-warn-unused-ignores", str(path)])
    # The folder may be that of an earlier run: mypy keeps what it found in a file of the same text.
    assert [line.partition("use.py")[2] for line in output.splitlines() if "use.py" in line and "error" in line] == [
        ':17: error: TypedDict "PastLease" has no key "hold_s"  [typeddict-item]'
    ]
