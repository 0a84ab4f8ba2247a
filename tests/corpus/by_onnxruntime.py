"""Models that onnxruntime's own tools rewrote: converted to float16, quantised, optimised."""

from __future__ import annotations

import logging
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import onnxruntime
import pytest

from tests.graph.running import make, node, numbers, values

SHAPE = (1, 2, 4, 4)
Feeds = dict[str, Any]


def network() -> onnx.ModelProto:
    """Two convolutions, a sum over a branch, pooling and a layer of three numbers, all of float32."""
    nodes = [
        node("Conv", "x w0", "c0", pads=[1, 1, 1, 1]), node("Relu", "c0", "r0"),
        node("Conv", "r0 w1", "c1", pads=[1, 1, 1, 1]), node("Add", "c1 r0", "s"), node("Relu", "s", "r1"),
        node("GlobalAveragePool", "r1", "p"), node("Flatten", "p", "f"), node("Gemm", "f w2 b2", "y"),
    ]  # fmt: skip
    for number, each in enumerate(nodes):
        each.name = f"n{number}"
    weights = {f"w{i}": numbers(2, 2, 3, 3, seed=i) for i in range(2)}
    weights |= {"w2": numbers(2, 3, seed=2), "b2": numbers(3, seed=3)}
    return make(nodes, values("x", shape=SHAPE), values("y", shape=(1, 3)), weights=weights)


def _half(folder: Path, module: str, **options: Any) -> Feeds:
    converter = pytest.importorskip(module)
    onnx.save(converter.convert_float_to_float16(network(), **options), folder / "model.onnx")
    return {"x": numbers(*SHAPE).astype(np.float32 if options.get("keep_io_types") else np.float16)}


def float16(folder: Path) -> Feeds:
    """By onnxruntime's converter."""
    return _half(folder, "onnxruntime.transformers.float16")


def float16_io(folder: Path) -> Feeds:
    """With inputs and outputs of float32: the converter puts the nodes that convert them behind the others."""
    return _half(folder, "onnxruntime.transformers.float16", keep_io_types=True)


def float16_mixed(folder: Path) -> Feeds:
    """Some operators stay in float32."""
    return _half(folder, "onnxruntime.transformers.float16", op_block_list=["Add", "Gemm"])


def float16_common(folder: Path) -> Feeds:
    """By the converter of onnxconverter-common."""
    return _half(folder, "onnxconverter_common.float16")


def _quantised(folder: Path, form: str, **options: Any) -> Feeds:
    quantization = pytest.importorskip("onnxruntime.quantization")
    frames = [{"x": numbers(*SHAPE, seed=seed)} for seed in range(3)]

    class Reader(quantization.CalibrationDataReader):  # type: ignore[misc]
        given = iter(frames)

        def get_next(self) -> Any:
            return next(self.given, None)

    onnx.save(network(), folder / "float.onnx")
    source, target = folder / "float.onnx", folder / "model.onnx"
    logging.getLogger().disabled = True  # it advises preprocessing
    try:
        if form:
            how = quantization.QuantFormat[form]
            quantization.quantize_static(source, target, Reader(), quant_format=how, **options)
        else:
            quantization.quantize_dynamic(source, target, **options)
    finally:
        logging.getLogger().disabled = False
    source.unlink()
    return frames[0]


def qdq(folder: Path) -> Feeds:
    """Static, in pairs of QuantizeLinear and DequantizeLinear."""
    return _quantised(folder, "QDQ")


def qdq_channels(folder: Path) -> Feeds:
    """The same with a scale for each channel, and signed activations."""
    quantization = pytest.importorskip("onnxruntime.quantization")
    return _quantised(folder, "QDQ", per_channel=True, activation_type=quantization.QuantType.QInt8)


def qoperator(folder: Path) -> Feeds:
    """Static, in operators of integers."""
    return _quantised(folder, "QOperator")


def dynamic(folder: Path) -> Feeds:
    """Scales computed while it runs."""
    return _quantised(folder, "")


def optimised(folder: Path) -> Feeds:
    """Optimised at the level ``extended``: fused operators of onnxruntime's own domain."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 4
    options.graph_optimization_level = onnxruntime.GraphOptimizationLevel.ORT_ENABLE_EXTENDED
    options.optimized_model_filepath = str(folder / "model.onnx")
    onnxruntime.InferenceSession(network().SerializeToString(), options, providers=["CPUExecutionProvider"])
    return {"x": numbers(*SHAPE)}
