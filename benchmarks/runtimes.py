"""``python -m benchmarks.runtimes``: calls of models in LiteRT, OpenVINO and IREE, against each runtime's own Python.

Both are functions of one session, timed in turns by `rpcsys.measure.compare` with one thread: a model as rpcsys loads
it, and a Python function that calls the runtime as its documentation shows. The goal is 3 %. IREE's model is compiled
here, by iree-base-compiler.
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from rpcsys import lab, measure, module
from rpcsys.errors import UsageError

WIDTH, DEPTH, ROWS = 1024, 3, 16  # of a perceptron: about a millisecond a call


def litert(model: bytes, _: bytes) -> Callable[[Any], Any]:
    """Run a ``.tflite`` file."""
    held: list[Any] = []

    def main(x: Any) -> Any:
        if not held:
            from ai_edge_litert.interpreter import Interpreter

            made = Interpreter(model_content=model, num_threads=1)
            made.allocate_tensors()
            held.extend((made, made.get_input_details()[0]["index"], made.get_output_details()[0]["index"]))
        interpreter, taken, given = held
        interpreter.set_tensor(taken, x)
        interpreter.invoke()
        return interpreter.get_tensor(given)

    return main


def openvino(model: bytes, weights: bytes) -> Callable[[Any], Any]:
    """Run an ``.xml`` file with its ``.bin`` file."""
    held: list[Any] = []

    def main(x: Any) -> Any:
        if not held:
            import openvino as ov

            how = {"INFERENCE_NUM_THREADS": 1, "PERFORMANCE_HINT": "LATENCY", "INFERENCE_PRECISION_HINT": "f32"}
            tensor = ov.Tensor(np.frombuffer(weights, "uint8"), shared_memory=False)
            core = ov.Core()
            held.append(core.compile_model(core.read_model(model, tensor), "CPU", how))
        return held[0](x)[0]

    return main


def iree(model: bytes, _: bytes) -> Callable[[Any], Any]:
    """Run a ``.vmfb`` file in the thread that calls."""
    held: list[Any] = []

    def main(x: Any) -> Any:
        if not held:
            import iree.runtime as rt

            held.append(rt.load_vm_flatbuffer(model, driver="local-sync"))
        return held[0].main(x).to_host()

    return main


def weights() -> list[Any]:
    """The weights of the perceptron, layer by layer."""
    seeded = np.random.default_rng(0)
    return [seeded.standard_normal((WIDTH, WIDTH), "float32") / np.float32(WIDTH**0.5) for _ in range(DEPTH)]


def write_tflite(path: Path, rows: int = ROWS) -> None:
    from tests.module.runtime_models import tflite_layers

    path.write_bytes(tflite_layers(weights(), rows))


def write_openvino(path: Path, rows: int = ROWS) -> None:
    import openvino as ov
    from openvino import opset13 as ops

    x = node = ops.parameter([rows, WIDTH], np.float32)
    x.output(0).set_names({"x"})
    for layer in weights():
        node = ops.relu(ops.matmul(node, ops.constant(layer), False, False))
    ov.save_model(ov.Model([node], [x], "perceptron"), path, compress_to_fp16=False)


def write_iree(path: Path, rows: int = ROWS) -> None:
    from iree import compiler

    kind, square = f"tensor<{rows}x{WIDTH}xf32>", f"tensor<{WIDTH}x{WIDTH}xf32>"
    lines = [f"%z = arith.constant dense<0.0> : {kind}"]
    value = "%x"
    for number, layer in enumerate(weights()):
        lines += [
            f'%w{number} = arith.constant dense<"0x{layer.tobytes().hex()}"> : {square}',
            f"%m{number} = linalg.matmul ins({value}, %w{number} : {kind}, {square}) outs(%z : {kind}) -> {kind}",
            f"%r{number} = arith.maximumf %m{number}, %z : {kind}",
        ]
        value = f"%r{number}"
    body = "\n".join(lines)
    text = f"func.func @main(%x: {kind}) -> {kind} {{\n{body}\nreturn {value} : {kind}\n}}"
    flags = ["--iree-llvmcpu-target-cpu=host"]
    path.write_bytes(compiler.compile_str(text, target_backends=["llvm-cpu"], extra_args=flags))


CASES: dict[str, tuple[str, str, Callable[..., None], Callable[[bytes, bytes], Callable[[Any], Any]]]] = {
    "LiteRT": (".tflite", "ai_edge_litert", write_tflite, litert),
    "OpenVINO": (".xml", "openvino", write_openvino, openvino),
    "IREE": (".vmfb", "iree.compiler", write_iree, iree),
}


def own(path: Path, function: Callable[[Any], Any], inputs: str) -> Path:
    """A library whose ``main`` is a function of Python with one declared input."""
    library = path.with_name(path.stem + "-own.so")
    stage = module.Stage("own", module.python({"main": function}), [inputs], ["y"])
    x = {"name": inputs, "dtype": "float32", "shape": [ROWS, WIDTH]}
    module.export_library(module.graph([stage], [x], [{"name": "y"}]), library)
    return library


def main() -> None:
    words = argparse.ArgumentParser(description=__doc__)
    words.add_argument("--limit-s", type=float, default=60.0, help="seconds of measuring for each runtime")
    limit_s = words.parse_args().limit_s
    flags = ["--allow-pickle", "--preload", "none", "--tvm", "off"]
    with tempfile.TemporaryDirectory() as folder, lab.Lab({"board": 1}, server_args=flags) as started:
        for name, (suffix, package, write, function) in CASES.items():
            if find_spec(package) is None:
                print(f"{name}: not measured, without the package {package}")
                continue
            path = Path(folder, f"{name.lower()}{suffix}")
            write(path)
            beside = path.with_suffix(".bin")
            made = function(path.read_bytes(), beside.read_bytes() if beside.exists() else b"")
            with module.load_module(path) as loaded:
                library = own(path, made, loaded.inputs[0]["name"])
            ours = measure.Subject(path, settings={"threads": 1})
            with started.connect() as tracker:
                try:
                    found = measure.compare(tracker, [measure.Subject(library), ours], key="board", limit_s=limit_s)
                except UsageError as error:
                    print(f"{name}: {error}")
                    continue
            print(f"{name}: {found}", flush=True)


if __name__ == "__main__":
    main()
