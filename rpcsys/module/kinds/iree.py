"""Kind ``rpcsys.iree``: a ``.vmfb`` file, a model compiled by IREE, run by the package iree.runtime.

Its functions are the file's entry points. Arguments and results are arrays of the host. Statements about IREE here were
found by running 3.13.
"""

from __future__ import annotations

import functools
import re
import threading
from typing import Any, Dict, Iterator, List, Tuple

import iree.runtime as rt
import numpy as np
from iree.runtime import _binding as binding

from rpcsys.errors import ModelError
from rpcsys.module.kinds import runtime_model
from rpcsys.module.kinds.cpus import cpus_here
from rpcsys.module.kinds.runtime_model import ModelFiles, OnePerCall, RuntimeFunction, RuntimeModule
from rpcsys.module.kinds.values import Value
from rpcsys.module.module import process
from rpcsys.wire.device_names import CPU, parse

KIND = "rpcsys.iree"
#: Kinds of devices -> IREE's drivers. On the CPU, `_SYNC` runs a call in the thread that calls, `_TASK` in threads.
_DRIVERS = {"cuda": "cuda", "rocm": "hip", "vulkan": "vulkan"}
_SYNC, _TASK = "local-sync", "local-task"
_DECLARED = "iree.abi.declaration"  # of an entry point: what it takes and gives, as text
_PARTS = re.compile(r"[^(]*\((.*?)\) -> \((.*)\)\s*\Z", re.DOTALL)
_ARGUMENT = re.compile(r"%(\w+): (tensor<((?:[\d?]+x)*)([^<>,]+|complex<f\d+>)>|[^,{]+)")
_DTYPES = {
    **{f"f{bits}": f"float{bits}" for bits in (16, 32, 64)},
    **{f"{sign}i{bits}": f"int{bits}" for sign in ("", "s") for bits in (8, 16, 32, 64)},
    **{f"ui{bits}": f"uint{bits}" for bits in (8, 16, 32, 64)},
    "i1": "bool", "complex<f32>": "complex64", "complex<f64>": "complex128",
}  # fmt: skip
_lock = threading.Lock()  # for the flags, which are the whole process's
_devices: Dict[Tuple[str, int, int], Any] = {}  # driver, number and threads -> the device, which has these threads


def _open(files: ModelFiles, device: str, threads: int) -> Dict[str, RuntimeFunction]:
    there = _device(device, threads)
    instance = rt.VmInstance()
    if files.paths:
        module = rt.VmModule.mmap(instance, files.paths[0])
    else:
        module = rt.VmModule.copy_buffer(instance, bytes(files.inside[0]))
    pool = OnePerCall(lambda: rt.VmContext(instance, modules=[binding.create_hal_module(instance, there), module]))
    functions = {name: module.lookup_function(name) for name in module.function_names if _is_entry_point(name)}
    declared = {name: _PARTS.match(each.reflection.get(_DECLARED, "")) for name, each in functions.items()}
    return {name: _function(pool, there, functions[name], part) for name, part in declared.items() if part is not None}


def _is_entry_point(name: str) -> bool:
    """Whether a function is no initialiser, and no second form of another one (``main$async``)."""
    return not name.startswith("__") and "$" not in name


def _device(device: str, threads: int) -> Any:
    """IREE's device; on the CPU with so many threads. Raises `ModelError`, and what IREE raises."""
    kind, number = parse(device or str(CPU))
    if kind in _DRIVERS:
        driver, threads = _DRIVERS[kind], 0
    elif kind == CPU.kind:
        threads = threads or process.threads or len(cpus_here()) or 1
        driver, number = _TASK if threads > 1 else _SYNC, "0"
    else:
        known = ", ".join((CPU.kind, *_DRIVERS))
        raise ModelError(f"is for {device}, and IREE runs models on devices of the kinds {known}")
    with _lock:
        key = driver, int(number), threads
        if key not in _devices:
            if driver == _TASK:
                binding.parse_flags(f"--task_topology_group_count={threads}")
            made = binding.create_hal_driver(driver)
            there = made.query_available_devices()
            if int(number) >= len(there):
                raise ModelError(f"is for {device}, and IREE's driver {driver} has {len(there)} devices here")
            _devices[key] = made.create_device(there[int(number)]["device_id"], None)
        return _devices[key]


def _function(pool: OnePerCall[Any], device: Any, function: Any, declared: re.Match[str]) -> RuntimeFunction:
    taken, given = (list(_values(part)) for part in declared.groups())

    def run(args: List[Any]) -> List[Any]:
        with pool.one() as context:
            results = rt.FunctionInvoker(context, device, function)(*args)
        each = results if isinstance(results, tuple) else (results,)
        # Copies: an array over IREE's own memory must not live longer than its device.
        return [np.array(value.to_host()) if isinstance(value, rt.DeviceArray) else value for value in each]

    return RuntimeFunction(taken, given, run)


def _values(declared: str) -> Iterator[Value]:
    """The arguments or results in a declaration: ``%input0: tensor<?x4xf32>, %input1: i32``."""
    for name, text, extents, element in _ARGUMENT.findall(declared):
        if not element:
            yield Value(name, None, type_=text.strip())
        elif element not in _DTYPES:
            raise ModelError(f"has {name!r} of {element}, which numpy lacks; compile it with another type there")
        else:
            shape = [None if extent == "?" else int(extent) for extent in extents.split("x")[:-1]]
            yield Value(name, _DTYPES[element], shape)


_RUNTIME = runtime_model.ModelRuntime(
    KIND, "IREE", _open, no_profile="its iree-run-module does, on the board: see --device_profiling_mode in its --help"
)
save_to_bytes = runtime_model.save_to_bytes
load_from_bytes = functools.partial(runtime_model.load_from_bytes, _RUNTIME)


def load(path: str, name: str, device: str = "", threads: int = 0) -> RuntimeModule:
    """Load the model at ``path``; messages call it ``name``. Raises `ModelError`, in one line."""
    return runtime_model.load(_RUNTIME, [path], name, device, threads)
