"""Sample networks without a download: real architectures with random weights; and random inputs for any model.

The onnx wheel's ``light_*.onnx`` models are the published networks with every large weight replaced by one constant.
Their uniform outputs hide wiring mistakes. So each weight is drawn here, seeded, with a spread that keeps activations
of order one through the depth of the network.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias

from rpcsys.errors import UsageError, there_are
from rpcsys.wire.head import MAX_RANK

if TYPE_CHECKING:
    import numpy as np
    import onnx

Arrays: TypeAlias = "dict[str, np.ndarray[Any, Any]]"
INSTALL = "type: pip install 'rpcsys[graph]'"

IR_VERSION = 8  # up to IR version 3 a graph's inputs include its weights; later versions list the data only

#: BatchNormalization's inputs after the data, and how each is drawn: (low, high) of a uniform spread.
#: Scales below one damp the residual sums, which would otherwise grow with every block.
_BATCH_NORM = {1: (0.4, 0.9), 2: (-0.2, 0.2), 3: (-0.2, 0.2), 4: (0.7, 1.3)}
_BIAS = (-0.1, 0.1)
_OTHER = (0.4, 0.9)

_UNUSED = ("", "ConstantOfShape")  # readers of an initialiser that is not needed: none, or a node that is removed

MAX_ELEMENTS = 1 << 28  # of a random array, drawn as 8 bytes each: more than any network takes at once


def names() -> list[str]:
    """The networks that ``light_model`` can make: ``["bvlc_alexnet", "densenet121", …]``."""
    return sorted(path.stem.removeprefix("light_") for path in _folder().glob("light_*.onnx"))


def light_model(name: str = "resnet50", seed: int = 0) -> onnx.ModelProto:
    """The network ``name`` with seeded random weights; the same seed gives the same bytes.

    Its only inputs are its data (``[1, 3, 224, 224]`` float32 in all of them). Raises `UsageError` if onnx is not
    installed or has no such network.
    """
    path = _folder() / f"light_{name}.onnx"
    import numpy as np
    import onnx

    if not path.exists():
        raise UsageError(f"no sample network {name!r}; {there_are(names())}")
    model = onnx.load(path)
    graph = model.graph
    shapes = _weight_shapes(graph)
    rng = np.random.default_rng(seed)
    kept = [item for item in graph.initializer if item.name not in shapes and _use(item.name, graph)[0] not in _UNUSED]
    drawn = [_draw(rng, weight, shape, graph) for weight, shape in shapes.items()]
    nodes = [node for node in graph.node if node.op_type != "ConstantOfShape"]
    constants = {item.name for item in graph.initializer}
    inputs = [value for value in graph.input if value.name not in constants]
    for field, items in (("node", nodes), ("initializer", kept + drawn), ("input", inputs)):
        graph.ClearField(field)
        getattr(graph, field).extend(items)
    model.ir_version = IR_VERSION
    onnx.checker.check_model(model)
    return model


def save(model: onnx.ModelProto, path: str | Path) -> None:
    """Write a model to an ``.onnx`` file."""
    import onnx

    onnx.save(model, path)


def run_here(model: str | Path, inputs: Mapping[str, np.ndarray[Any, Any]]) -> Arrays:
    """Run an ONNX file with onnxruntime on this machine's CPU; returns every output by name.

    Raises `UsageError` if onnxruntime is not installed.
    """
    try:
        import onnxruntime
    except ImportError:
        raise UsageError(f"onnxruntime is needed to run a model here; {INSTALL}") from None
    session = onnxruntime.InferenceSession(str(model), providers=["CPUExecutionProvider"])
    outputs = [output.name for output in session.get_outputs()]
    return dict(zip(outputs, session.run(outputs, dict(inputs)), strict=True))


def random_inputs(specs: Sequence[Mapping[str, Any]], seed: int = 0) -> Arrays:
    """Arrays for a model's inputs (name, dtype, shape): floats standard normal, whole numbers 0 and 1.

    The same seed gives the same arrays. A free extent is 1. Raises `UsageError` for an input of a dtype without random
    values (such as strings), of an unknown type or shape, or of more than `MAX_ELEMENTS`.
    """
    import numpy as np

    rng = np.random.default_rng(seed)
    return {spec["name"]: _random_array(rng, spec) for spec in specs}


def check_random(specs: Sequence[Mapping[str, Any]]) -> None:
    """Raise what `random_inputs` would raise, without arrays."""
    for spec in specs:
        _dtype_and_shape(spec)


def _folder() -> Path:
    try:
        import onnx
    except ImportError:
        raise UsageError(f"sample networks come out of the onnx package, which is not installed; {INSTALL}") from None
    return Path(onnx.__file__).parent / "backend" / "test" / "data" / "light"


def _weight_shapes(graph: onnx.GraphProto) -> dict[str, tuple[int, ...]]:
    """Every weight and its shape: the outputs of ConstantOfShape nodes, and the small float initialisers."""
    from onnx import TensorProto, numpy_helper

    values = {item.name: item for item in graph.initializer}
    shapes = {
        node.output[0]: tuple(int(size) for size in numpy_helper.to_array(values[node.input[0]]))
        for node in graph.node
        if node.op_type == "ConstantOfShape"
    }
    for item in graph.initializer:
        if item.data_type == TensorProto.FLOAT and _use(item.name, graph)[0] not in _UNUSED:
            shapes[item.name] = tuple(item.dims)
    return shapes


def _use(name: str, graph: onnx.GraphProto) -> tuple[str, int]:
    """The first reader of a value: its operator, and the value's position among its inputs; ("", 0) if none."""
    for node in graph.node:
        if name in node.input:
            return node.op_type, list(node.input).index(name)
    return "", 0


