from __future__ import annotations

import concurrent.futures
import itertools
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys.errors import SessionLost, TrackerError
from rpcsys.pytest_plugin import fixture_board
from rpcsys.pytest_plugin.fixture_board import PRINTED_LINES, FixtureBoard, ended, printed, state_of


@pytest.fixture(autouse=True)
def fast(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A clock that goes on by a second each time it is read."""
    clock = SimpleNamespace(monotonic=itertools.count().__next__, sleep=lambda seconds: None)
    monkeypatch.setattr(fixture_board, "time", clock)
    monkeypatch.setattr(fixture_board, "STATE_S", 0.01)
    return iter(())


def session(closed: Exception | None = None, lines: int = 0, **answer: Any) -> Any:
    future: concurrent.futures.Future[Any] = concurrent.futures.Future()
    if answer:
        future.set_result(answer)
    log = SimpleNamespace(kept=lambda: [str(number) for number in range(lines)])
    return SimpleNamespace(closed=closed, _submit_builtin=lambda name: future, _log=log)


def test_a_board_that_computes_delays_no_report() -> None:
    assert state_of(session(load=1.5, process={"peak": 3})) == 'load: 1.5\nprocess: {"peak": 3}'
    assert "another call runs" in state_of(session())
    assert state_of(session(SessionLost("the board is gone"))) == "the session has ended: the board is gone"


def test_the_last_lines_are_shown() -> None:
    assert printed(session(lines=0)) == "(nothing)"
    lines = printed(session(lines=PRINTED_LINES + 7)).splitlines()
    assert (lines[0], lines[1], len(lines)) == ("(7 lines before these)", "7", PRINTED_LINES + 1)


def test_how_a_lease_ended() -> None:
    rows = [{"lease": "a", "reason": "closed", "fault": "", "cleaned": {"processes": ["sleep", "sh"]}}]
    tracker: Any = SimpleNamespace(history=lambda **_: rows)
    assert ended(tracker, {"lease": "a", "server": "b"}) == "closed\nprocesses: sleep, sh"
    assert "has not reported" in ended(tracker, {"lease": "another", "server": "b"})
    rows[0].update(cleaned={}, fault="it broke")
    assert ended(tracker, {"lease": "a"}) == "closed; the board's fault: it broke\nnothing had to be cleaned"

    def no_history(**_: Any) -> Any:
        raise TrackerError("the tracker keeps no history")

    assert ended(SimpleNamespace(history=no_history), {}) == "not known: the tracker keeps no history"


def test_a_board_of_a_tracker_that_names_no_servers() -> None:
    assert FixtureBoard({"host": "10.0.0.7", "port": 9090, "key": "rpi4"}).name == "10.0.0.7:9090"
    assert FixtureBoard({"server": "rpi4-0"}).at_failure() == {}
