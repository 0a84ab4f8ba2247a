"""Kind ``rpcsys.executorch``: a ``.pte`` program of PyTorch, run by the packages executorch and torch.

Its functions are the program's methods. What runs an operator (XNNPACK, a delegate) was decided when the program was
exported. Statements about ExecuTorch here were found by running 1.5 with torch 2.13.
"""

from __future__ import annotations

import functools
from typing import Any, Dict, List, Tuple

import numpy as np
import torch
from executorch.runtime import Runtime

from rpcsys.errors import ModelError
from rpcsys.module.kinds import runtime_model
from rpcsys.module.kinds.runtime_model import ModelFiles, OnePerCall, RuntimeFunction, RuntimeModule
from rpcsys.module.kinds.values import Value

KIND = "rpcsys.executorch"
_MAIN = "forward"  # the method of a module of PyTorch that a call runs
#: PyTorch's numbers of element types -> numpy's names.
_DTYPES = {
    0: "uint8", 1: "int8", 2: "int16", 3: "int32", 4: "int64", 5: "float16", 6: "float32", 7: "float64", 11: "bool",
}  # fmt: skip


class _UpTo(Value):
    """An input or output with the most that each extent can be: which of them are free, a program does not say."""

    def _fits(self, shape: Tuple[int, ...]) -> bool:
        return len(shape) == len(self.shape) and all(have <= most for most, have in zip(self.shape, shape))


def _open(files: ModelFiles, device: str, threads: int) -> Dict[str, RuntimeFunction]:
    if device:
        raise ModelError(f"is for {device}; an ExecuTorch program has its devices from its export: leave it out")
    # Its methods share memory, so one call at a time has a program.
    pool = OnePerCall(lambda: Runtime.get().load_program(files.paths[0] if files.paths else bytes(files.inside[0])))
    with pool.one() as program:
        names = sorted(program.method_names, key=lambda name: (name != _MAIN, name))
        return {name: _function(pool, name, program.metadata(name)) for name in names}


def _function(pool: OnePerCall[Any], name: str, about: Any) -> RuntimeFunction:
    inputs = [_value(f"input{place}", about.input_tensor_meta(place)) for place in range(about.num_inputs())]
    outputs = [_value(f"output{place}", about.output_tensor_meta(place)) for place in range(about.num_outputs())]

    def run(args: List[Any]) -> List[Any]:
        # Copies: PyTorch takes no array that cannot be written, nor one with gaps.
        given = [torch.from_numpy(np.array(arg, order="C")) for arg in args]
        with pool.one() as program:
            results = program.load_method(name).execute(given)
        return [value.numpy() if isinstance(value, torch.Tensor) else value for value in results]

    return RuntimeFunction(inputs, outputs, run)


def _value(name: str, about: Any) -> Value:
    dtype = _DTYPES.get(about.dtype())
    if dtype is None:
        raise ModelError(f"has {name!r} of a type that numpy lacks (number {about.dtype()}); export it with another")
    return _UpTo(name, dtype, about.sizes())


_RUNTIME = runtime_model.ModelRuntime(
    KIND, "ExecuTorch", _open, has_threads=False,
    no_profile="a runner that is built with its event tracer writes them as ETDump, for its devtools",
)  # fmt: skip
save_to_bytes = runtime_model.save_to_bytes
load_from_bytes = functools.partial(runtime_model.load_from_bytes, _RUNTIME)


def load(path: str, name: str, device: str = "", threads: int = 0) -> RuntimeModule:
    """Load the program at ``path``; messages call it ``name``. Raises `ModelError`, in one line."""
    return runtime_model.load(_RUNTIME, [path], name, device, threads)
