"""Cuts found by trying: with real models, and with times that are made up."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from rpcsys import graph
from rpcsys.errors import ModelError, UsageError
from rpcsys.graph._plan import devices
from rpcsys.graph._plan.bench import LocalBench
from rpcsys.graph._plan.cost_model import DeviceLink
from rpcsys.graph._plan.profile import Profile
from tests.graph.running import assert_same, chain, make, node, numbers, run, run_stages, values

Quick = Callable[..., graph.Plan]


@pytest.fixture
def auto_cuts() -> Quick:
    """`graph.auto_cuts` in no time; what it promises is worth nothing then."""

    def found(model: Any, over: Any, **options: Any) -> graph.Plan:
        return graph.auto_cuts(model, over, **{"measure_s": 0.001, "rounds": 2, **options})

    return found


@pytest.fixture
def cpus(monkeypatch: pytest.MonkeyPatch) -> list[str]:
    """Two devices on any machine, even one with a single CPU."""
    monkeypatch.setattr(devices, "available", lambda: {0, 1, 2})
    monkeypatch.setattr(devices.PlanDevice, "target", property(lambda device: graph.OnnxRuntime(threads=1)))
    return ["cpu:0", "cpu:1"]


def test_the_plan_is_a_division_of_the_model(auto_cuts: Quick, cpus: list[str]) -> None:
    model = chain(6)
    plan = auto_cuts(model, cpus)
    assert sum(stage.nodes for stage in plan.planned) == 6
    assert [stage.name for stage in plan.planned] == [stage.name for stage in plan.stages]
    assert all(stage.stage_s > 0 and stage.given == 24 for stage in plan.planned)
    feeds = {"x": numbers(2, 3)}
    assert_same(run_stages(graph.split(model, plan), feeds), run(model, feeds))
    with plan.pipeline() as pipeline:
        results = list(pipeline.run([feeds["x"]] * 5))
        told = plan.compare(pipeline.figures())
    assert_same({"y": results[-1]}, run(model, feeds))
    assert {stage.name for stage in told.stages} == {stage.name for stage in plan.stages}


def test_control_flow_sequences_and_strings_are_divided(auto_cuts: Quick, cpus: list[str]) -> None:
    then = helper.make_graph([node("Neg", "a", "t1"), node("Add", "t1 x", "t2")], "then", [], values("t2"))
    other = helper.make_graph([node("Relu", "a", "t3")], "else", [], values("t3"))
    nodes = [
        node("Tanh", "x", "a"),
        helper.make_node("If", ["flag"], ["b"], then_branch=then, else_branch=other),
        node("SequenceConstruct", "a b", "s"),
        node("SequenceAt", "s one", "c"),
        node("NonZero", "c", "n"),
        node("Cast", "n", "y", to=1),
        node("Identity", "words", "said"),
    ]
    inputs = [
        *values("x"),
        helper.make_tensor_value_info("flag", TensorProto.BOOL, []),
        helper.make_tensor_value_info("words", TensorProto.STRING, [2]),
    ]
    outputs = [*values("y", shape=(2, None)), helper.make_tensor_value_info("said", TensorProto.STRING, [2])]
    model = make(nodes, inputs, outputs, weights={"one": np.asarray(1)})
    feeds = {"x": numbers(2, 3), "flag": np.asarray(True), "words": np.array(["a", "b"], object)}
    plan = auto_cuts(model, cpus, inputs=feeds, exact=True, rounds=1)
    assert len(plan.stages) == 2
    assert plan.planned[0].taken <= 24 + 1 + 2
    assert_same(run_stages(plan.stages, feeds), run(model, feeds))


def test_fewer_nodes_than_devices_make_fewer_stages(auto_cuts: Quick, cpus: list[str]) -> None:
    plan = auto_cuts(chain(2), [*cpus, "cpu:2"])
    assert len(plan.stages) <= 2
    assert len(plan.unused) == 3 - len(plan.stages)
    assert len(auto_cuts(chain(1), cpus).stages) == 1


def test_free_extents_are_one_and_that_is_said(auto_cuts: Quick, cpus: list[str]) -> None:
    nodes = [node("Neg", "x", "a"), node("Relu", "a", "y")]
    model = make(nodes, values("x", shape=("batch", 3)), values("y", shape=("batch", 3)))
    with pytest.warns(RuntimeWarning, match=r"x is float32\[batch, 3\]: free extents are taken as 1"):
        plan = auto_cuts(model, cpus)
    assert plan.planned[0].taken == 12
    assert plan.warnings
    plan = auto_cuts(model, cpus, inputs={"x": numbers(5, 3)})
    assert plan.planned[0].taken == 60
    assert not plan.warnings


def _constant() -> onnx.ModelProto:
    return make([node("Neg", "w", "y")], values("x"), values("y"), weights={"w": numbers(2, 3)})


@pytest.mark.parametrize(
    ("options", "says"),
    [
        ({"goal": "beauty"}, "a goal is throughput or latency"),
        ({"encode": "gif"}, "'gif' is no encoding"),
        ({"rounds": 0}, "rounds is 1 or more"),
        ({"measure_s": 0}, "measure_s above 0"),
        ({"inputs": {"z": numbers(2, 3)}}, "no input 'z'; the model wants x"),
        ({"inputs": {}}, "none given for input 'x'"),
        ({"model": _constant()}, "nothing in the model depends on its inputs"),
        ({"model": b"none"}, "cannot be read as an ONNX model"),
        ({"over": ["gpu:0"]}, "'gpu:0' is no device"),
    ],
)
def test_what_cannot_be_meant_is_said(
    auto_cuts: Quick, cpus: list[str], options: dict[str, Any], says: str
) -> None:
    model, over = options.pop("model", chain()), options.pop("over", cpus)
    with pytest.raises(UsageError, match=says):
        auto_cuts(model, over, **options)


def test_what_onnxruntime_cannot_run_is_said(auto_cuts: Quick, cpus: list[str]) -> None:
    model = make(
        [node("Nothing", "x", "y", domain="nowhere")], values("x"), values("y"), domains={"nowhere": 1}
    )
    with pytest.raises(ModelError, match="onnxruntime cannot load the model"):
        auto_cuts(model, cpus)
    with pytest.raises(ModelError, match="does not run with these inputs"):
        auto_cuts(chain(), cpus, inputs={"x": numbers(7)})


# ------------------------------------------------------------------ times made up


class Clock:
    """Stages that take what it says, for each node on each device, and a link to each device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.profiled: Sequence[float] = ()
        self.node_s: dict[str, Sequence[float]] = {}  # what each node really takes on a device
        self.links: dict[str, DeviceLink] = {}
        self.tried: list[list[str]] = []
        self._loaded: list[float] = []
        monkeypatch.setattr("rpcsys.graph._plan.auto_cuts.profile", self._profile)
        monkeypatch.setattr("rpcsys.graph._plan.search.paces", self._paces)
        monkeypatch.setattr("rpcsys.graph._plan.auto_cuts.open_bench", self._bench)

    def _profile(self, flow: Any, feeds: Any) -> Profile:
        return Profile(self.profiled, {f"t{i}": 24 for i in range(len(self.profiled))})

    def _bench(self, device: Any, session: Any, calls: int, encode: str) -> LocalBench:
        clock, here = self, LocalBench(device)
        here.link = self.links.get(device.name)
        load = here.load

        def timed(stage: Any) -> Any:
            places = [int(each.outputs[0].name[1:] or 0) for each in stage.model.graph]
            work = sum(clock.node_s[device.name][place] for place in places)
            clock._loaded.append(work if here.link is None else here.link.pace(work, 24, 24))
            return load(stage)

        here.load = timed  # type: ignore[method-assign]
        return here

    def _paces(self, calls: Sequence[Any], seconds: float, *, together: bool) -> list[float]:
        paces, self._loaded = self._loaded, []
        self.tried.append([f"{pace:.3f}" for pace in paces])
        return paces


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def line(length: int) -> onnx.ModelProto:
    """``t0 -> t1 -> …``: node i makes tensor ti."""
    nodes = [node("Tanh" if i % 2 else "Sigmoid", f"t{i - 1}" if i else "x", f"t{i}") for i in range(length)]
    return make(nodes, values("x"), values(f"t{length - 1}"))


