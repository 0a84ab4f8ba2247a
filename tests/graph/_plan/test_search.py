"""The search for cuts, with simulated times."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import onnx
import pytest

from rpcsys import graph
from rpcsys.graph._plan.bench import ChipBench, LocalBench, Trial
from rpcsys.graph._plan.cost_model import DeviceLink
from rpcsys.graph._plan.profile import Profile
from tests.graph.running import make, node, values


class Clock:
    """Simulated times for each node on each device, and a link to each device."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.profiled: Sequence[float] = ()
        self.node_s: dict[str, Sequence[float]] = {}  # the true seconds of each node on a device
        self.links: dict[str, DeviceLink] = {}
        self.tried: list[list[str]] = []
        self.pace_s: dict[Any, float] = {}  # of each loaded call
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
            work, trial = clock.work_s(device.name, stage), load(stage)
            clock.pace_s[trial.call] = work if here.link is None else here.link.pace(work, 24, 24)
            return trial

        here.load = timed  # type: ignore[method-assign]
        return here

    def work_s(self, device: str, stage: Any) -> float:
        """The true seconds of a stage on a device."""
        places = [int(each.outputs[0].name[1:] or 0) for each in stage.model.graph]
        return sum(self.node_s[device][place] for place in places)

    def _paces(self, calls: Sequence[Any], seconds: float, *, together: bool) -> list[float]:
        paces = [self.pace_s[call.function.func] for call in calls]
        self.tried.append([f"{pace:.3f}" for pace in paces])
        return paces


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    return Clock(monkeypatch)


def line(length: int) -> onnx.ModelProto:
    """``t0 -> t1 -> …``: node i makes tensor ti."""
    nodes = [node("Tanh" if i % 2 else "Sigmoid", f"t{i - 1}" if i else "x", f"t{i}") for i in range(length)]
    return make(nodes, values("x"), values(f"t{length - 1}"))


def test_the_first_trial_uses_the_profile_the_next_measurements(clock: Clock, cpus: list[str]) -> None:
    """The profile reports equal nodes; the later ones are really three times as fast."""
    clock.profiled = [1.0] * 8
    clock.node_s = dict.fromkeys(cpus, [3.0] * 4 + [1.0] * 4)
    plan = graph.auto_cuts(line(8), cpus)
    assert clock.tried[0] == ["12.000", "4.000"]
    assert plan.bottleneck.stage_s == 9.0
    assert plan.cuts in {("t2",), ("t1",)}
    assert plan.unused == ()


def test_a_faster_device_gets_more_and_a_useless_one_nothing(clock: Clock, cpus: list[str]) -> None:
    clock.profiled = [1.0] * 9
    clock.node_s = {"cpu:0": [2.0] * 9, "cpu:1": [1.0] * 9, "cpu:2": [1.0] * 9}
    clock.links = {"cpu:2": DeviceLink(100.0, 1, 1)}
    plan = graph.auto_cuts(line(9), [*cpus, "cpu:2"])
    assert [(stage.device, stage.nodes) for stage in plan.planned] == [("cpu:0", 3), ("cpu:1", 6)]
    assert plan.unused == ("cpu:2",)
    assert plan.throughput == pytest.approx(1 / 6)


def test_devices_that_are_unlike_may_change_places(clock: Clock, cpus: list[str]) -> None:
    """Only the second device is fast at the first nodes. Two CPUs and one CPU are not alike."""
    over = ["cpu:0-1", "cpu:2"]
    clock.profiled = [1.0] * 4
    clock.node_s = {"cpu:0-1": [9.0, 9.0, 1.0, 1.0], "cpu:2": [1.0, 1.0, 9.0, 9.0]}
    plan = graph.auto_cuts(line(4), over, rounds=9)
    assert plan.bottleneck.stage_s == 2.0
    assert [stage.device for stage in plan.planned] == over[::-1]
    kept = graph.auto_cuts(line(4), over, rounds=9, keep_order=True)
    assert kept.bottleneck.stage_s == 18.0
    assert [stage.device for stage in kept.planned] == over


