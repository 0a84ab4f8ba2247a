"""A board with two chips, its CPU and PoCL's OpenCL device, each with a core of its own, and the runtimes alone."""

from __future__ import annotations

import ctypes
import functools
import os
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import tvm
from onnx import TensorProto, helper, numpy_helper

import rpcsys
from benchmarks.figures import median
from benchmarks.peers.ours import KEY, SERVER, TRACKER
from benchmarks.peers.pipelines import FRAMES, WARM_FRAMES, Pace
from benchmarks.peers.subject import Subject, Trial
from benchmarks.processes import tree
from rpcsys import graph, module
from rpcsys.module.kinds.library import LibraryModule

ROOT = Path(__file__).resolve().parents[2]
OPENCL = graph.Tvm({"kind": "opencl", "host": {"kind": "llvm"}})
#: Stages of the chain for the cost of a change, and the extent of its products: they take as good as no time.
CHANGES, TINY = 8, 16
#: The same for the pipeline.
LAYERS, LARGE = 6, 256
CALLS = 200  # in a row on the board


def chain(stages: int, layers: int, size: int) -> graph.Stages:
    """Stages of products with weights, all on float32 ``[size, size]``."""
    rng = np.random.default_rng(5)
    names = [f"t{number}" for number in range(stages * layers + 1)]
    weights = [rng.standard_normal((size, size), np.float32) / np.float32(size) ** 0.5 for _ in names[1:]]
    nodes = [
        helper.make_node("MatMul", [names[number], f"w{number}"], [names[number + 1]]) for number in range(len(weights))
    ]
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [size, size]) for name in (names[0], names[-1])]
    held = [numpy_helper.from_array(array, f"w{number}") for number, array in enumerate(weights)]
    made = helper.make_graph(nodes, "chain", ends[:1], ends[1:], held)
    model = helper.make_model(made, opset_imports=[helper.make_opsetid("", 17)], ir_version=9)
    return graph.split(model, names[layers:-1:layers])