def test_the_first_try_is_by_the_profile_and_the_next_by_what_was_measured(
    clock: Clock, cpus: list[str]
) -> None:
    """Nodes that the profile has as equal, of which the later ones are three times as fast."""
    clock.profiled = [1.0] * 8
    clock.node_s = dict.fromkeys(cpus, [3.0] * 4 + [1.0] * 4)
    plan = graph.auto_cuts(line(8), cpus)
    assert clock.tried[0] == ["12.000", "4.000"]
    assert plan.bottleneck.stage_s == 9.0
    assert plan.cuts in {("t2",), ("t1",)}
    assert plan.unused == ()


def test_a_quicker_device_gets_more_and_a_useless_one_nothing(clock: Clock, cpus: list[str]) -> None:
    clock.profiled = [1.0] * 9
    clock.node_s = {"cpu:0": [2.0] * 9, "cpu:1": [1.0] * 9, "cpu:2": [1.0] * 9}
    clock.links = {"cpu:2": DeviceLink(100.0, 1, 1)}
    plan = graph.auto_cuts(line(9), [*cpus, "cpu:2"])
    assert [(stage.device, stage.nodes) for stage in plan.planned] == [("cpu:0", 3), ("cpu:1", 6)]
    assert plan.unused == ("cpu:2",)
    assert plan.throughput == pytest.approx(1 / 6)


def test_devices_that_are_unlike_may_change_places(clock: Clock, cpus: list[str]) -> None:
    """The second device alone is quick at the first nodes. Two CPUs and one are not alike."""
    over = ["cpu:0-1", "cpu:2"]
    clock.profiled = [1.0] * 4
    clock.node_s = {"cpu:0-1": [9.0, 9.0, 1.0, 1.0], "cpu:2": [1.0, 1.0, 9.0, 9.0]}
    plan = graph.auto_cuts(line(4), over, rounds=9)
    assert plan.bottleneck.stage_s == 2.0
    assert [stage.device for stage in plan.planned] == over[::-1]
    kept = graph.auto_cuts(line(4), over, rounds=9, keep_order=True)
    assert kept.bottleneck.stage_s == 18.0
    assert [stage.device for stage in kept.planned] == over


def test_latency_is_best_on_the_quickest_device_alone(clock: Clock, cpus: list[str]) -> None:
    clock.profiled = [1.0] * 4
    clock.node_s = {"cpu:0": [2.0] * 4, "cpu:1": [1.0] * 4}
    plan = graph.auto_cuts(line(4), cpus, goal="latency")
    assert [stage.device for stage in plan.planned] == ["cpu:1"]
    assert plan.latency_s == 4.0
    assert plan.cuts == ()


def test_it_ends_when_nothing_better_is_promised(clock: Clock, cpus: list[str]) -> None:
    clock.profiled = [1.0] * 4
    clock.node_s = dict.fromkeys(cpus, [1.0] * 4)
    graph.auto_cuts(line(4), cpus, rounds=50)
    assert clock.tried == [["2.000", "2.000"]]
