"""Kind ``rpcsys.litert``: a ``.tflite`` model, run by LiteRT (the package ai_edge_litert) on the CPU.

Its functions are the model's signatures. Statements about LiteRT here were found by running 2.3.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, Iterable, List, Mapping, Sequence

import numpy as np
from ai_edge_litert.interpreter import Interpreter

from rpcsys.errors import ModelError
from rpcsys.module.kinds import runtime_model
from rpcsys.module.kinds.cpus import cpus_here
from rpcsys.module.kinds.runtime_model import ModelFiles, Pool, RuntimeFunction, RuntimeModule
from rpcsys.module.kinds.values import Value
from rpcsys.module.module import process

KIND = "rpcsys.litert"
_DEFAULT = "serving_default"  # the signature that a converter makes of a whole model


def _open(files: ModelFiles, device: str, threads: int) -> Dict[str, RuntimeFunction]:
    if device:
        raise ModelError(f"is for {device}, and LiteRT's Python runs models on the CPU alone; leave the device out")
    threads = threads or process.threads or len(cpus_here()) or 1
    content = {"model_path": files.paths[0]} if files.paths else {"model_content": bytes(files.inside[0])}
    pool = Pool(lambda: Interpreter(**content, num_threads=threads))
    with pool.one() as interpreter:
        signatures = interpreter.get_signature_list()
        if not signatures:
            inputs, outputs = interpreter.get_input_details(), interpreter.get_output_details()
            return {"main": RuntimeFunction(_values(inputs), _values(outputs), functools.partial(_run, pool))}
        ordered = sorted(signatures, key=lambda key: key != _DEFAULT)
        return {key: _signature(pool, interpreter, key) for key in ordered}


def _signature(pool: Pool[Interpreter], interpreter: Interpreter, key: str) -> RuntimeFunction:
    runner = interpreter.get_signature_runner(key)
    inputs, outputs = runner.get_input_details(), runner.get_output_details()
    run = functools.partial(_run_signature, pool, key, list(inputs), list(outputs))
    return RuntimeFunction(_values(inputs.values(), inputs), _values(outputs.values(), outputs), run)


def _values(details: Iterable[Mapping[str, Any]], names: Iterable[str] = ()) -> List[Value]:
    """The tensors of these ``details``, called by their signature's ``names``, else by their own."""
    found = list(details)
    return [_value(name, each) for name, each in zip(list(names) or [each["name"] for each in found], found)]


def _value(name: str, details: Mapping[str, Any]) -> Value:
    dtype = np.dtype(details["dtype"])
    if dtype.kind not in "biufc":
        raise ModelError(f"has {name!r} as {dtype.name}, and texts do not pass; take them out of the model")
    shape = details["shape_signature"] if len(details["shape_signature"]) else details["shape"]
    return Value(name, dtype.name, [None if extent < 0 else int(extent) for extent in shape])


def _run_signature(
    pool: Pool[Interpreter], key: str, inputs: Sequence[str], outputs: Sequence[str], args: List[Any]
) -> List[Any]:
    with pool.one() as interpreter:
        results = interpreter.get_signature_runner(key)(**dict(zip(inputs, args)))
    return [results[name] for name in outputs]


def _run(pool: Pool[Interpreter], args: List[Any]) -> List[Any]:
    """Run a model without signatures."""
    with pool.one() as interpreter:
        inputs = interpreter.get_input_details()
        for each, arg in zip(inputs, args):
            if tuple(each["shape"]) != arg.shape:
                interpreter.resize_tensor_input(each["index"], arg.shape)
        interpreter.allocate_tensors()  # does nothing where no shape has changed
        for each, arg in zip(inputs, args):
            interpreter.set_tensor(each["index"], arg)
        interpreter.invoke()
        return [interpreter.get_tensor(each["index"]) for each in interpreter.get_output_details()]


_RUNTIME = runtime_model.Runtime(KIND, "LiteRT", _open)
save_to_bytes = runtime_model.save_to_bytes
load_from_bytes = functools.partial(runtime_model.load_from_bytes, _RUNTIME)


def load(path: str, name: str, device: str = "", threads: int = 0) -> RuntimeModule:
    """Load the model at ``path``; messages call it ``name``. Raises `ModelError`, in one line."""
    return runtime_model.load(_RUNTIME, [path], name, device, threads)
