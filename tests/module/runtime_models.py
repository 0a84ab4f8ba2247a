"""Small models in the formats of LiteRT, OpenVINO and IREE: a perceptron, a convolution, one of two inputs and outputs.

The formulas are in numpy, too (`perceptron` and so on), so that each runtime can be checked against them.

IREE's compiler and PyTorch's exporter are large, so their files lie in ``models``. To make them again, where
iree-base-compiler, or executorch with torch and torchao, are installed: ``python -m tests.module.runtime_models``.
"""

from __future__ import annotations

from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

MODELS = Path(__file__).parent / "models"
_seeded = np.random.default_rng(3)
FIRST, SECOND = (_seeded.standard_normal(shape, "float32") for shape in ((4, 8), (8, 3)))
KERNEL = _seeded.standard_normal((2, 3, 3, 1), "float32")  # of 2 channels from 1, 3 by 3


def perceptron(x: Any) -> Any:
    """Two layers: float32 [n, 4] -> [n, 3]."""
    return np.maximum(x @ FIRST, 0) @ SECOND


def convolution(image: Any) -> Any:
    """float32 [1, 8, 8, 1] -> [1, 6, 6, 2], as TensorFlow has its channels: last."""
    windows = np.lib.stride_tricks.sliding_window_view(image[0, :, :, 0], (3, 3))
    return np.einsum("hwij,cij->hwc", windows, KERNEL[:, :, :, 0])[None]


def both(a: Any, b: Any) -> tuple[Any, Any]:
    """Two of float32 [n, 4] -> their sum and their product."""
    return a + b, a * b


CASES: dict[str, tuple[Callable[..., Any], list[tuple[int, ...]]]] = {
    "perceptron": (perceptron, [(2, 4)]),
    "convolution": (convolution, [(1, 8, 8, 1)]),
    "both": (both, [(3, 4), (3, 4)]),
}


def given(name: str) -> list[Any]:
    """Inputs for a model of `CASES`."""
    shapes = enumerate(CASES[name][1])
    return [np.random.default_rng(place).standard_normal(shape, "float32") for place, shape in shapes]


def expected(name: str) -> list[Any]:
    """Its outputs for these inputs, by numpy."""
    found = CASES[name][0](*given(name))
    return list(found) if isinstance(found, tuple) else [found]


# ------------------------------------------------------------------ LiteRT


def tflite(name: str) -> bytes:
    """A ``.tflite`` file of `CASES`, with one signature; "signatures" has two, and "bare" has none."""
    graph = _Graph()
    schema = graph.schema
    if name == "convolution":
        image = graph.tensor("image", (1, 8, 8, 1))
        options = schema.Conv2DOptionsT()
        options.padding, options.strideW, options.strideH = schema.Padding.VALID, 1, 1
        options.dilationWFactor = options.dilationHFactor = 1
        arguments = [image, graph.weight("kernel", KERNEL), graph.weight("zero", np.zeros(2, "float32"))]
        made = graph.node("CONV_2D", arguments, "features", (1, 6, 6, 2), options, schema.BuiltinOptions.Conv2DOptions)
        graph.finish("serving_default", [image], [made])
    elif name == "both":
        graph.both()
    else:
        graph.perceptron(named=name != "bare")
    if name == "signatures":
        graph.both()
    return graph.written()


def tflite_layers(layers: list[Any], rows: int) -> bytes:
    """A ``.tflite`` file of dense layers with these weights, each with a ReLU behind it."""
    graph = _Graph()
    first = made = graph.tensor("x", (rows, len(layers[0])))
    for number, weights in enumerate(layers):
        made = graph.dense(made, weights, f"layer{number}", 1, rows)
    graph.finish("serving_default", [first], [made])
    return graph.written()


