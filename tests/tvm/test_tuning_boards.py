"""Which boards are used, and for how long, with a tracker that answers as the test wants."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpcsys.client.tracker import Tracker
from rpcsys.errors import Forbidden, NotSupported, TrackerLost, UnknownKey
from rpcsys.tvm import tuning_boards
from rpcsys.tvm.artefact import Artefact
from rpcsys.tvm.measured import KnownResults
from rpcsys.tvm.open_board import TuningPlan
from rpcsys.tvm.tuning_boards import Boards
from rpcsys.tvm.tuning_state import Candidate
from tests.device import Device

OPTIONS = {"number": 1, "repeat": 1, "min_repeat_ms": 0}
WAIT_S = 20.0


class FakeTracker(Tracker):
    """A tracker in this process: boards that are ``free``, and the priorities of those who wait."""

    def __init__(self, boards: int) -> None:
        super().__init__(("127.0.0.1", 1), "somebody", 1.0)
        self.every = [Device() for _ in range(boards)]
        self.devices = list(self.every)  # that are free
        self.waiting: list[float] = []
        self.requests = 0
        self.errors: list[Exception] = []

    def why(self, key: str) -> Any:
        if self.errors and isinstance(self.errors[0], NotSupported):
            raise self.errors[0]
        return {"free": len(self.devices), "queue": [{"priority": priority} for priority in self.waiting]}

    def summary(self) -> Any:
        return {"queue_info": {"rpi4": {"free": len(self.devices), "pending": len(self.waiting)}}}

    def leased(self, *_: Any, **__: Any) -> Any:
        self.requests += 1
        if self.errors and not isinstance(self.errors[0], NotSupported):
            raise self.errors.pop(0)
        return self.devices.pop().session()


class FakeRequest:
    def __init__(self, tracker: FakeTracker) -> None:
        self.made = tracker.leased

    def cancel(self) -> None:
        pass


@pytest.fixture
def code(tmp_path: Path) -> Path:
    source = "#include <unistd.h>\nint __tvm_ffi_main(void) { usleep(20000); return 0; }"
    path = tmp_path / "candidate.so"
    subprocess.run(["cc", "-shared", "-fPIC", "-x", "c", "-o", str(path), "-"], input=source, text=True, check=True)
    return path


@pytest.fixture
def made(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Makes the boards of a tracker; closes them all."""
    monkeypatch.setattr(tuning_boards, "SingleRequest", FakeRequest)
    monkeypatch.setattr(tuning_boards, "LOOK_S", 0.05)
    monkeypatch.setattr(tuning_boards, "FURTHER_S", 0.5)
    every: list[Boards] = []

    def make(tracker: FakeTracker, boards: int | None = None, priority: float = 1) -> Boards:
        plan = TuningPlan("rpi4", boards, priority, OPTIONS, WAIT_S, 1.0)
        every.append(Boards(tracker, plan, KnownResults(None, OPTIONS)))
        return every[-1]

    yield make
    for boards in every:
        boards.close()
        for device in boards.tracker.every:
            device.__exit__(None, None, None)


def candidates(code: Path, count: int) -> list[Candidate]:
    return [Candidate(Artefact(str(code)), "cpu:0", (("int8", (4,)),)) for _ in range(count)]


def measured(boards: Boards, wanted: list[Candidate]) -> list[Exception | None]:
    boards.measure(wanted)
    return [candidate.outcome.exception(WAIT_S) for candidate in wanted]


def reached(what: Callable[[], bool]) -> bool:
    until = time.monotonic() + WAIT_S
    while not what() and time.monotonic() < until:
        time.sleep(0.01)
    return what()


@pytest.mark.parametrize(("most", "used"), [(None, 3), (2, 2), (1, 1)])
def test_as_many_boards_are_used_as_are_free_and_wanted(most: int | None, used: int, made: Any, code: Path) -> None:
    tracker = FakeTracker(3)
    boards = made(tracker, most)
    assert measured(boards, candidates(code, 16)) == [None] * 16
    assert len(tracker.devices) == 3 - used
    assert boards.counts["measured"] == 16


def test_boards_for_which_others_wait_are_not_taken_beside_the_first(made: Any, code: Path) -> None:
    tracker = FakeTracker(3)
    tracker.waiting = [1]
    assert measured(made(tracker), candidates(code, 8)) == [None] * 8
    assert tracker.requests == 1


def test_sessions_stay_open_over_rounds(made: Any, code: Path) -> None:
    tracker = FakeTracker(1)
    boards = made(tracker)
    for _ in range(3):
        assert measured(boards, candidates(code, 2)) == [None] * 2
        assert reached(lambda: boards.held == 1)
    assert tracker.requests == 1


@pytest.mark.parametrize(("priority", "given"), [(0.5, False), (1, True), (2, True)])
def test_idle_boards_are_given_to_who_waits_with_no_lower_priority(
    priority: float, given: bool, made: Any, code: Path
) -> None:
    boards = made(tracker := FakeTracker(1))
    measured(boards, candidates(code, 1))
    assert reached(lambda: len(boards._idle) == 1)
    tracker.waiting = [priority]
    if given:
        assert reached(lambda: boards.held == 0)
    else:
        time.sleep(1.0)
        assert boards.held == 1


def test_tvms_tracker_does_not_tell_priorities_so_any_request_counts(made: Any, code: Path) -> None:
    tracker = FakeTracker(1)
    tracker.errors = [NotSupported("TVM's")]
    boards = made(tracker, priority=9)
    measured(boards, candidates(code, 1))
    tracker.waiting = [1]
    assert reached(lambda: boards.held == 0)


def test_a_session_that_is_idle_for_long_is_closed(made: Any, code: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    boards = made(FakeTracker(1))
    measured(boards, candidates(code, 1))
    monkeypatch.setattr(tuning_boards, "IDLE_S", 0.1)
    assert reached(lambda: boards.held == 0)


@pytest.mark.parametrize("error", [UnknownKey("no server offers it"), Forbidden("the rules"), TrackerLost("gone")])
def test_the_first_error_of_a_request_is_the_candidates(error: Exception, made: Any, code: Path) -> None:
    tracker = FakeTracker(0)
    tracker.errors = [error]
    boards = made(tracker)
    assert measured(boards, candidates(code, 3)) == [error] * 3
    assert boards.held == 0


def test_a_tracker_that_is_lost_later_is_asked_again(made: Any, code: Path) -> None:
    tracker = FakeTracker(2)
    boards = made(tracker, 1)
    measured(boards, candidates(code, 1))
    assert reached(lambda: len(boards._idle) == 1)
    boards._idle[0].session.close()
    tracker.errors = [TrackerLost("gone"), TrackerLost("still")]
    assert measured(boards, candidates(code, 1)) == [None]
    assert tracker.requests == 4


def test_closing_ends_what_is_under_way_and_refuses_more(made: Any, code: Path) -> None:
    boards = made(FakeTracker(1))
    wanted = candidates(code, 50)
    boards.measure(wanted)
    assert reached(wanted[0].outcome.done)
    boards.close()
    boards.close()
    errors = [candidate.outcome.exception(WAIT_S) for candidate in wanted]
    assert errors[0] is None
    assert "closed" in str(errors[-1])
    assert "closed" in str(measured(boards, candidates(code, 1))[0])
    assert reached(lambda: not any(each.name.startswith("rpcsys-tuning") for each in threading.enumerate()))
