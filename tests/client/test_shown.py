"""How a client's objects show themselves in a notebook, open and closed, without a request."""

from __future__ import annotations

import time
from pathlib import Path
from types import SimpleNamespace
from typing import ClassVar

import pytest

from rpcsys.client import Session, attaching, shown
from rpcsys.client.calls import Channel
from rpcsys.client.holds import Hold
from rpcsys.client.shown import ShownRows
from rpcsys.client.timing import TimingResult
from tests.client.test_attaching import ABOUT
from tests.device import Device
from tests.shown_html import ShownHtml
from tests.shown_html import shown as shows


def fact(told: ShownHtml, name: str) -> str:
    return told.cells[told.cells.index(name) + 1]


def test_a_session_asks_nothing_and_shows_itself_when_it_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    with Device() as device, device.session() as session:
        for way in ("call", "start", "send"):
            monkeypatch.setattr(Channel, way, lambda *_: pytest.fail("it asks the device"))
        told = shows(session)
        assert told.cells[0] == f"session of {session.info['key']}"
        assert fact(told, "state") == "open"
        assert fact(told, "address") == "{}:{}".format(*device.address)
        assert "cpu:0" in told.cells
        monkeypatch.undo()
    assert fact(shows(session), "state").startswith("closed: ")


def test_whatever_a_peer_says_is_shown_as_text() -> None:
    class Peer(Session):
        def __init__(self) -> None:
            able = {"devices": [{"name": "gpu", "memory": 10**400}, 3]}
            self.info = {"key": "<b>\x1b", "machine": {"arch": "<i>", "memory": "much"}, "capabilities": able}
            self.lease, self.address = {"server": "<script>"}, ("::1", 9090)

        closed = None
        _channel = SimpleNamespace(broken=False)

        def __del__(self) -> None: ...

    cells = ShownHtml(shown.session_html(Peer())).cells
    assert cells[:5] == ["session of <b>\\x1b", "state", "open", "board", "<script>"]
    assert cells[-3:] == ["gpu", "", ""]
    assert "\x1b" not in repr(Peer())
    huge = {"since": 1e300, "held_s": 10**400, "ended": float("nan")}
    assert shows(ShownRows("leases", [huge])).cells[-3:] == list(map(str, huge.values()))


def test_rows_are_a_list_and_a_table() -> None:
    rows = ShownRows("leases", [{"lease": "7", "since_s": 61, "labels": {"a": "b"}, "since": 0.0}, {"lease": "8"}])
    assert rows == [dict(row) for row in rows]
    told = shows(rows)
    assert told.cells[:5] == ["leases", "lease", "since", "labels", "since"]
    assert told.cells[5:8] == ["7", "1 min", "a=b"]
    assert told.cells[9:] == ["8", "", "", ""]
    assert shows(ShownRows("leases", [])).cells == ["leases: none"]


def test_a_measurement_shows_its_figures_and_doubts() -> None:
    told = shows(TimingResult([0.001 * number for number in range(1, 10)], warnings=["the board <warmed>"], joules=0.5))
    assert fact(told, "median") == "5.000 ms"
    assert fact(told, "its 95 % interval") == "2.000 ms to 8.000 ms"
    assert told.cells[-1] == "warning: the board <warmed>"


def test_a_module_shows_its_inputs() -> None:
    class Module:
        kind, functions = "rpcsys.onnx", ("main", "other")
        inputs: ClassVar = [{"name": "x", "dtype": "float32", "shape": ["n", None, 3]}, {"name": "y"}]
        outputs: ClassVar = [{"name": "z", "dtype": "int8", "shape": []}]

    cells = ShownHtml(shown.module_html(Module())).cells
    assert cells[:7] == ["module rpcsys.onnx", "functions", "main, other", "", "name", "type", "shape"]
    assert cells[7:] == ["input", "x", "float32", "[n, ?, 3]", "input", "y", "", "", "output", "z", "int8", "[]"]


def test_a_hold_tells_what_its_file_says(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    hold = Hold(str(tmp_path / "hold"), None)
    assert "is over, or was released" in fact(shows(hold), "state")
    about = attaching.HoldFile(hold.path, **{**ABOUT, "since": time.time() - 3600, "until": time.time() + 7200})
    monkeypatch.setattr(attaching, "read", lambda path: about)
    told = shows(hold)
    assert (fact(told, "state"), fact(told, "board"), fact(told, "held for")) == ("held", "desk-7", "1 h")
    assert fact(told, "left") in ("2 h", "120 min")
    monkeypatch.setattr(attaching, "read", lambda path: about._replace(over="released"))
    assert fact(shows(hold), "state") == "over: released"
