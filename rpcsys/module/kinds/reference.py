"""Runs ONNX models in onnx's reference evaluator: every operator of the standard, in Python, and slow."""

from __future__ import annotations

from typing import Any, Dict, List, Mapping

import numpy as np
import onnx
from onnx.reference import ReferenceEvaluator

from rpcsys.module.kinds.onnx_proto import NUMBERS
from rpcsys.wire.tensor import Tensor, as_array, as_tensor


class _DeclaredValue:
    def __init__(self, name: str, type_: Any) -> None:
        self.name = name
        self.optional = type_.HasField("optional_type")
        tensor = type_.tensor_type
        self._dtype = _dtype(tensor.elem_type) if type_.HasField("tensor_type") else "unknown"
        self._shape = [d.dim_value if d.HasField("dim_value") else d.dim_param or None for d in tensor.shape.dim]

    def describe(self) -> Dict[str, Any]:
        return {"name": self.name, "dtype": self._dtype, "shape": self._shape}

    def check(self, given: Any) -> Any:
        if isinstance(given, (list, dict)) or given is None:
            return given
        return as_array(given) if isinstance(given, Tensor) else np.asarray(given)


def _dtype(elem_type: int) -> str:
    if elem_type == onnx.TensorProto.STRING:
        return "strings"
    return str(onnx.helper.tensor_dtype_to_np_dtype(elem_type).name) if elem_type else "unknown"


class ReferenceRunner:
    """A model that is ready to run, with the interface of `onnx_session.SessionRunner`."""

    runtime = "reference"
    on_device = False

    def __init__(self, model: Any) -> None:
        """Raises what onnx's checker and evaluator raise."""
        _check(model)
        graph = model.graph
        weights = {item.name for item in graph.initializer}
        self.inputs = [_DeclaredValue(value.name, value.type) for value in graph.input if value.name not in weights]
        self.optional = [_DeclaredValue(value.name, value.type) for value in graph.input if value.name in weights]
        self.outputs = [_DeclaredValue(value.name, value.type) for value in graph.output]
        self._evaluator = ReferenceEvaluator(model)

    def run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        """The outputs of those names."""
        # Values of types that numpy has only with another package are tensors, as with onnxruntime.
        found = self._evaluator.run(outputs, feeds)
        return [as_tensor(each) if isinstance(each, np.ndarray) and each.dtype.kind == "V" else each for each in found]


def _check(model: Any) -> None:
    """Run onnx's checker without its demand for input shapes: a part of a model may not even know a rank."""
    open_ = [
        value.type.tensor_type
        for value in (*model.graph.input, *model.graph.output)
        if value.type.HasField("tensor_type") and not value.type.tensor_type.HasField("shape")
    ]
    for tensor in open_:
        tensor.shape.SetInParent()
    onnx.checker.check_model(model)
    for tensor in open_:
        tensor.ClearField("shape")


def of_file(path: str) -> ReferenceRunner:
    """Open the model of an ``.onnx`` file."""
    return ReferenceRunner(onnx.load(path))


def of_bytes(proto: bytes, weights: Mapping[str, Tensor]) -> ReferenceRunner:
    """Open a model with separated weights."""
    model = onnx.load_from_string(proto)
    for name, tensor in weights.items():
        number, data = NUMBERS[tensor.dtype], bytes(tensor.data)
        model.graph.initializer.add(name=name, dims=tensor.shape, data_type=number, raw_data=data)
    return ReferenceRunner(model)
