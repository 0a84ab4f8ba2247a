from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from rpcsys import graph
from rpcsys.errors import RemoteFunctionError, UsageError
from rpcsys.graph import OnnxRuntime, Pipeline
from rpcsys.lab import Lab
from rpcsys.module import Module, export_library, load_module
from tests.graph.running import chain, numbers

X = numbers(2, 3)
EXPECTED = np.maximum(-np.maximum(-X, 0), 0)


def check(pipeline: Pipeline) -> None:
    with pipeline:
        np.testing.assert_array_equal(pipeline.submit(X).result(20), EXPECTED)
        np.testing.assert_array_equal(pipeline.submit({"x": X}).result(20)["y"], EXPECTED)


def test_stages_are_built_for_targets_functions_and_modules() -> None:
    stages = graph.split(chain(), [1, 2, 3])
    given = graph.build(stages[3], "reference")
    relu = {"stage0": "reference", "stage1": lambda x: np.maximum(x, 0), "stage3": given}
    check(Pipeline(stages, relu))
    np.testing.assert_array_equal(given(X), np.maximum(X, 0))  # not closed: it was given
    check(Pipeline(stages, OnnxRuntime(threads=1)))


def test_a_pipeline_closes_the_modules_it_built() -> None:
    pipeline = Pipeline(graph.split(chain(), [2]))
    owned = pipeline._owned
    pipeline.close()
    assert len(owned) == 2
    for module in owned:
        with pytest.raises(RemoteFunctionError, match="closed"):
            module(X)


@pytest.mark.skipif(not hasattr(os, "sched_setaffinity"), reason="the system has no CPU affinity")
def test_a_stage_for_some_cpus_is_built_for_them() -> None:
    check(Pipeline(graph.split(chain(), [2]), cpus={"stage1": [max(os.sched_getaffinity(0))]}))


def test_a_built_module_and_its_library(tmp_path: Path) -> None:
    model = graph.build(graph.split(chain(), [2]))
    check(Pipeline(model))
    export_library(model, tmp_path / "model.so")
    with load_module(tmp_path / "model.so") as loaded:
        check(Pipeline(loaded, replicas={"stage0": 2}))


@pytest.mark.live
def test_a_stage_on_a_device(tmp_path: Path) -> None:
    stages = graph.split(chain(), [2])
    stages.save(tmp_path)
    with Lab(servers={"cpu": 1}) as lab, lab.connect() as tracker, tracker.request("cpu") as session:
        check(Pipeline(stages, {"stage1": session.load_module(str(tmp_path / "stage1.onnx"))}))


@pytest.mark.parametrize(
    ("remote", "replicas", "calls"),
    [({}, {}, 4), ({"repeatable": False}, {}, 1), ({}, {"stage1": 1}, 1), ({}, {"stage1": 7}, 7)],
)
def test_a_server_has_several_calls_under_way(remote: dict[str, Any], replicas: dict[str, int], calls: int) -> None:
    stages = graph.split(chain(), [2])
    head = graph.Remote("head", address="127.0.0.1:1", **remote)  # never called: nothing connects
    with Pipeline(stages, {"stage1": head}, replicas=replicas) as pipeline:
        assert [len(stage.functions) for stage in pipeline._topology.stages] == [1, calls]


@pytest.mark.parametrize(
    ("given", "more", "message"),
    [
        ("stages", {"inputs": ["x"]}, "these have their own"),
        ("stages", {"replicas": {"stage7": 2}}, "no stage 'stage7'; there are stage0, stage1"),
        ("stages", {"replicas": {"stage1": 0}}, "one replica or more, not 0"),
        ("stages", {"targets": {"stage7": "reference"}}, "no stage 'stage7'"),
        ("stages", {"queue": 0}, "queue is 1 or more"),
        ("stages", {"replicas": 3}, "^replicas are given by the names of stages, such as {'stage0': 2}, not as int$"),
        ("stages", {"replicas": {"stage1": 1.5}}, "^stage 'stage1' needs a whole number of replicas, not 1.5$"),
        (
            "stages",
            {"cpus": [0]},
            r"^cpus are given by the names of stages, such as {'stage0': \[0, 1\]}, not as list$",
        ),
        ("stages", {"cpus": {"stage1": 3}}, r"^the CPUs of stage 'stage1' are a list of numbers, such as .* not 3$"),
        ("stages", {"cpus": {"stage1": "ab"}}, "not 'ab'$"),
        ("stages", {"queue": 1.5}, "^a queue of 1.5 lets"),
        ("stages", {"queue": None}, "^a queue of None lets"),
        ("stages", {"targets": 3}, "^3 is no target; there are onnxruntime, reference, tvm"),
        (None, {}, "^a pipeline takes stages of graph.split, .*, not NoneType$"),
        (3, {}, "^a pipeline takes stages of graph.split, .*, not int$"),
        ([("s", abs, ["x"])], {}, "a tuple of its name, module, inputs and outputs"),
        ([("s", abs, ["x"], ["y"])], {"targets": "reference"}, "these are built already"),
        ([("s", [abs, abs], ["x"], ["y"])], {"replicas": {"s": 3}}, "a module for each replica already"),
        (Module("alone", {"main": abs}), {}, "of kind alone has no stages"),
    ],
)
def test_invalid_arguments_are_refused(given: Any, more: dict[str, Any], message: str) -> None:
    stages = graph.split(chain(), [2]) if given == "stages" else given
    with pytest.raises(UsageError, match=message):
        Pipeline(stages, **more)
