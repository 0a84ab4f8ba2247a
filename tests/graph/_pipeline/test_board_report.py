"""Figures and rows of a trace from what boards report."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any

import pytest

from rpcsys.errors import RemoteFunctionError, SessionLost
from rpcsys.graph._build.stage_library import PlacedStage
from rpcsys.graph._pipeline.board_report import ReportedTurn, _row, _turns, by_stage, shift
from rpcsys.graph._pipeline.stats import StageRun, StageStats

BOTH = (PlacedStage("a", "cpu:0"), PlacedStage("b", "opencl:0"))
THREE = (PlacedStage("c", "cpu:0"), PlacedStage("d", "opencl:0"), PlacedStage("e", "cpu:0"))


def turns(call: int, *devices: str, at: float = 0.0) -> list[ReportedTurn]:
    """One second on each device, one after another."""
    return [ReportedTurn(device, call, at + place, at + place + 1) for place, device in enumerate(devices)]


def test_the_devices_of_a_call_show_its_segment() -> None:
    first, second = turns(1, "cpu:0", "opencl:0"), turns(2, "cpu:0", "opencl:0", "cpu:0", at=0.5)
    found = by_stage([*second, *first, *turns(3, "vulkan:0")], [BOTH, THREE])
    assert found == {"a": first[:1], "b": first[1:], "c": second[:1], "d": second[1:2], "e": second[2:]}


def test_calls_that_may_be_of_two_segments_are_left_out() -> None:
    other = (PlacedStage("x", "opencl:0"), PlacedStage("y", "cpu:0"))
    assert by_stage(turns(1, "cpu:0", "opencl:0"), [BOTH, other]) == {}


def test_a_stage_has_the_seconds_of_its_turns() -> None:
    whole = StageStats(frames=10, failed=3, busy_s=50, waiting_s=7, bytes=99, active_s=40)
    mine = [ReportedTurn("cpu:0", 1, 0, 1), ReportedTurn("cpu:0", 2, 1, 4)]
    assert _row(whole, mine, 1) == StageStats(frames=10, failed=1, busy_s=20, active_s=20)
    assert _row(whole, [], 0) == StageStats(frames=10, failed=0, busy_s=50, waiting_s=7, active_s=40)


def test_no_call_ends_on_the_board_after_its_answer() -> None:
    runs = [StageRun("s", 0, frame, 0, ended - 2, ended, 0) for frame, ended in enumerate((102.5, 104.1, 107.0))]
    there = [*turns(1, "cpu:0", "opencl:0"), *turns(2, "cpu:0", "opencl:0", at=2), *turns(3, "cpu:0", "opencl:0", at=4)]
    assert shift(runs, there) == pytest.approx(100.1)
    assert shift([], there) == 0.0
    failed = StageRun("s", 0, 3, 0, 108, 109, 0, "error")
    assert shift([*runs, failed], there) == pytest.approx(100.1)


def session(answer: Any) -> Any:
    def report() -> Any:
        if isinstance(answer, Exception):
            raise answer
        return {"devices": {}, "runs": answer}

    return SimpleNamespace(device_report=report)


@pytest.mark.parametrize("error", [SessionLost("gone"), RemoteFunctionError("no function 'session.devices'")])
def test_a_board_that_reports_nothing_has_no_turns(error: Exception) -> None:
    assert _turns(session(error)) == []


def test_what_is_no_turn_is_left_out() -> None:
    runs = [["cpu:0", 2, 1.5, 2], ["cpu:0", 1, 0.5, 1.0], ["cpu:0", "x", 0, 1], [1, 2], "cpu:0", None]
    assert _turns(session(runs)) == [ReportedTurn("cpu:0", 1, 0.5, 1.0), ReportedTurn("cpu:0", 2, 1.5, 2)]
