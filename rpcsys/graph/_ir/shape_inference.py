"""Types and shapes of a model's tensors, inferred: by ONNX, and by onnxruntime where ONNX knows none.

Known weakness: shapes that depend on values (of NonZero, of NonMaxSuppression) stay open.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import onnx_ir as ir

from rpcsys.errors import ModelError
from rpcsys.graph._ir.ort import open_session

#: Weights above these many bytes need not be read to infer shapes: no operator takes its output's shape from them.
_LARGE_WEIGHT = 1024


def infer_shapes(model: ir.Model) -> None:
    """Fill in the types and shapes of the main graph's values, as far as ONNX infers them."""
    import onnx

    skeleton = _skeleton(model)
    try:
        inferred = onnx.shape_inference.infer_shapes(ir.to_proto(skeleton), data_prop=True)
    except Exception:  # noqa: BLE001 - what it cannot infer stays open, and is an error only where a cut needs it
        return
    known = {info.name: info for info in (*inferred.graph.value_info, *inferred.graph.output)}
    for node in model.graph:
        for value in node.outputs:
            if value.name in known and known[value.name].HasField("type"):
                ir.serde.deserialize_value_info_proto(known[value.name], value)


def infer_missing_types(model: ir.Model, values: Iterable[ir.Value]) -> None:
    """Ask onnxruntime for the types of those ``values`` that have none: it knows operators that ONNX does not."""
    unknown = [value for value in values if value.type is None]
    if not unknown:
        return
    skeleton = _skeleton(model)
    by_name = ir.convenience.create_value_mapping(skeleton.graph, include_subgraphs=False)
    skeleton.graph.outputs.extend(by_name[value.name] for value in unknown if value.name in by_name)
    try:
        session = open_session(skeleton, "disabled")
    except ModelError:
        return  # what stays unknown is an error where it is needed
    told = {output.name: output for output in session.get_outputs()}
    for value in unknown:
        if value.name in told:
            value.type = _type_named(told[value.name].type)
            if isinstance(value.type, ir.TensorType):
                value.shape = ir.Shape(told[value.name].shape)


def _type_named(text: str) -> Any:
    """The type that onnxruntime calls ``text``, such as ``seq(tensor(float))``."""
    outer, _, inner = text.partition("(")
    if outer == "tensor":
        return ir.TensorType(ir.DataType[inner[:-1].upper()])
    return {"seq": ir.SequenceType, "optional": ir.OptionalType}[outer](_type_named(inner[:-1]))


def _skeleton(model: ir.Model) -> ir.Model:
    """The model with its large weights as inputs: small enough to hand to another library."""
    copy = model.clone()
    graph = copy.graph
    for name, value in list(graph.initializers.items()):
        tensor = value.const_value
        if tensor is None or tensor.nbytes > _LARGE_WEIGHT:
            if tensor is not None:
                value.type, value.shape = ir.TensorType(tensor.dtype), ir.Shape(tensor.shape)
            del graph.initializers[name]
            value.const_value = None
            if value not in graph.inputs:
                graph.inputs.append(value)
    return copy
