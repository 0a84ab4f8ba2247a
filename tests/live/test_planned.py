"""Plans for real devices: devices are leased, measured and released; then the plans run on them."""

from __future__ import annotations

import threading
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

import rpcsys
from rpcsys import graph, module
from rpcsys.errors import ConnectError, ModelError, RpcsysError, UnknownKey
from rpcsys.graph._plan.bench import measured_link
from tests.graph.running import make, node, numbers, run, values
from tests.live import deployed
from tests.live.daemons import Daemon, Daemons, queue, wait_free, wait_until
from tests.live.slow_link import slow_link

QUICK = ("--preload", "none")
KEY = "edge"
SHAPE = (1, 16, 64, 64)


@pytest.fixture(scope="module")
def network() -> onnx.ModelProto:
    """Four convolutions, t0 to t3, of 16 channels of 64 by 64."""
    nodes = [node("Conv", f"{f't{i - 1}' if i else 'x'} w{i}", f"t{i}", pads=[1, 1, 1, 1]) for i in range(4)]
    weights = {f"w{i}": numbers(16, 16, 3, 3, seed=i) * np.float32(0.1) for i in range(4)}
    return make(nodes, values("x", shape=SHAPE), values("t3", shape=SHAPE), weights=weights)


@pytest.fixture
def frame() -> Any:
    return numbers(*SHAPE)


@pytest.fixture
def tracker(daemons: Daemons) -> Daemon:
    """A tracker with one device of one slot."""
    tracker = daemons.tracker()
    daemons.server(KEY, *QUICK, tracker=tracker)
    wait_free(tracker, KEY, 1, 20)
    return tracker


def test_a_leased_device_is_measured_released_and_leased_again(
    network: onnx.ModelProto, frame: Any, tracker: Daemon
) -> None:
    told: list[str] = []
    over = ["cpu:0", f"key:{KEY}"]
    plan = graph.auto_cuts(network, over, tracker=tracker.where, measure_s=0.05, rounds=1, say=told.append)
    wait_free(tracker, KEY, 1, 20)
    assert told[-2:] == ["trying 2 stage(s) on cpu:0, key:edge", "trying 2 stage(s) on key:edge, cpu:0"]
    assert sorted(stage.device for stage in plan.planned) == over
    there = next(stage for stage in plan.planned if stage.device != "cpu:0")
    assert there.work_s > 0
    assert there.taken == frame.nbytes
    expected = run(network, {"x": frame}, "ALL")["t3"]
    with plan.pipeline(tracker=tracker.where) as pipeline:
        assert queue(tracker, KEY)["free"] == 0
        for out in pipeline.run([frame] * 12):
            np.testing.assert_allclose(out, expected, rtol=1e-4, atol=1e-5)
        assert {stage.name for stage in plan.compare(pipeline.figures()).stages} == {"stage0", "stage1"}
    wait_free(tracker, KEY, 1, 20)


