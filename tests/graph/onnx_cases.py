"""ONNX's backend suite as data: every case's model, inputs, expected outputs and tolerances.

The suite computes some of its data when it is loaded, and writes to the folder ``ONNX_HOME``.
"""

from __future__ import annotations

import os
import tempfile
import warnings
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
from onnx import numpy_helper
from onnx.reference import ReferenceEvaluator

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # cases of the newest opset

KINDS = ("node", "simple", "pytorch-converted", "pytorch-operator", "real")
#: The results of these are random: only types and shapes can be compared.
RANDOM = ("Bernoulli", "RandomUniformLike", "RandomNormalLike", "RandomUniform", "RandomNormal", "Multinomial")

_DATA = Path(onnx.__file__).parent / "backend" / "test" / "data"
_NEWEST_IR = 13  # the newest that onnxruntime 1.31 supports
_SMALL = {21, 22, 23, 25, 26}  # uint4, int4, float4, uint2, int2
#: Element types that onnxruntime takes only as raw bits -> the bits' own type.
_RAW = {16: np.uint16, 17: np.uint8, 18: np.uint8, 19: np.uint8, 20: np.uint8}


@dataclass(frozen=True)
class Case:
    """One case of the suite; each of ``data`` is inputs by name and outputs in order."""

    name: str
    model: onnx.ModelProto
    data: tuple[tuple[dict[str, Any], list[Any]], ...]
    rtol: float
    atol: float

    @property
    def random(self) -> bool:
        return any(node.op_type in RANDOM for node in _nodes(self.model.graph))

    def check(self, outputs: Sequence[Any], expected: Sequence[Any]) -> None:
        """Raise AssertionError unless the outputs are the expected ones, compared as the suite does."""
        assert len(outputs) == len(expected)
        for ours, theirs in zip(outputs, expected, strict=True):
            self._check(ours, theirs)

    def _check(self, ours: Any, theirs: Any) -> None:
        if theirs is None:
            assert ours is None
        elif isinstance(theirs, (list, tuple)):
            assert isinstance(ours, (list, tuple))
            self.check(ours, theirs)
        else:
            self._check_array(np.asarray(ours), np.asarray(theirs))

    def _check_array(self, ours: Any, theirs: Any) -> None:
        assert ours.shape == theirs.shape
        if theirs.dtype.kind in "OUST":
            np.testing.assert_array_equal(ours.astype(str), theirs.astype(str))
            return
        assert ours.dtype == theirs.dtype
        if self.random:
            return
        rtol = self.rtol
        if ours.dtype.kind == "V" or ours.dtype.name.startswith(("bfloat", "float8", "float4", "float6")):
            rtol = max(rtol, 2**-6)  # two units in the last place of bfloat16
            ours, theirs = ours.astype(np.float32), theirs.astype(np.float32)
        np.testing.assert_allclose(ours, theirs, rtol=rtol, atol=self.atol)


@lru_cache(maxsize=1)
def cases() -> tuple[Case, ...]:
    """All 2,033 cases, in the order of the suite."""
    with tempfile.TemporaryDirectory() as home, warnings.catch_warnings():
        warnings.simplefilter("ignore")  # some data are overflows on purpose
        os.environ["ONNX_HOME"] = home
        from onnx.backend.test.loader import load_model_tests

        return tuple(_case(case) for kind in KINDS for case in load_model_tests(kind=kind))


def _case(case: Any) -> Case:
    if case.url is not None:
        model, data = _light(case)
    elif case.model is None:
        model, data = _of_folder(Path(case.model_dir))
    else:
        model = case.model
        data = [([_plain(v) for v in ins], [_plain(v) for v in outs]) for ins, outs in case.data_sets]
    weights = {item.name for item in model.graph.initializer}
    names = [value.name for value in model.graph.input if value.name not in weights or model.ir_version >= 4]
    pairs = tuple((dict(zip(names, inputs, strict=False)), outputs) for inputs, outputs in data)
    return Case(case.name, model, pairs, case.rtol, case.atol)


def _light(case: Any) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    """A real network: its input counts up, and its output is stored beside it."""
    path = _DATA / "light" / Path(case.url).name
    model = onnx.load(path)
    weights = {item.name for item in model.graph.initializer}
    (image,) = (value for value in model.graph.input if value.name not in weights)
    shape = [dim.dim_value for dim in image.type.tensor_type.shape.dim]
    size = int(np.prod(shape))
    output = onnx.TensorProto.FromString(path.with_name(f"{path.stem}_output_0.pb").read_bytes())
    return model, [([(np.arange(size).reshape(shape) / size).astype(np.float32)], [numpy_helper.to_array(output)])]


