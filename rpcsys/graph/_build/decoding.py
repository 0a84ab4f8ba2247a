"""Writes the decoding of tensors into a stage's model, for servers that know no encoding: each that runs ONNX casts.

An input in float16 becomes FP16, one in int8 INT8 with a second input NAME.scale; an output becomes FP16.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

import onnx_ir as ir

from rpcsys.graph._ir.stage import Stage
from rpcsys.graph._ir.tensor_info import describe


def decoding(stage: Stage, ways: Mapping[str, str]) -> Stage:
    """The stage that takes and gives the tensors of ``ways`` encoded: name -> ``float16``, or of an input ``int8``."""
    model = stage.model.clone()
    graph = model.graph
    first = graph[0]
    for value in list(graph.inputs):
        if value.name in ways:
            _decode(graph, first, value, ways[value.name])
    for place, value in enumerate(list(graph.outputs)):
        if value.name in ways:
            graph.outputs[place] = _encoded(graph, value)
    inputs, outputs = (tuple(map(describe, values)) for values in (graph.inputs, graph.outputs))
    return dataclasses.replace(stage, model=model, inputs=inputs, outputs=outputs)


def _decode(graph: ir.Graph, first: ir.Node, value: ir.Value, how: str) -> None:
    """Have all that uses an input use what a node before ``first`` decodes of it."""
    dtype = value.dtype
    assert dtype is not None, "a tensor with an encoding has a type"
    users = list(value.uses())
    # A new type: the model's clone shares the types of the model.
    value.type = ir.TensorType(ir.DataType.FLOAT16 if how == "float16" else ir.DataType.INT8)
    last = cast = _cast(value, dtype)
    added = [cast]
    if how == "int8":
        scale = ir.val(f"{value.name}.scale", ir.DataType.DOUBLE, [1])
        graph.inputs.insert(graph.inputs.index(value) + 1, scale)
        scales = _cast(scale, dtype)
        last = ir.node("Mul", [cast.outputs[0], scales.outputs[0]])
        added += [scales, last]
    decoded = last.outputs[0]
    decoded.name, decoded.type, decoded.shape = f"{value.name}.decoded", ir.TensorType(dtype), value.shape
    graph.insert_before(first, added)
    for node, place in users:
        node.replace_input_with(place, decoded)


def _encoded(graph: ir.Graph, value: ir.Value) -> ir.Value:
    """The output in FP16 that takes the name of ``value``, and its place."""
    name = value.name
    value.name = f"{name}.whole"
    cast = _cast(value, ir.DataType.FLOAT16)
    made = cast.outputs[0]
    made.name, made.type, made.shape = name, ir.TensorType(ir.DataType.FLOAT16), value.shape
    graph.append(cast)
    return made


def _cast(value: ir.Value, dtype: ir.DataType) -> ir.Node:
    return ir.node("Cast", [value], {"to": int(dtype)})