class _Graph:
    def __init__(self) -> None:
        from ai_edge_litert import schema_py_generated as schema

        self.schema: Any = schema
        self.model = schema.ModelT()
        self.model.version = 3
        self.model.buffers, self.model.operatorCodes = [schema.BufferT()], []
        self.model.subgraphs, self.model.signatureDefs = [], []
        self._begin()

    def written(self) -> bytes:
        import flatbuffers

        builder = flatbuffers.Builder(1024)
        builder.Finish(self.model.Pack(builder), b"TFL3")
        return bytes(builder.Output())

    def _begin(self) -> None:
        self._graph = self.schema.SubGraphT()
        self._graph.tensors, self._graph.operators = [], []

    def tensor(self, name: str, shape: tuple[int, ...], buffer: int = 0) -> int:
        """Add a tensor; an extent of -1 is free."""
        tensor = self.schema.TensorT()
        tensor.name, tensor.type, tensor.buffer = name, self.schema.TensorType.FLOAT32, buffer
        tensor.shape, tensor.shapeSignature = [abs(extent) for extent in shape], list(shape)
        tensor.hasRank = True
        self._graph.tensors.append(tensor)
        return len(self._graph.tensors) - 1

    def weight(self, name: str, array: Any) -> int:
        buffer = self.schema.BufferT()
        buffer.data = np.frombuffer(array.tobytes(), "uint8")
        self.model.buffers.append(buffer)
        return self.tensor(name, array.shape, len(self.model.buffers) - 1)

    def node(self, kind: str, arguments: list[int], name: str, shape: tuple[int, ...], options: Any, of: int) -> int:
        code = self.schema.OperatorCodeT()
        code.builtinCode = code.deprecatedBuiltinCode = getattr(self.schema.BuiltinOperator, kind)
        self.model.operatorCodes.append(code)
        node, made = self.schema.OperatorT(), self.tensor(name, shape)
        node.opcodeIndex, node.inputs, node.outputs = len(self.model.operatorCodes) - 1, arguments, [made]
        node.builtinOptions, node.builtinOptionsType = options, of
        self._graph.operators.append(node)
        return made

    def finish(self, key: str, inputs: list[int], outputs: list[int]) -> None:
        """End a graph; ``key`` names its signature, "" for none. Its tensors keep their names there."""
        self._graph.inputs, self._graph.outputs = inputs, outputs
        self.model.subgraphs.append(self._graph)
        if key:
            signature = self.schema.SignatureDefT()
            signature.signatureKey, signature.subgraphIndex = key, len(self.model.subgraphs) - 1
            signature.inputs, signature.outputs = self._named(inputs), self._named(outputs)
            self.model.signatureDefs.append(signature)
        self._begin()

    def _named(self, places: list[int]) -> list[Any]:
        found = []
        for place in places:
            entry = self.schema.TensorMapT()
            entry.name, entry.tensorIndex = self._graph.tensors[place].name, place
            found.append(entry)
        return found

    def perceptron(self, *, named: bool) -> None:
        x = self.tensor("x", (-1, 4))
        hidden = self.dense(x, FIRST, "hidden", 1)
        self.finish("serving_default" if named else "", [x], [self.dense(hidden, SECOND, "scores", 0)])

    def dense(self, x: int, weights: Any, name: str, activation: int, rows: int = -1) -> int:
        options = self.schema.FullyConnectedOptionsT()
        options.fusedActivationFunction = activation
        zero = self.weight(name + " bias", np.zeros(weights.shape[1], "float32"))
        arguments = [x, self.weight(name + " weights", np.ascontiguousarray(weights.T)), zero]
        kind = self.schema.BuiltinOptions.FullyConnectedOptions
        return self.node("FULLY_CONNECTED", arguments, name, (rows, weights.shape[1]), options, kind)

    def both(self) -> None:
        a, b = self.tensor("a", (-1, 4)), self.tensor("b", (-1, 4))
        schema = self.schema
        added = self.node("ADD", [a, b], "sum", (-1, 4), schema.AddOptionsT(), schema.BuiltinOptions.AddOptions)
        times = self.node("MUL", [a, b], "product", (-1, 4), schema.MulOptionsT(), schema.BuiltinOptions.MulOptions)
        self.finish("both", [a, b], [added, times])


# ------------------------------------------------------------------ OpenVINO


def openvino_ir(name: str, path: Path) -> Path:
    """Write the model as ``path`` (.xml), with its weights beside it. Returns the path."""
    import openvino as ov
    from openvino import opset13 as ops

    def tensor(called: str, shape: list[int]) -> Any:
        parameter = ops.parameter(shape, np.float32, name=called)
        parameter.output(0).set_names({called})
        return parameter

    def result(node: Any, called: str) -> Any:
        node.output(0).set_names({called})
        return node

    if name == "perceptron":
        inputs = [tensor("x", [-1, 4])]
        hidden = ops.relu(ops.matmul(inputs[0], ops.constant(FIRST), False, False))
        outputs = [result(ops.matmul(hidden, ops.constant(SECOND), False, False), "scores")]
    elif name == "convolution":
        inputs = [tensor("image", [1, 8, 8, 1])]
        image = ops.transpose(inputs[0], ops.constant(np.array([0, 3, 1, 2])))
        kernel = ops.constant(np.ascontiguousarray(KERNEL.transpose(0, 3, 1, 2)))
        made = ops.convolution(image, kernel, [1, 1], [0, 0], [0, 0], [1, 1])
        outputs = [result(ops.transpose(made, ops.constant(np.array([0, 2, 3, 1]))), "features")]
    else:
        inputs = [tensor("a", [-1, 4]), tensor("b", [-1, 4])]
        outputs = [result(ops.add(*inputs), "sum"), result(ops.multiply(*inputs), "product")]
    ov.save_model(ov.Model(outputs, inputs, name), path, compress_to_fp16=False)
    return path


# ------------------------------------------------------------------ IREE and ExecuTorch: files of this repository


