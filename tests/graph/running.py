"""Runs models and stages with plain onnxruntime, for tests to compare with."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import onnx
import onnx_ir as ir
import onnxruntime
from onnx import TensorProto, helper

from rpcsys.graph import Stage, Stages

Feeds = Mapping[str, Any]
FLOAT = TensorProto.FLOAT


def run(model: onnx.ModelProto | ir.Model, feeds: Feeds, level: str = "BASIC") -> dict[str, Any]:
    """Every output by name, at an optimisation level of onnxruntime (DISABLE_ALL, BASIC, ALL)."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    name = level if level == "DISABLE_ALL" else f"ENABLE_{level}"
    options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_{name}")
    proto = ir.to_proto(model) if isinstance(model, ir.Model) else model
    session = onnxruntime.InferenceSession(proto.SerializeToString(), options, providers=["CPUExecutionProvider"])
    names = [output.name for output in session.get_outputs()]
    wanted = {value.name: feeds[value.name] for value in session.get_inputs()}
    return dict(zip(names, session.run(names, wanted), strict=True))


def run_stages(stages: Stages, feeds: Feeds, level: str = "BASIC") -> dict[str, Any]:
    """Run the stages one after another, each with exactly the inputs it names; returns the outputs of the whole."""
    values = dict(feeds)
    for stage in stages:
        given = {item.name: values[item.name] for item in stage.inputs}
        made = run(stage.model, given, level)
        assert list(made) == [item.name for item in stage.outputs]
        values.update(made)
    return {item.name: values[item.name] for item in stages.outputs}


def assert_same(ours: Mapping[str, Any], theirs: Mapping[str, Any]) -> None:
    """Equal names, dtypes, shapes and bits."""
    assert list(ours) == list(theirs)
    for name in ours:
        assert np.asarray(ours[name]).dtype == np.asarray(theirs[name]).dtype
        np.testing.assert_array_equal(ours[name], theirs[name])


def values(*names: str, shape: Sequence[int | str | None] = (2, 3), dtype: int = FLOAT) -> list[Any]:
    return [helper.make_tensor_value_info(name, dtype, shape) for name in names]


def node(op: str, takes: str, makes: str, **attributes: Any) -> onnx.NodeProto:
    """``node("Add", "a b", "c", name="n1")``."""
    return helper.make_node(op, takes.split(" ") if takes else [], makes.split(" "), **attributes)


def make(
    nodes: Sequence[onnx.NodeProto],
    inputs: Sequence[Any],
    outputs: Sequence[Any],
    *,
    weights: Mapping[str, np.ndarray[Any, Any]] | None = None,
    functions: Sequence[onnx.FunctionProto] = (),
    domains: Mapping[str, int] | None = None,
    ir_version: int = 10,
) -> onnx.ModelProto:
    """A model at opset 17."""
    graph = helper.make_graph(
        nodes,
        "g",
        inputs,
        outputs,
        [onnx.numpy_helper.from_array(array, name) for name, array in (weights or {}).items()],
    )
    opsets = [helper.make_opsetid(domain, version) for domain, version in {"": 17, **(domains or {})}.items()]
    return helper.make_model(graph, opset_imports=opsets, functions=functions, ir_version=ir_version)


def chain(length: int = 4) -> onnx.ModelProto:
    """``x -> t1 -> t2 -> … -> y`` of nodes n0, n1, …; Relu and Neg in turn."""
    tensors = ["x", *(f"t{i}" for i in range(1, length)), "y"]
    nodes = [node("Relu" if i % 2 else "Neg", tensors[i], tensors[i + 1], name=f"n{i}") for i in range(length)]
    return make(nodes, values("x"), values("y"))


def numbers(*shape: int, seed: int = 0) -> np.ndarray[Any, Any]:
    return np.random.default_rng(seed).standard_normal(shape, np.float32)


def ops(stage: Stage) -> list[str]:
    return [item.op_type for item in stage.model.graph]


def names(tensors: Any) -> list[str]:
    return [tensor.name for tensor in tensors]
