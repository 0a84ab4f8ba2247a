"""What a plan says before and after."""

from __future__ import annotations

import pytest

from rpcsys.errors import UsageError
from rpcsys.graph._cut.split import split
from rpcsys.graph._pipeline.stats import StageStats
from rpcsys.graph._plan.devices import PlanDevice
from rpcsys.graph._plan.plan import Plan, PlannedStage
from tests.graph.running import chain


@pytest.fixture
def plan() -> Plan:
    planned = (
        PlannedStage("stage0", "cpu:0", 2, 0.010, 0.010, 0.010, 24, 24),
        PlannedStage("stage1", "key:edge", 2, 0.015, 0.030, 0.020, 24, 24),
    )
    devices = (PlanDevice("cpu:0", (0,)), PlanDevice("key:edge", key="edge"))
    return Plan("throughput", ("t2",), split(chain(), ["t2"]), planned, devices, ("cpu:1",), "", ("free extents",))


def test_it_stands_for_its_cuts(plan: Plan) -> None:
    assert list(plan) == ["t2"]
    assert len(plan) == 1
    again = split(chain(), plan)
    assert [stage.name for stage in again] == [stage.name for stage in plan.stages]
    assert again["stage1"].inputs == plan.stages["stage1"].inputs


def test_the_slowest_stage_sets_the_pace(plan: Plan) -> None:
    assert plan.bottleneck.name == "stage1"
    assert plan.throughput == pytest.approx(50)
    assert plan.latency_s == pytest.approx(0.040)


def test_the_table_says_what_to_expect(plan: Plan) -> None:
    lines = str(plan).splitlines()
    assert lines[0].split() == ["STAGE", "DEVICE", "NODES", "TAKES", "GIVES", "WORK", "WAY", "EXPECTED"]
    assert lines[1].split() == [
        "stage0",
        "cpu:0",
        "2",
        "24",
        "B",
        "24",
        "B",
        "10.00",
        "ms",
        "0.00",
        "ms",
        "10.00",
        "ms",
    ]
    assert lines[2].endswith("15.00 ms  15.00 ms  20.00 ms  <- slowest")
    assert lines[3:] == [
        "stage1 begins behind t2",
        "expected: 50.0 frames/s, 40.00 ms for one frame",
        "left out, since nothing is gained there: cpu:1",
        "warning: free extents",
    ]


def took(active_s: float) -> StageStats:
    """Ten frames in so many seconds, two at a time."""
    return StageStats(frames=10, busy_s=2 * active_s, active_s=active_s)


def test_afterwards_it_says_how_far_off_it_was(plan: Plan) -> None:
    told = plan.compare({"stage0": took(0.30), "stage1": took(0.16)})
    assert [stage.off for stage in told.stages] == pytest.approx([-2 / 3, 0.25])
    assert told.bottleneck.name == "stage0"
    assert (told.bottleneck.expected_s, told.bottleneck.measured_s) == pytest.approx((0.020, 0.030))
    assert told.off == pytest.approx(-1 / 3)
    assert str(told).splitlines() == [
        "STAGE    EXPECTED  MEASURED  OFF",
        "stage0   10.00 ms  30.00 ms  -66.7%",
        "stage1   20.00 ms  16.00 ms  +25.0%",
        "slowest  20.00 ms  30.00 ms  -33.3%",
    ]


def test_figures_of_something_else_are_refused(plan: Plan) -> None:
    for figures in ({}, {"stage0": took(0.1), "stage1": StageStats()}):
        with pytest.raises(UsageError, match=r"no frames of .*stage1 in these figures"):
            plan.compare(figures)