def _of_folder(folder: Path) -> tuple[onnx.ModelProto, list[tuple[list[Any], list[Any]]]]:
    model = onnx.load(folder / "model.onnx")
    data = []
    for each in sorted(folder.glob("test_data_set_*")):
        inputs = [
            _read(each / f"input_{i}.pb", value)
            for i, value in enumerate(model.graph.input)
            if (each / f"input_{i}.pb").exists()
        ]
        data.append((inputs, [_read(each / f"output_{i}.pb", value) for i, value in enumerate(model.graph.output)]))
    return model, data


def _read(path: Path, value: onnx.ValueInfoProto) -> Any:
    kind = {"sequence_type": onnx.SequenceProto, "optional_type": onnx.OptionalProto}.get(
        str(value.type.WhichOneof("value")), onnx.TensorProto
    )
    return _plain(kind.FromString(path.read_bytes()))


def _plain(value: Any) -> Any:
    """A protobuf value of the suite as Python or numpy value."""
    if isinstance(value, onnx.TensorProto):
        return numpy_helper.to_array(value)
    if isinstance(value, onnx.SequenceProto):
        return numpy_helper.to_list(value)
    if isinstance(value, onnx.OptionalProto):
        return numpy_helper.to_optional(value)
    if isinstance(value, (list, tuple)):
        return [_plain(item) for item in value]
    return value if value is None else np.asarray(value)


def _nodes(graph: onnx.GraphProto) -> Iterator[onnx.NodeProto]:
    for node in graph.node:
        yield node
        for attribute in node.attribute:
            yield from _nodes(attribute.g)


def middle(case: Case) -> int:
    """The node at which a case is split in two."""
    return len(case.model.graph.node) // 2


# ------------------------------------------------------------------ run directly


def passes_directly(case: Case) -> bool:
    """Whether onnxruntime passes the case; if it cannot load the model, whether the reference evaluator does."""
    run = run_by_onnxruntime if _loads(case.model) else run_by_reference
    try:
        for feeds, expected in case.data:
            case.check(run(case.model, feeds), expected)
    except Exception:
        return False
    return True


def run_by_reference(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    with warnings.catch_warnings(), np.errstate(all="ignore"):
        warnings.simplefilter("ignore")
        return list(ReferenceEvaluator(model).run(None, dict(feeds)))


def run_by_onnxruntime(model: onnx.ModelProto, feeds: Mapping[str, Any]) -> list[Any]:
    session = _session(model)
    given = {name: value for name, value in feeds.items() if value is not None}
    if not any(_element(value) in _RAW for value in (*model.graph.input, *model.graph.output)):
        return list(session.run(None, given))
    elements = {value.name: _element(value) for value in model.graph.input}
    values = {name: _ort_value(value, elements[name]) for name, value in given.items()}
    names = [output.name for output in session.get_outputs()]
    return [_from_ort_value(value) for value in session.run_with_ort_values(names, values)]


def _loads(model: onnx.ModelProto) -> bool:
    """Whether onnxruntime loads the model and accepts its values from Python."""
    kinds = {_element(value) for value in (*model.graph.input, *model.graph.output)}
    # From Python it accepts no numbers under eight bits, and raw bits only beside tensors.
    if kinds & _SMALL or (kinds & _RAW.keys() and kinds & {0, onnx.TensorProto.STRING}):
        return False
    try:
        _session(model)
    except Exception:
        return False
    return True


def _element(value: onnx.ValueInfoProto) -> int:
    """The element type of a tensor; 0 for other types."""
    return int(value.type.tensor_type.elem_type)


def _session(model: onnx.ModelProto) -> Any:
    stamped = onnx.ModelProto()
    stamped.CopyFrom(model)
    stamped.ir_version = min(model.ir_version, _NEWEST_IR)
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.intra_op_num_threads = 1
    return onnxruntime.InferenceSession(stamped.SerializeToString(), options, providers=["CPUExecutionProvider"])


def _ort_value(array: Any, element: int) -> Any:
    if element in _RAW:
        return onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type(array.view(_RAW[element]), element)
    return onnxruntime.OrtValue.ortvalue_from_numpy(array)


def _from_ort_value(value: Any) -> Any:
    element = value.element_type()
    if element not in _RAW:
        return value.numpy()
    import ctypes

    bits = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(bits, onnx.helper.tensor_dtype_to_np_dtype(element)).reshape(value.shape())