def _draw(rng: np.random.Generator, name: str, shape: tuple[int, ...], graph: onnx.GraphProto) -> onnx.TensorProto:
    import numpy as np
    from onnx import numpy_helper

    if len(shape) > 1:
        # The spread of He et al., arXiv:1502.01852: it keeps the variance through a layer and its Relu.
        spread = math.sqrt(2.0 / math.prod(shape[1:]))
        values = rng.standard_normal(shape, dtype=np.float32) * np.float32(spread)
    else:
        operator, position = _use(name, graph)
        bounds = _BIAS if operator in ("Conv", "Gemm") else _OTHER
        bounds = _BATCH_NORM[position] if operator == "BatchNormalization" else bounds
        values = rng.uniform(*bounds, shape).astype(np.float32)
    return numpy_helper.from_array(values, name)


def _random_array(rng: np.random.Generator, spec: Mapping[str, Any]) -> np.ndarray[Any, Any]:
    dtype, shape = _dtype_and_shape(spec)
    if dtype.kind == "f":
        return rng.standard_normal(shape).astype(dtype)
    return rng.integers(0, 2, shape).astype(dtype)


def _dtype_and_shape(spec: Mapping[str, Any]) -> tuple[np.dtype[Any], list[int]]:
    import numpy as np

    name, kind = spec["name"], spec.get("dtype")
    try:
        dtype = np.dtype(object if kind in (None, "strings") else kind)
    except (TypeError, ValueError, SyntaxError):  # a sequence, a map
        dtype = np.dtype("V")
    if dtype.kind == "V":  # bfloat16, too
        what = f"input {name!r} is of type {kind}, and .npz files hold plain arrays alone"
        raise UsageError(f"{what}: run the model from Python, with inputs of your own")
    if spec.get("shape") is None or kind is None:
        raise UsageError(f"the model does not declare what array input {name!r} is: give the inputs as an .npz file")
    shape = [extent if isinstance(extent, int) else 1 for extent in spec["shape"]]
    if len(shape) > MAX_RANK or min(shape, default=0) < 0 or math.prod(shape) > MAX_ELEMENTS:
        raise UsageError(f"input {name!r} has more than {MAX_ELEMENTS} elements: give the inputs as an .npz file")
    if dtype.kind not in "fiub":
        raise UsageError(f"input {name!r} is of type {kind}: give the inputs as an .npz file")
    return dtype, shape