def compiled(name: str, suffix: str) -> Path:
    """The file of a model of `CASES`: ``.vmfb`` or ``.pte``."""
    return MODELS / (name + suffix)


def written(name: str, suffix: str, folder: Path) -> Path:
    """The path of a model's file, in any format; those that are made here are written into ``folder``."""
    path = folder / (name + suffix)
    if suffix == ".tflite":
        path.write_bytes(tflite(name))
        return path
    return openvino_ir(name, path) if suffix == ".xml" else compiled(name, suffix)


_MLIR = """
module @{name} {{
  func.func @main({arguments}) -> ({results}) {{
{body}
  }}
  func.func @twice(%a: tensor<4xi32>) -> tensor<4xi1> {{
    %0 = tosa.add %a, %a : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi32>
    %1 = tosa.greater %0, %a : (tensor<4xi32>, tensor<4xi32>) -> tensor<4xi1>
    return %1 : tensor<4xi1>
  }}
}}
"""


def _mlir(name: str) -> str:
    if name == "both":
        kind = "tensor<?x4xf32>"
        body = f"""    %0 = arith.addf %a, %b : {kind}
    %1 = arith.mulf %a, %b : {kind}
    return %0, %1 : {kind}, {kind}"""
        return _MLIR.format(name=name, arguments=f"%a: {kind}, %b: {kind}", results=f"{kind}, {kind}", body=body)
    if name == "convolution":
        weights = _dense(KERNEL.transpose(1, 2, 3, 0))
        body = f"""    %k = arith.constant {weights}
    %z = arith.constant dense<0.0> : tensor<1x6x6x2xf32>
    %0 = linalg.conv_2d_nhwc_hwcf ins(%x, %k : tensor<1x8x8x1xf32>, tensor<3x3x1x2xf32>)
         outs(%z : tensor<1x6x6x2xf32>) -> tensor<1x6x6x2xf32>
    return %0 : tensor<1x6x6x2xf32>"""
        return _MLIR.format(name=name, arguments="%x: tensor<1x8x8x1xf32>", results="tensor<1x6x6x2xf32>", body=body)
    body = f"""    %w = arith.constant {_dense(FIRST)}
    %v = arith.constant {_dense(SECOND)}
    %z = arith.constant dense<0.0> : tensor<2x8xf32>
    %y = arith.constant dense<0.0> : tensor<2x3xf32>
    %0 = linalg.matmul ins(%x, %w : tensor<2x4xf32>, tensor<4x8xf32>) outs(%z : tensor<2x8xf32>) -> tensor<2x8xf32>
    %1 = arith.maximumf %0, %z : tensor<2x8xf32>
    %2 = linalg.matmul ins(%1, %v : tensor<2x8xf32>, tensor<8x3xf32>) outs(%y : tensor<2x3xf32>) -> tensor<2x3xf32>
    return %2 : tensor<2x3xf32>"""
    return _MLIR.format(name=name, arguments="%x: tensor<2x4xf32>", results="tensor<2x3xf32>", body=body)


def _dense(array: Any) -> str:
    """A constant of MLIR, by the bits of its numbers."""
    shape = "x".join(map(str, array.shape))
    return f'dense<"0x{np.ascontiguousarray(array).tobytes().hex()}"> : tensor<{shape}xf32>'


def _compile_iree(name: str) -> bytes:
    """For IREE's virtual machine, which runs on any processor."""
    from iree import compiler

    flags = ["--iree-vm-bytecode-module-strip-source-map=true"]
    return bytes(compiler.compile_str(_mlir(name), target_backends=["vmvx"], extra_args=flags))


def _export_torch(name: str) -> bytes:
    import torch
    from executorch.exir import to_edge

    class Perceptron(torch.nn.Module):
        def forward(self, x: Any) -> Any:
            return torch.relu(x @ torch.from_numpy(FIRST)) @ torch.from_numpy(SECOND)

    class Convolution(torch.nn.Module):
        def forward(self, image: Any) -> Any:
            taps = [(row, column) for row in range(3) for column in range(3)]
            weights = torch.from_numpy(np.ascontiguousarray(KERNEL[:, :, :, 0].transpose(1, 2, 0)))
            return sum(image[:, row : row + 6, column : column + 6] * weights[row, column] for row, column in taps)

    class Both(torch.nn.Module):
        def forward(self, a: Any, b: Any) -> Any:
            return a + b, a * b

    made = {"perceptron": Perceptron, "convolution": Convolution, "both": Both}[name]()
    exported = torch.export.export(made, tuple(torch.from_numpy(array) for array in given(name)))
    return bytes(to_edge(exported).to_executorch().buffer)


if __name__ == "__main__":
    for suffix, package, make in ((".vmfb", "iree.compiler", _compile_iree), (".pte", "executorch", _export_torch)):
        for case in CASES if find_spec(package) else ():
            compiled(case, suffix).write_bytes(make(case))