def test_arrays_are_encoded_between_stages(network: onnx.ModelProto, frame: Any, daemons: Daemons) -> None:
    server = daemons.server(KEY, *QUICK)
    over = [f"key:{KEY}@{server.where}"]
    plan = graph.auto_cuts(network, over, encode="float16", inputs={"x": frame}, measure_s=0.01, rounds=1)
    assert (plan.planned[0].taken, plan.planned[0].given) == (frame.nbytes // 2, frame.nbytes // 2)
    expected = run(network, {"x": frame}, "ALL")["t3"]
    with plan.pipeline() as pipeline:
        (out,) = pipeline.run([frame])
    assert 0 < np.abs(out - expected).max() < 0.05


def test_the_exported_library_calls_the_deployed_part(
    network: onnx.ModelProto, frame: Any, daemons: Daemons, tmp_path: Path
) -> None:
    tracker = daemons.tracker()
    folder = ("--name", "e1", "--deploy", str(tmp_path / "deployed"))
    daemons.server(KEY, *deployed.WITH_NUMPY, *folder, tracker=tracker)
    over = [f"key:{KEY}"]
    plan = graph.auto_cuts(network, over, tracker=tracker.where, measure_s=0.01, rounds=1)
    (part,) = plan.export(tmp_path / "model.so", tracker=tracker.where).values()
    with rpcsys.connect_tracker(tracker.where) as known, known.deployment("e1") as deployment:
        deployment.put(part)
    expected = run(network, {"x": frame}, "ALL")["t3"]
    with module.load_module(tmp_path / "model.so") as loaded:
        np.testing.assert_allclose(loaded(frame), expected, rtol=1e-4, atol=1e-5)


@pytest.mark.slow
def test_a_slow_link_is_measured_and_not_worth_it(network: onnx.ModelProto, frame: Any, daemons: Daemons) -> None:
    """A quarter of a megabyte there and back at 1 MB/s takes longer than the whole model here."""
    server = daemons.server("far", *QUICK)
    with slow_link(server.address, 1e6) as near, rpcsys.connect(*near, key="far") as session:
        link = measured_link(session, 4)
        assert 1e5 < link.up < 2e6
        assert 1e5 < link.down < 2e6
        plan = graph.auto_cuts(network, ["cpu:0", session], inputs={"x": frame}, measure_s=0.01, rounds=2)
    assert [stage.device for stage in plan.planned] == ["cpu:0"]
    assert plan.unused == ("{}:{}".format(*near),)


def test_a_device_that_cannot_run_a_stage_is_named(network: onnx.ModelProto, daemons: Daemons) -> None:
    server = daemons.server(KEY, flavour="bare")
    with pytest.raises(ModelError, match=f"key:{KEY}@.* cannot take stage0: this device cannot load"):
        graph.auto_cuts(network, [f"key:{KEY}@{server.where}"], measure_s=0.01)


def test_the_goal_latency_leaves_out_a_device_that_is_not_faster(network: onnx.ModelProto, tracker: Daemon) -> None:
    """The leased device is this machine, too, plus a round trip."""
    with rpcsys.connect_tracker(tracker.where) as client, client.request(KEY) as session:
        plan = graph.auto_cuts(network, ["cpu:0", session], goal="latency", measure_s=0.05)
        assert session.closed is None
    assert plan.latency_s == pytest.approx(sum(stage.frame_s for stage in plan.planned))
    assert len(plan.planned) + len(plan.unused) == 2


def test_a_server_is_planned_without_a_tracker(network: onnx.ModelProto, daemons: Daemons) -> None:
    server = daemons.server(KEY, *QUICK)
    plan = graph.auto_cuts(network, [f"key:{KEY}@{server.where}"], measure_s=0.01, rounds=1)
    assert [stage.device for stage in plan.planned] == [f"key:{KEY}@{server.where}"]


def test_an_unknown_key_or_server_is_an_error(network: onnx.ModelProto, tracker: Daemon) -> None:
    with pytest.raises(UnknownKey):
        graph.auto_cuts(network, ["key:nobody"], tracker=tracker.where)
    with pytest.raises(ConnectError):
        graph.auto_cuts(network, ["127.0.0.1:1"], wait_s=5)


def test_a_device_killed_meanwhile_ends_the_planning(network: onnx.ModelProto, daemons: Daemons) -> None:
    tracker = daemons.tracker()
    server = daemons.server(KEY, *QUICK, tracker=tracker)
    begun = threading.Event()

    def say(text: str) -> None:
        if text.startswith("trying"):
            begun.set()

    def kill() -> None:
        begun.wait(60)
        wait_until(lambda: queue(tracker, KEY)["free"] == 0, 30, "the device is leased")
        server.kill()

    killing = threading.Thread(target=kill)
    killing.start()
    try:
        with pytest.raises(RpcsysError):
            graph.auto_cuts(network, [f"key:{KEY}"], tracker=tracker.where, measure_s=60, say=say)
    finally:
        begun.set()
        killing.join()