def test_latency_is_best_on_the_fastest_device_alone(clock: Clock, cpus: list[str]) -> None:
    clock.profiled = [1.0] * 4
    clock.node_s = {"cpu:0": [2.0] * 4, "cpu:1": [1.0] * 4}
    plan = graph.auto_cuts(line(4), cpus, goal="latency")
    assert [stage.device for stage in plan.planned] == ["cpu:1"]
    assert plan.latency_s == 4.0
    assert plan.cuts == ()


def test_the_search_ends_without_a_better_proposal(clock: Clock, cpus: list[str]) -> None:
    clock.profiled = [1.0] * 4
    clock.node_s = dict.fromkeys(cpus, [1.0] * 4)
    graph.auto_cuts(line(4), cpus, rounds=50)
    assert clock.tried == [["2.000", "2.000"]]


class FakeBoard:
    """A board whose chips take a clock's times, and work at once in calls to several of them."""

    def __init__(self, clock: Clock, link: DeviceLink) -> None:
        self.clock, self.link = clock, link

    def chip(self, device: Any) -> ChipBench:
        board: Any = self
        return ChipBench(board, device, DeviceLink(0.0, math.inf, math.inf))

    def load(self, stages: Any, on: Any) -> Trial:
        works = [self.clock.work_s(on[stage.name].name, stage) for stage in stages]
        module = graph.build(stages)
        self.clock.pace_s[module] = float(self.link.pace(sum(works), 24, 24, max(works)))
        return Trial(module, lambda args: works[0])


def boards(clock: Clock, monkeypatch: pytest.MonkeyPatch, link: DeviceLink) -> None:
    """Each board is a `FakeBoard` behind ``link``."""
    auto_cuts = "rpcsys.graph._plan.auto_cuts"
    monkeypatch.setattr(f"{auto_cuts}.open_sessions", lambda devices, *_: [object() for _ in devices])
    monkeypatch.setattr(f"{auto_cuts}.with_targets", lambda devices, sessions: devices)
    monkeypatch.setattr(f"{auto_cuts}.without_deployments", lambda *_: [])
    monkeypatch.setattr(f"{auto_cuts}.BoardBench", lambda *_: FakeBoard(clock, link))


def test_neighbours_on_one_board_are_one_call(clock: Clock, cpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What they exchange does not cross the link, which would take longer than a stage."""
    over = ["edge:cpu:0", "edge:opencl:0"]
    boards(clock, monkeypatch, DeviceLink(0.1, 24, 24, calls=4))
    clock.profiled = [1.0] * 8
    clock.node_s = {"edge:cpu:0": [2.0] * 8, "edge:opencl:0": [2.0] * 8}
    plan = graph.auto_cuts(line(8), over)
    assert [(stage.device, stage.nodes, stage.call) for stage in plan.planned] == [
        ("edge:cpu:0", 4, "stage0+stage1"),
        ("edge:opencl:0", 4, "stage0+stage1"),
    ]
    (call,) = plan.calls
    assert (call.device, call.nodes, call.stage_s, call.taken, call.given) == ("edge", 8, 8.0, 24, 24)
    assert plan.bottleneck == call
    assert plan.latency_s == pytest.approx(16 + 0.1 + 2)
    assert "stage0+stage1  edge" in str(plan)


def test_two_boards_of_two_chips_are_two_calls(clock: Clock, cpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    over = [f"edge{number}:{chip}:0" for number in ("", "#2") for chip in ("cpu", "opencl")]
    boards(clock, monkeypatch, DeviceLink(0.1, 100, 100, calls=4))
    clock.profiled = [1.0] * 8
    clock.node_s = dict.fromkeys(over, [1.0] * 8)
    plan = graph.auto_cuts(line(8), over, keep_order=True)
    assert [stage.device for stage in plan.planned] == over
    assert [call.device for call in plan.calls] == ["edge", "edge#2"]
    assert plan.bottleneck.stage_s == 2.0


def test_a_chip_that_is_slow_is_left_out(clock: Clock, cpus: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    boards(clock, monkeypatch, DeviceLink(0.1, 100, 100, calls=4))
    clock.profiled = [1.0] * 4
    clock.node_s = {"edge:cpu:0": [1.0] * 4, "edge:opencl:0": [90.0] * 4}
    plan = graph.auto_cuts(line(4), list(clock.node_s))
    assert [stage.device for stage in plan.planned] == ["edge:cpu:0"]
    assert (plan.calls, plan.unused) == ((), ("edge:opencl:0",))