class Chips(Subject):
    """A tracker and a board: its sessions run onnxruntime on one core, and PoCL on another."""

    def start(self) -> None:
        self._cores = sorted(os.sched_getaffinity(0) | {self.place.server_core})
        os.sched_setaffinity(0, range(os.cpu_count() or 1))
        self._cores = sorted(os.sched_getaffinity(0))
        os.environ.update(POCL_MAX_PTHREAD_COUNT="1", POCL_AFFINITY="1", POCL_CACHE_DIR=str(self.place.folder))
        self._plugin = self.place.folder / "libtvm_opencl.so"
        build = [sys.executable, str(ROOT / "native" / "tvm_opencl" / "build.py"), str(self._plugin)]
        subprocess.run(build, check=True)
        self._tracker = self.start_server(TRACKER)
        board = ("--tracker", f"127.0.0.1:{self._tracker}", "--devices", "opencl", "--load-library", str(self._plugin))
        self.port = self.start_server((*SERVER, *board))
        for server in self._servers:
            for pid in tree(server.pid):
                os.sched_setaffinity(pid, self._cores)

    @contextmanager
    def stages_in_a_graph(self) -> Iterator[Trial]:
        """One graph in a session, whose stages lie on the two chips in turn; the seconds of a stage."""
        stages = self._tiny()
        targets = {stage.name: self._target(number) for number, stage in enumerate(stages)}
        path = self.place.folder / "graph.so"
        module.export_library(graph.build(stages, targets), path)
        with self._session() as session:
            evaluator = session.load_module(path).time_evaluator(number=CALLS)
            yield OnBoard(lambda: evaluator(_input(TINY)).mean, CHANGES)

    @contextmanager
    def runtimes_own_calls(self) -> Iterator[Trial]:
        """The same stages by onnxruntime and TVM themselves, in one thread, with the copies between the chips."""
        steps = [self._own(number, stage) for number, stage in enumerate(self._tiny())]

        def run() -> None:
            value = _input(TINY)
            for step in steps:
                value = step(value)

        yield Trial(run, times=CHANGES)

    @contextmanager
    def pipeline_in_a_board(self) -> Iterator[Trial]:
        """A pipeline whose two stages lie on the chips of one leased board: one call a frame."""
        where = f"127.0.0.1:{self._tracker}"
        targets = {
            "stage0": graph.Leased(KEY, where, target=self._on_a_core(), device="cpu:0"),
            "stage1": graph.Leased(KEY, where, target=OPENCL, device="opencl:0"),
        }
        with graph.Pipeline(chain(2, LAYERS, LARGE), targets) as pipeline:
            yield Frames(pipeline.run)

    @contextmanager
    def slowest_alone(self) -> Iterator[Trial]:
        """The slower one of these stages alone on the board."""
        with self._session() as session:
            evaluators = []
            for number, stage in enumerate(chain(2, LAYERS, LARGE)):
                path = self.place.folder / f"{stage.name}.so"
                module.export_library(graph.build(stage, OPENCL if number else self._on_a_core()), path)
                evaluators.append(session.load_module(path).time_evaluator(number=FRAMES))
            yield OnBoard(lambda: max(evaluator(_input(LARGE)).mean for evaluator in evaluators), 1)

    @contextmanager
    def _session(self) -> Iterator[Any]:
        with rpcsys.connect_tracker(f"127.0.0.1:{self._tracker}") as tracker:
            with tracker.request(KEY, wait_timeout=60) as session:
                yield session

    @functools.cache  # noqa: B019 - there is one
    def _tiny(self) -> graph.Stages:
        return chain(CHANGES, 1, TINY)

    def _target(self, number: int) -> Any:
        """The target of a stage: the chips in turn."""
        return OPENCL if number % 2 else graph.OnnxRuntime(threads=1)

    def _on_a_core(self) -> graph.OnnxRuntime:
        """On the last core: PoCL's thread has the first one."""
        return graph.OnnxRuntime(threads=1, cpus=self._cores[-1:])

    def _own(self, number: int, stage: graph.Stage) -> Callable[[Any], Any]:
        path = self.place.folder / f"own{number}"
        if not number % 2:
            onnx.save(onnx.load_from_string(_proto(stage)), path)
            options = onnxruntime.SessionOptions()
            options.intra_op_num_threads = 1
            session = onnxruntime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
            name = session.get_inputs()[0].name
            return lambda value: session.run(None, {name: value})[0]
        ctypes.CDLL(str(self._plugin), ctypes.RTLD_GLOBAL)
        (inner,) = (each for each in module.walk(graph.build(stage, OPENCL)) if isinstance(each, LibraryModule))
        library = path.with_suffix(".so")
        library.write_bytes(bytes(inner.data))
        device = tvm.device("opencl", 0)
        machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(library)), [device, tvm.cpu(0)])
        return lambda value: machine["main"](tvm.runtime.tensor(value, device)).numpy()


class OnBoard(Trial):
    """Seconds that the board itself measures, of one of several ``times``."""

    def __init__(self, measured_s: Callable[[], float], times: int) -> None:
        super().__init__(lambda: None)
        self._measured_s = measured_s
        self._parts = times

    def timed(self) -> float:
        return self._measured_s() / self._parts

    def measure(self, budget_s: float) -> dict[str, float]:
        return {"seconds": median([self.timed() for _ in range(3)])}


class Frames(Pace):
    """The seconds between two results of a pipeline of `LARGE` products."""

    def __init__(self, run: Callable[[Any], Any]) -> None:
        super().__init__(run, list)

    def measure(self, budget_s: float) -> dict[str, float]:
        begin = 0.0
        for number, _ in enumerate(self._results([_input(LARGE)] * (WARM_FRAMES + FRAMES)), 1):
            if number == WARM_FRAMES:
                begin = time.perf_counter()
        return {"seconds": (time.perf_counter() - begin) / FRAMES}


def _input(size: int) -> Any:
    return np.ones((size, size), "float32")


def _proto(stage: graph.Stage) -> bytes:
    from rpcsys.graph._ir import models

    return bytes(models.to_proto(stage.model).SerializeToString())
