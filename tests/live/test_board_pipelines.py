"""Pipelines whose stages lie on devices of one leased board: one call a frame, and what flows between stays there."""

from __future__ import annotations

import functools
import itertools
import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto

from rpcsys import graph
from rpcsys.errors import FrameError, NotSupported
from rpcsys.graph import Leased, Pipeline, Stages
from rpcsys.graph._build.leased_module import LeasedModule
from rpcsys.graph._plan.devices import OneServer
from rpcsys.wire import frames
from tests.graph.running import make, node, numbers, run, values
from tests.graph.trace_format import check_format
from tests.live.daemons import Daemon, Daemons, wait_free
from tests.live.recording_relay import recording

OPENCL = graph.Tvm({"kind": "opencl", "host": {"kind": "llvm"}})
SHAPE = (64, 64)
DEVICES = ("--devices", "opencl", "--load-library")
FRAMES = 40
HEAD_BYTES = 300  # the most bytes of a frame beside its array


def network() -> onnx.ModelProto:
    """Two products with weights; t2 crosses between the stages."""
    rng = np.random.default_rng(7)
    weights = {name: rng.standard_normal(SHAPE, np.float32) / 8 for name in ("w1", "w2")}
    nodes = [
        node("MatMul", "x w1", "t1"),
        node("Relu", "t1", "t2"),
        node("MatMul", "t2 w2", "t3"),
        node("Neg", "t3", "y"),
    ]
    return make(nodes, values("x", shape=SHAPE), values("y", shape=SHAPE), weights=weights)


def frame(number: int) -> Any:
    return numbers(*SHAPE, seed=number)


@functools.cache
def expected(number: int) -> Any:
    return run(network(), {"x": frame(number)})["y"]


@pytest.fixture(scope="module")
def lab(module_daemons: Any, opencl_library: Path) -> tuple[Daemon, Daemon]:
    """A tracker, and a board with an OpenCL device."""
    pytest.importorskip("tvm")
    daemons: Daemons = module_daemons()
    tracker = daemons.tracker()
    return tracker, daemons.server("board", *DEVICES, str(opencl_library), tracker=tracker, offers=1)


@pytest.fixture(scope="module")
def alone(module_daemons: Any, opencl_library: Path) -> Daemon:
    """Such a board without a tracker."""
    pytest.importorskip("tvm")
    server: Daemon = module_daemons().server("", *DEVICES, str(opencl_library))
    return server


def stages() -> Stages:
    return graph.split(network(), ["t2"])


def targets(tracker: Any) -> dict[str, Leased]:
    where = tracker.where if isinstance(tracker, Daemon) else tracker
    return {
        "stage0": Leased("board", where, device="cpu:0"),
        "stage1": Leased("board", where, target=OPENCL, device="opencl:0"),
    }


def check(pipeline: Pipeline, frames: int = FRAMES) -> None:
    """Check that all frames return in order."""
    count = 0
    for number, out in enumerate(pipeline.run(map(frame, range(frames)))):
        np.testing.assert_allclose(out, expected(number), atol=1e-4)
        count += 1
    assert count == frames


