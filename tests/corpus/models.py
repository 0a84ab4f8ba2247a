"""The models by name, and how they are run plainly and compared."""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import ml_dtypes
import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto

from rpcsys.errors import ModelError, UsageError
from rpcsys.graph._ir.dataflow import Dataflow
from rpcsys.module.kinds.onnx_model import read
from rpcsys.wire.tensor import as_tensor
from tests.corpus import by_hand, by_onnxruntime, by_torch, fitted, weights_apart

Feeds = dict[str, Any]

#: Writes ``model.onnx``, and what that names, into a folder; returns inputs for it.
MAKERS: Mapping[str, Callable[[Path], Feeds]] = {
    f"{module.__name__.rpartition('.')[2]}.{maker.__name__}": maker
    for module, makers in {
        by_hand: (
            by_hand.branches, by_hand.loop, by_hand.scan, by_hand.sequences, by_hand.sequence_input, by_hand.optional,
            by_hand.strings, by_hand.labels, by_hand.maps, by_hand.map_input, by_hand.functions, by_hand.bfloat16,
            by_hand.float8, by_hand.old_weights, by_hand.equal_nodes, by_hand.sparse,
        ),
        by_onnxruntime: (
            by_onnxruntime.float16, by_onnxruntime.float16_io, by_onnxruntime.float16_mixed,
            by_onnxruntime.float16_common, by_onnxruntime.qdq, by_onnxruntime.qdq_channels, by_onnxruntime.qoperator,
            by_onnxruntime.dynamic, by_onnxruntime.optimised,
        ),
        fitted: (
            fitted.logistic, fitted.logistic_arrays, fitted.forest, fitted.boosting, fitted.steps, fitted.neighbours,
            fitted.columns, fitted.text, fitted.lightgbm_classifier, fitted.lightgbm_regressor,
        ),
        weights_apart: (
            weights_apart.one_file, weights_apart.larger_ones, weights_apart.many_files, weights_apart.offsets,
        ),
        by_torch: (by_torch.by_tracing, by_torch.by_dynamo),
    }.items()
    for maker in makers
}  # fmt: skip


_NO_MAPS = (
    "the model takes a map: input 'd' is map(strings,tensor(float32)), and maps can only be outputs here; "
    "export it without DictVectorizer, with an array as input"
)
#: The models that are not divided, with the reason; all others are.
UNDIVIDED = {"by_hand.map_input": _NO_MAPS}
#: The same, where stages must be exact and the cut is in the middle.
NOT_EXACTLY = {
    **UNDIVIDED,
    "fitted.lightgbm_regressor": "stage1 would have nothing to do: no output of the model needs it, "
    "once onnxruntime has left out what it can",
}


class Example(NamedTuple):
    """A model's file, and inputs for it."""

    path: Path
    feeds: Feeds

    def run(self, level: str = "ALL") -> dict[str, Any]:
        """Its outputs by name, of plain onnxruntime at an optimisation level (BASIC, ALL)."""
        options = onnxruntime.SessionOptions()
        options.log_severity_level = 4
        options.graph_optimization_level = getattr(onnxruntime.GraphOptimizationLevel, f"ORT_ENABLE_{level}")
        session = onnxruntime.InferenceSession(str(self.path), options, providers=["CPUExecutionProvider"])
        names = [output.name for output in session.get_outputs()]
        kinds = [value.type for value in (*session.get_inputs(), *session.get_outputs())]
        if "tensor(bfloat16)" not in kinds:
            return dict(zip(names, session.run(names, self.feeds), strict=True))
        make = onnxruntime.OrtValue.ortvalue_from_numpy_with_onnx_type
        feeds = {name: make(array.view(np.uint16), TensorProto.BFLOAT16) for name, array in self.feeds.items()}
        made = session.run_with_ort_values(names, feeds)
        return {name: _bfloat16(value) for name, value in zip(names, made, strict=True)}

    def cuts(self) -> list[int]:
        """A cut in the middle: half of the nodes that depend on an input are before it. None for fewer than two."""
        flow = Dataflow(read(self.path))
        work = sorted(flow.useful & flow.live)
        return [work[len(work) // 2]] if len(work) > 1 else []


class Corpus:
    """Makes the models in ``folder``, each when it is first used."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._made: dict[str, Example] = {}

    def __getitem__(self, name: str) -> Example:
        """The model of that name. Skips the test where what makes it is not installed."""
        if name not in self._made:
            folder = self._folder / name
            folder.mkdir(exist_ok=True)
            self._made[name] = Example(folder / "model.onnx", MAKERS[name](folder))
        return self._made[name]


@contextlib.contextmanager
def refused(sentence: str | None) -> Iterator[None]:
    """The block ends with the `UsageError` or `ModelError` ``sentence``; None: it does not."""
    if sentence is None:
        yield
        return
    with pytest.raises((UsageError, ModelError)) as caught:
        yield
    assert str(caught.value) == sentence


def _bfloat16(value: Any) -> Any:
    held = ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes())
    return np.frombuffer(held, ml_dtypes.bfloat16).reshape(value.shape())


def bits(value: Any) -> Any:
    """What two equal values have in common: types, shapes, bits; NaN is equal to itself."""
    if isinstance(value, Mapping):
        return {key: bits(each) for key, each in value.items()}
    if isinstance(value, (list, tuple)):
        return [bits(each) for each in value]
    if isinstance(value, (str, float, int, bool)) or value is None:
        return repr(value)
    tensor = as_tensor(value)
    assert tensor is not None, type(value)
    return tensor.dtype, tensor.shape, list(tensor.data) if tensor.dtype == "strings" else bytes(tensor.data)
