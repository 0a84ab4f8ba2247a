"""Kind ``rpcsys.litert``: a ``.tflite`` model, run by LiteRT (the package ai_edge_litert) on the CPU.

Its functions are the model's signatures. Statements about LiteRT here were found by running 2.3.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Mapping, Sequence, Tuple

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from rpcsys.errors import ModelError
from rpcsys.module.kinds import runtime_model
from rpcsys.module.kinds.cpus import cpus_here
from rpcsys.module.kinds.runtime_model import ModelFiles, OnePerCall, RuntimeFunction, RuntimeModule
from rpcsys.module.kinds.values import Value
from rpcsys.module.module import process

KIND = "rpcsys.litert"
Details = Mapping[str, Mapping[str, Any]]  # what LiteRT tells of tensors, by their names
_DEFAULT = "serving_default"  # the signature that a converter makes of a whole model


class _Interpreter:
    """An interpreter, which one thread uses at a time."""

    def __init__(self, content: Mapping[str, Any], threads: int) -> None:
        self.interpreter = Interpreter(**content, num_threads=threads)
        self._shapes: List[Tuple[int, ...]] = []  # of the inputs that its memory is for

    def run(self, inputs: Sequence[int], outputs: Sequence[int], args: Sequence[Any]) -> List[Any]:
        """Run the main graph; ``inputs`` and ``outputs`` are the numbers of its tensors."""
        interpreter, shapes = self.interpreter, [arg.shape for arg in args]
        if shapes != self._shapes:
            for number, shape in zip(inputs, shapes):
                interpreter.resize_tensor_input(number, shape)
            interpreter.allocate_tensors()
            self._shapes = shapes
        for number, arg in zip(inputs, args):
            interpreter.set_tensor(number, arg)
        interpreter.invoke()
        return [interpreter.get_tensor(number) for number in outputs]


def _open(files: ModelFiles, device: str, threads: int) -> Dict[str, RuntimeFunction]:
    if device:
        raise ModelError(f"is for {device}, and LiteRT's Python runs models on the CPU alone; leave the device out")
    threads = threads or process.threads or len(cpus_here()) or 1
    content = {"model_path": files.paths[0]} if files.paths else {"model_content": bytes(files.inside[0])}
    pool = OnePerCall(lambda: _Interpreter(content, threads))
    with pool.one() as first:
        interpreter = first.interpreter
        main = interpreter.get_input_details(), interpreter.get_output_details()
        signatures = sorted(interpreter.get_signature_list(), key=lambda key: key != _DEFAULT)
        return {key: _signature(pool, key, interpreter.get_signature_runner(key), main) for key in signatures} or {
            "main": _of_main_graph(pool, *(_named(details) for details in main))
        }


def _signature(pool: OnePerCall[_Interpreter], key: str, runner: Any, main: Tuple[Any, Any]) -> RuntimeFunction:
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    if [_numbers(inputs), _numbers(outputs)] == [_numbers(_named(details)) for details in main]:
        return _of_main_graph(pool, inputs, outputs)  # without the runner, whose calls take longer

    def run(args: List[Any]) -> List[Any]:
        with pool.one() as each:
            # Made for each call: while there is one, LiteRT refuses to allocate memory for the main graph.
            results = each.interpreter.get_signature_runner(key)(**dict(zip(inputs, args)))
        return [results[name] for name in outputs]

    return RuntimeFunction(_values(inputs), _values(outputs), run)


def _of_main_graph(pool: OnePerCall[_Interpreter], inputs: Details, outputs: Details) -> RuntimeFunction:
    taken, given = ([each["index"] for each in details.values()] for details in (inputs, outputs))

    def run(args: List[Any]) -> List[Any]:
        with pool.one() as each:
            return each.run(taken, given, args)

    return RuntimeFunction(_values(inputs), _values(outputs), run)


def _named(details: Iterable[Mapping[str, Any]]) -> Details:
    return {each["name"]: each for each in details}


def _numbers(details: Details) -> List[Tuple[int, str]]:
    """What tells tensors from those of another graph."""
    return sorted((each["index"], each["name"]) for each in details.values())


def _values(details: Details) -> List[Value]:
    return [_value(name, each) for name, each in details.items()]


def _value(name: str, details: Mapping[str, Any]) -> Value:
    dtype = np.dtype(details["dtype"])
    if dtype.kind not in "biufc":
        raise ModelError(f"has {name!r} as {dtype.name}, and texts do not pass; take them out of the model")
    shape = details["shape_signature"] if len(details["shape_signature"]) else details["shape"]
    return Value(name, dtype.name, [None if extent < 0 else int(extent) for extent in shape])


_RUNTIME = runtime_model.ModelRuntime(
    KIND, "LiteRT", _open, no_profile="its benchmark_model does, on the board: --graph=FILE --enable_op_profiling=true"
)
save_to_bytes = runtime_model.save_to_bytes
load_from_bytes = functools.partial(runtime_model.load_from_bytes, _RUNTIME)


def load(path: str, name: str, device: str = "", threads: int = 0) -> RuntimeModule:
    """Load the model at ``path``; messages call it ``name``. Raises `ModelError`, in one line."""
    return runtime_model.load(_RUNTIME, [path], name, device, threads)