def test_two_devices_of_one_board_run_a_pipeline(lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    tracker, _ = lab
    with Pipeline(stages(), targets(tracker)) as pipeline:
        assert repr(pipeline) == "<pipeline of stage0+stage1>"
        check(pipeline)
        figures = pipeline.figures()
        pipeline.save_trace(tmp_path / "trace.json")
    assert list(figures) == ["stage0+stage1", "stage0", "stage1"]
    assert {row.frames for row in figures.values()} == {FRAMES}
    busy_s = {name: row.busy_s for name, row in figures.items()}
    assert min(busy_s["stage0"], busy_s["stage1"]) > 0
    assert busy_s["stage0"] + busy_s["stage1"] < busy_s["stage0+stage1"]
    trace = json.loads((tmp_path / "trace.json").read_text())
    check_format(trace)
    assert {"board cpu:0", "board opencl:0"} <= {event["args"].get("name") for event in trace["traceEvents"]}
    assert sum(event.get("cat") == "board opencl:0" for event in trace["traceEvents"]) == FRAMES
    wait_free(tracker, "board", 1, 20)


def sent(data: bytes) -> list[tuple[int, int]]:
    """The kind and the size of each frame of a session's connection."""
    found, place = [], 0
    while place < len(data):
        head_bytes, kind, _, _, _, _, body_bytes = frames.HEADER.unpack_from(data, place)
        found.append((kind, frames.HEADER_BYTES + head_bytes + body_bytes))
        place += found[-1][1]
    return found


def test_a_frame_is_one_call_and_nothing_between_the_devices_crosses(alone: Daemon) -> None:
    with recording(alone.address) as relay:
        there = OneServer(relay.where, "")
        with Pipeline(stages(), targets(there)) as pipeline:
            pipeline.submit(frame(0)).result(60)
            (session,) = (each for each in relay.connections if len(each.down) > frame(0).nbytes)
            up, down = len(session.up), len(session.down)
            check(pipeline)
            asked, answered = sent(bytes(session.up[up:])), sent(bytes(session.down[down:]))
    for each, kind in ((asked, frames.CALL), (answered, frames.RESULT)):
        assert [kind] * FRAMES == [found for found, _ in each]
        for _, size in each:
            assert 0 < size - frame(0).nbytes < HEAD_BYTES


def test_a_stage_here_between_two_on_the_board_makes_two_calls_in_one_session(lab: tuple[Daemon, Daemon]) -> None:
    tracker, _ = lab
    board = targets(tracker)
    parts = graph.split(network(), ["t1", "t2"])
    on = {"stage0": board["stage1"], "stage1": "onnxruntime", "stage2": board["stage0"]}
    with Pipeline(parts, on) as pipeline:
        check(pipeline)
        assert list(pipeline.figures()) == ["stage0", "stage1", "stage2"]


def test_frames_of_a_killed_session_run_again(lab: tuple[Daemon, Daemon]) -> None:
    tracker, _ = lab
    whole = graph.build(stages(), targets(tracker))
    (board,) = whole.imports
    assert isinstance(board, LeasedModule)
    with board, Pipeline(whole) as pipeline:
        outputs = pipeline.run(map(frame, range(FRAMES)))
        for number, out in enumerate(outputs):
            np.testing.assert_allclose(out, expected(number), atol=1e-4)
            if number == 5:
                assert board.session is not None
                os.kill(board.session.info["pid"], signal.SIGKILL)
        assert number == FRAMES - 1


def test_a_slow_taker_stops_the_source_and_a_cancelled_frame_is_dropped(lab: tuple[Daemon, Daemon]) -> None:
    tracker, _ = lab
    taken = itertools.count()
    newest = [0]

    def source() -> Iterator[Any]:
        for number in range(3 * FRAMES):
            newest[0] = next(taken)
            yield frame(number)

    with Pipeline(stages(), targets(tracker)) as pipeline:
        assert pipeline.limit < FRAMES
        for number, _ in zip(range(FRAMES), pipeline.run(source()), strict=False):
            assert newest[0] <= number + 2 * pipeline.limit + 1
        futures = [pipeline.submit(frame(number)) for number in range(6)]
        dropped = futures.pop(3)
        dropped.cancel()
        for number, future in zip((0, 1, 2, 4, 5), futures, strict=True):
            np.testing.assert_allclose(future.result(60), expected(number), atol=1e-4)


def test_the_error_of_a_frame_names_the_stage_inside_the_call(lab: tuple[Daemon, Daemon]) -> None:
    tracker, _ = lab
    nodes = [node("Neg", "x", "t1"), node("Gather", "t1 at", "y")]
    inputs = [*values("x"), *values("at", shape=(1,), dtype=TensorProto.INT64)]
    parts = graph.split(make(nodes, inputs, values("y", shape=(1, 3))), ["t1"])
    on = targets(tracker)
    given = [(numbers(2, 3), np.array([place])) for place in (0, 7, 1)]
    with Pipeline(parts, {"stage0": on["stage1"], "stage1": on["stage0"]}) as pipeline:
        first, wrong, last = pipeline.run(given)
        figures = pipeline.figures()
    assert isinstance(wrong, FrameError)
    assert (wrong.frame, wrong.stage) == (1, "stage1")
    np.testing.assert_array_equal([first, last], [-given[0][0][:1], -given[2][0][1:]])
    assert {name: row.failed for name, row in figures.items()} == {"stage0+stage1": 1, "stage0": 0, "stage1": 1}


def test_a_device_that_a_board_lacks_is_named(lab: tuple[Daemon, Daemon]) -> None:
    tracker, _ = lab
    board = Leased("board", tracker.where, device="vulkan:0")
    with pytest.raises(NotSupported, match="key:board has no device vulkan:0; it has cpu:0, opencl:0"):
        Pipeline(stages(), {"stage0": board})


@pytest.mark.parametrize("by_key", [True, False])
def test_cuts_are_found_over_the_devices_of_a_board(lab: tuple[Daemon, Daemon], alone: Daemon, by_key: bool) -> None:
    tracker, _ = lab
    where = "board:" if by_key else f"{alone.where}/"
    over = [f"{where}cpu:0", f"{where}opencl:0"]
    plan = graph.auto_cuts(network(), over, tracker=tracker.where, measure_s=0.1, rounds=2)
    assert {stage.device for stage in plan.planned} <= set(over)
    assert [call.device for call in plan.calls] == ([where.rstrip(":/")] if len(plan.stages) > 1 else [])
    with plan.pipeline(tracker=tracker.where) as pipeline:
        check(pipeline)
        told = plan.compare(pipeline.figures())
    assert len(told.stages) == len(plan.planned) + len(plan.calls)
    wait_free(tracker, "board", 1, 20)
