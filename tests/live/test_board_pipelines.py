"""Pipelines whose stages lie on devices of one leased board: one call a frame, and what flows between stays there."""

from __future__ import annotations

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest

from rpcsys import graph
from rpcsys.errors import FrameError, NotSupported
from rpcsys.graph import Leased, Pipeline, Stages
from tests.graph.running import chain, make, node, numbers, run, values
from tests.live.daemons import Daemon, Daemons, wait_free
from tests.live.recording_relay import recording

OPENCL = graph.Tvm({"kind": "opencl", "host": {"kind": "llvm"}})
SHAPE = (64, 64)
FRAMES = 40


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


def expected(number: int) -> Any:
    return run(network(), {"x": frame(number)})["y"]


@pytest.fixture(scope="module")
def lab(module_daemons: Any, opencl_library: Path) -> tuple[Daemon, Daemon]:
    """A tracker, and a board with an OpenCL device."""
    pytest.importorskip("tvm")
    daemons: Daemons = module_daemons()
    tracker = daemons.tracker()
    return tracker, daemons.server("board", "--devices", "opencl", "--load-library", str(opencl_library), tracker=tracker, offers=1)


def stages() -> Stages:
    return graph.split(network(), ["t2"])


def targets(tracker: Daemon, **more: Any) -> dict[str, Leased]:
    there = {"device": "cpu:0", **more}
    return {
        "stage0": Leased("board", tracker.where, **there),
        "stage1": Leased("board", tracker.where, **{**there, "target": OPENCL, "device": "opencl:0"}),
    }


def test_two_devices_of_one_board_run_a_pipeline(lab: tuple[Daemon, Daemon], tmp_path: Path) -> None:
    tracker, _ = lab
    with Pipeline(stages(), targets(tracker)) as pipeline:
        assert repr(pipeline) == "<pipeline of stage0+stage1>"
        for number, out in enumerate(pipeline.run(map(frame, range(FRAMES)))):
            np.testing.assert_allclose(out, expected(number), atol=1e-4)
        figures = pipeline.figures()
        pipeline.save_trace(tmp_path / "trace.json")
        print(figures)
    assert list(figures) == ["stage0+stage1", "stage0", "stage1"]
    assert {row.frames for row in figures.values()} == {FRAMES}
    assert 0 < figures["stage0"].busy_s < figures["stage0+stage1"].busy_s
    wait_free(tracker, "board", 1, 20)
