"""A plan's texts before and after measuring, and a divided model as files."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import pytest

from rpcsys import module
from rpcsys.errors import UsageError
from rpcsys.graph._cut.split import split
from rpcsys.graph._pipeline.cpu_shares import available
from rpcsys.graph._pipeline.stats import StageStats
from rpcsys.graph._plan.devices import PlanDevice, parse
from rpcsys.graph._plan.plan import Plan, PlannedStage, export
from rpcsys.module.kinds.graph import GraphModule
from rpcsys.module.kinds.onnx import OnnxModule
from rpcsys.module.kinds.remote import RemoteFunctionModule
from tests.graph.running import chain, numbers, run
from tests.shown_html import shown


@pytest.fixture
def plan() -> Plan:
    planned = (
        PlannedStage("stage0", "cpu:0", 2, 0.010, 0.010, 0.010, 24, 24),
        PlannedStage("stage1", "key:edge", 2, 0.015, 0.030, 0.020, 24, 24),
    )
    devices = (PlanDevice("cpu:0", (0,)), PlanDevice("key:edge", key="edge"))
    return Plan("throughput", ("t2",), split(chain(), ["t2"]), planned, devices, ("cpu:1",), "", ("free extents",))


def test_a_plan_can_be_passed_as_cuts(plan: Plan) -> None:
    assert list(plan) == ["t2"]
    assert len(plan) == 1
    again = split(chain(), plan)
    assert [stage.name for stage in again] == [stage.name for stage in plan.stages]
    assert again["stage1"].inputs == plan.stages["stage1"].inputs


def test_the_slowest_stage_limits_the_rate(plan: Plan) -> None:
    assert plan.bottleneck.name == "stage1"
    assert plan.throughput == pytest.approx(50)
    assert plan.latency_s == pytest.approx(0.040)


def test_the_table_shows_the_expected_times(plan: Plan) -> None:
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
    """Figures of ten frames in so many seconds, two at a time."""
    return StageStats(frames=10, busy_s=2 * active_s, active_s=active_s)


def test_compare_shows_the_error_of_the_expectation(plan: Plan) -> None:
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


def test_figures_of_other_stages_are_refused(plan: Plan) -> None:
    for figures in ({}, {"stage0": took(0.1), "stage1": StageStats()}):
        with pytest.raises(UsageError, match=r"no frames of .*stage1 in these figures"):
            plan.compare(figures)


CPU = min(available())


def remotes(loaded: module.Module) -> list[RemoteFunctionModule]:
    return [each for each in module.walk(loaded) if isinstance(each, RemoteFunctionModule)]


def test_stages_of_this_machine_are_bound_to_their_cpus(tmp_path: Path) -> None:
    parts = export(split(chain(), [2]), parse([f"cpu:{CPU}"]) * 2, tmp_path / "model.so")
    assert parts == {}
    assert [path.name for path in tmp_path.iterdir()] == ["model.so"]
    x = numbers(2, 3)
    with module.load_module(tmp_path / "model.so") as loaded:
        np.testing.assert_array_equal(loaded(x), run(chain(), {"x": x})["y"])
        models = [each for each in module.walk(loaded) if isinstance(each, OnnxModule)]
        assert [(each.model.options["threads"], each.model.options["cpus"]) for each in models] == [
            (1, [CPU]),
            (1, [CPU]),
        ]


def test_a_stage_of_a_server_is_a_part_that_the_library_calls_by_name(tmp_path: Path) -> None:
    devices = parse([f"cpu:{CPU}", "key:edge", "10.0.0.7:9090"])
    path = tmp_path / "my model.v2.so"
    parts = export(split(chain(), [1, 2]), devices, path, tracker=("10.0.0.1", 9190), encode="float16")
    assert parts == {"stage1": tmp_path / "my-model.v2-stage1.onnx", "stage2": tmp_path / "my-model.v2-stage2.onnx"}
    assert [len(onnx.load(part).graph.node) for part in parts.values()] == [1, 2]
    with module.load_module(path) as loaded:
        places = [each.endpoint for each in remotes(loaded)]
        assert {tuple(each.encode.values()) for each in remotes(loaded)} == {("float16", "float16")}
    assert [(place.serve, place.tracker, place.address) for place in places] == [
        ("my-model.v2-stage1", "10.0.0.1:9190", ""),
        ("my-model.v2-stage2", "", "10.0.0.7:9090"),
    ]


def test_with_a_fallback_it_runs_alone(tmp_path: Path) -> None:
    export(split(chain(), [2]), parse(["127.0.0.1:1"]) * 2, tmp_path / "model.so", fallback=True)
    x = numbers(2, 3)
    with module.load_module(tmp_path / "model.so") as loaded:
        np.testing.assert_array_equal(loaded(x), run(chain(), {"x": x})["y"])


def test_an_exact_stage_is_a_library_with_its_level(tmp_path: Path) -> None:
    stages = split(chain(), [2], exact=True)
    parts = export(stages, parse(["10.0.0.7:9090"]) * 2, tmp_path / "model.so")
    assert [part.name for part in parts.values()] == ["model-stage0.so", "model-stage1.so"]
    with module.load_module(parts["stage1"]) as loaded:
        assert isinstance(loaded, OnnxModule)
        assert loaded.model.options["level"] == "off"


@pytest.mark.parametrize(
    ("tracker", "expected"), [("lab:9190", "lab:9190"), (("::1", 9191), "[::1]:9191"), (None, "10.9.8.7:9192")]
)
def test_where_the_tracker_is(tracker: Any, expected: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RPCSYS_TRACKER_HOST", "10.9.8.7")
    monkeypatch.setenv("RPCSYS_TRACKER_PORT", "9192")
    export(split(chain(), []), parse(["key:edge"]), tmp_path / "model.so", tracker=tracker)
    with module.load_module(tmp_path / "model.so") as loaded:
        assert [each.endpoint.tracker for each in remotes(loaded)] == [expected]


def test_a_session_is_exported_as_its_server(tmp_path: Path) -> None:
    session: Any = SimpleNamespace(address=("10.0.0.7", 9090))
    export(split(chain(), []), [PlanDevice("it", session=session)], tmp_path / "model.so")
    with module.load_module(tmp_path / "model.so") as loaded:
        assert [each.endpoint.address for each in remotes(loaded)] == ["10.0.0.7:9090"]


def test_a_path_that_cannot_be_written_is_refused(tmp_path: Path) -> None:
    stages, devices = split(chain(), []), parse(["10.0.0.7:9090"])
    with pytest.raises(UsageError, match=r"nowhere/model\.so"):
        export(stages, devices, tmp_path / "nowhere" / "model.so")
    (tmp_path / "model-stage0.onnx").mkdir()
    with pytest.raises(UsageError, match=r"model-stage0\.onnx cannot be written"):
        export(stages, devices, tmp_path / "model.so")


def test_a_call_of_several_stages_counts_once() -> None:
    planned = (
        PlannedStage("stage0", "cpu:0", 1, 0.004, 0.004, 0.004, 24, 24),
        PlannedStage("stage1", "edge:cpu:0", 1, 0.010, 0.010, 0.010, 24, 24, call="stage1+stage2"),
        PlannedStage("stage2", "edge:opencl:0", 1, 0.015, 0.016, 0.016, 24, 24, call="stage1+stage2"),
    )
    call = PlannedStage("stage1+stage2", "edge", 2, 0.026, 0.030, 0.020, 24, 24)
    devices = tuple(parse([f"cpu:{CPU}", "edge:cpu:0", "edge:opencl:0"]))
    whole = Plan("throughput", ("t1", "t2"), split(chain(3), ["t1", "t2"]), planned, devices, calls=(call,))
    assert whole.bottleneck == call
    assert whole.throughput == pytest.approx(50)
    assert whole.latency_s == pytest.approx(0.034)
    assert str(whole).splitlines()[4].split()[:3] == ["stage1+stage2", "edge", "2"]
    told = whole.compare(dict.fromkeys(["stage0", "stage1", "stage2", "stage1+stage2"], took(0.2)))
    assert [stage.name for stage in told.stages] == ["stage0", "stage1", "stage2", "stage1+stage2"]


def test_a_stage_for_a_chip_is_a_library_that_names_it(tmp_path: Path) -> None:
    parts = export(split(chain(), [2]), parse([f"cpu:{CPU}", "edge:cpu:0"]), tmp_path / "model.so", tracker="lab:9190")
    assert parts == {"stage1": tmp_path / "model-stage1.so"}
    with module.load_module(parts["stage1"]) as part, module.load_module(tmp_path / "model.so") as whole:
        assert isinstance(part, GraphModule)
        assert [stage["device"] for stage in part.graph["stages"]] == ["cpu:0"]
        assert [(each.endpoint.serve, each.endpoint.tracker) for each in remotes(whole)] == [
            ("model-stage1", "lab:9190")
        ]


def test_a_plan_and_its_comparison_show_themselves_in_a_notebook(plan: Plan) -> None:
    told = shown(plan)
    assert told.cells[:3] == ["plan of 2 stages for throughput", "STAGE", "DEVICE"]
    assert "20.00 ms  <- slowest" in told.cells
    assert told.cells[-2:] == ["left out, since nothing is gained there: cpu:1", "warning: free extents"]
    assert [each.tag.rpartition("}")[2] for each in told.pictures] == ["svg"]
    figures = {name: StageStats(frames=10, active_s=seconds) for name, seconds in (("stage0", 0.1), ("stage1", 0.2))}
    assert shown(plan.compare(figures)).cells[-4:] == ["slowest", "20.00 ms", "20.00 ms", "+0.0%"]
