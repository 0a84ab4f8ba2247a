"""Opens one ONNX model in one onnxruntime session: from a file, or from bytes plus weights that lie elsewhere.

Statements about onnxruntime here were found by running 1.31 with onnx 1.23.
"""

from __future__ import annotations

import ctypes
import functools
import os
import re
from typing import Any, Callable, Dict, List, Mapping, NamedTuple, Optional, Sequence, Tuple, Type, Union

import numpy as np
import onnxruntime

from rpcsys.module.kinds import onnx_providers
from rpcsys.module.kinds.cpus import bound_to, cpus_here
from rpcsys.module.kinds.onnx_proto import NUMBERS, external_weight, with_ir_version
from rpcsys.module.kinds.values import RAW, Value
from rpcsys.module.layout import Buffer
from rpcsys.module.module import process, running_call
from rpcsys.module.registry import File
from rpcsys.wire.device_names import CPU
from rpcsys.wire.dtypes import count
from rpcsys.wire.tensor import Tensor

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")  # otherwise it refuses a brand-new opset

_FOLDER = "session.model_external_initializers_file_folder_path"
_level = onnxruntime.GraphOptimizationLevel
_LEVELS = {
    "off": _level.ORT_DISABLE_ALL, "basic": _level.ORT_ENABLE_BASIC, "extended": _level.ORT_ENABLE_EXTENDED,
    "all": _level.ORT_ENABLE_ALL,
}  # fmt: skip


class Model(NamedTuple):
    """A model in parts."""

    proto: Buffer  # the serialised ModelProto, without the separated weights
    weights: Dict[str, Tensor]  # its own separated weights
    shared: Dict[str, Tuple[str, Tuple[int, ...]]]  # weights that it takes from its imports: type and shape by name
    inputs: List[Dict[str, Any]]  # inputs and outputs, as a client receives them
    outputs: List[Dict[str, Any]]
    options: Dict[str, Any]  # threads, CPUs, level and providers for onnxruntime, or another runtime (`options_of`)
    file: Optional[File] = None  # the mapped file that contains ``weights``
    deflated: bool = False  # whether ``proto`` is saved compressed, so that no text in it is readable


class OnnxWeight(NamedTuple):
    """A weight of a model."""

    tensor: Tensor
    file: Optional[File] = None  # the mapped file that contains its bytes


class SessionRunner:
    """A model that is ready to run."""

    runtime = "onnxruntime"
    on_device = False  # whether it takes arrays in a device's memory, and leaves its outputs there

    def __init__(self, session: Any, keep: Any = None, cpus: Sequence[int] = ()) -> None:
        self._session = session
        self._keep = keep  # memory that the session reads, kept alive
        self._cpus = cpus
        self.inputs = [declared(node) for node in session.get_inputs()]
        self.outputs = [declared(node) for node in session.get_outputs()]
        #: Weights that a caller may override.
        self.optional = [declared(node) for node in session.get_overridable_initializers()]
        values = self.inputs + self.outputs
        for value in values:
            if value.dtype is None and value.type.startswith("tensor("):
                raise ValueError(f"onnxruntime does not support {value.type} in Python ({value.name!r})")
        # bfloat16, float8 and int4 pass only as raw bits in OrtValues.
        self._raw = any(value.dtype in RAW for value in values)
        self._raw_out = any(value.dtype in RAW for value in self.outputs)
        if self._raw_out and any(value.dtype in (None, "strings") for value in values):
            what = "bfloat16, float8 or int4 beside strings, sequences or maps"
            raise ValueError(f"it gives {what}, and onnxruntime takes no such calls from Python")

    def end_profiling(self) -> None:
        """Write the profile of a model that was opened with one, and close that: it holds what it noted until then."""
        self._session.end_profiling()
        self._session = None

    def run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        """The outputs of those names, for checked inputs. Many threads may call it."""
        if self._cpus:
            with bound_to(self._cpus):
                return self._run(outputs, feeds)
        return self._run(outputs, feeds)

    def _run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        if running_call.stops is None:
            return self._run_with(None, outputs, feeds)
        how = onnxruntime.RunOptions()
        with running_call.stopped_by(functools.partial(setattr, how, "terminate", True)):
            return self._run_with(how, outputs, feeds)

    def _run_with(self, how: Any, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        if not self._raw:
            results: List[Any] = self._session.run(outputs, feeds, how)
            return results
        values = {name: to_ort(feed) if is_array(feed) else feed for name, feed in feeds.items()}
        if self._raw_out:
            return [from_ort(value) for value in self._session.run_with_ort_values(outputs, values, how)]
        return list(self._session.run(outputs, values, how))


def is_array(feed: Any) -> bool:
    """Whether an OrtValue can be made of an input: not of strings, sequences and maps."""
    return isinstance(feed, Tensor) or (isinstance(feed, np.ndarray) and feed.dtype.kind not in "OU")


def of_file(path: str, options: Mapping[str, Any], runner: Type[SessionRunner] = SessionRunner) -> SessionRunner:
    """Open the model of an ``.onnx`` file. Raises what onnxruntime raises."""

    def make(version: Optional[int]) -> SessionRunner:
        if version is None:
            return _runner(path, _settings(options), options, runner)
        # The patched copy is written beside the model, so that external weights are still found.
        copy = path + ".ir"
        try:
            with open(path, "rb") as model, open(copy, "wb") as file:
                file.write(with_ir_version(model.read(), version))
            return _runner(copy, _settings(options), options, runner)
        finally:
            os.unlink(copy)

    return _by_ir_version(make)


def of_bytes(
    model: bytes,
    weights: Mapping[str, OnnxWeight],
    options: Mapping[str, Any],
    runner: Type[SessionRunner] = SessionRunner,
) -> SessionRunner:
    """Open a model with separated weights, mapped if they are in a file. Raises what onnxruntime raises.

    onnxruntime maps weights that a model references in a file, at any offset, and reads only what it uses (256 MB in 3
    ms and 8 MB of memory). It also accepts weights in memory, but reads all of them (578 ms), and keeps a copy unless
    the same value is given to it in both of its ways.
    """
    settings = _settings(options)
    files = [weight.file for weight in weights.values() if weight.file is not None and weight.file.path]
    file = files[0] if files else None
    if file is not None:
        settings.add_session_config_entry(_FOLDER, os.path.dirname(file.path))
    pieces, keep = [model], {}
    for name, (tensor, home) in weights.items():
        offset = file.place(tensor.data) if file is not None and home is file else None
        location = os.path.basename(file.path) if file is not None and offset is not None else "in memory"
        pieces.append(external_weight(name, tensor.dtype, tensor.shape, location, offset or 0, len(tensor.data)))
        if offset is None:
            value = tensor if tensor.dtype in RAW else np.frombuffer(tensor.data, tensor.dtype).reshape(tensor.shape)
            keep[name] = to_ort(value)
            settings.add_initializer(name, keep[name])
    settings.add_external_initializers(list(keep), list(keep.values()))
    whole = b"".join(pieces)

    def make(version: Optional[int]) -> SessionRunner:
        changed = whole if version is None else with_ir_version(whole, version)
        return _runner(changed, settings, options, runner, keep)

    return _by_ir_version(make)


def _by_ir_version(make: Callable[[Optional[int]], SessionRunner]) -> SessionRunner:
    """``make(None)``; for a model too new for onnxruntime, ``make`` with the newest IR version that it supports."""
    try:
        return make(None)
    except Exception as error:
        newest = re.search(r"max supported IR version: (\d+)", str(error))
        if newest is None:
            raise
    return make(int(newest.group(1)))


def _settings(options: Mapping[str, Any]) -> Any:
    settings = onnxruntime.SessionOptions()
    settings.log_severity_level = 3  # its warnings come back as exceptions or are of no use
    # With its default number of threads onnxruntime pins its workers and overrides the process's CPU affinity.
    threads = options.get("threads") or len(options.get("cpus", ())) or process.threads
    settings.intra_op_num_threads = threads or len(cpus_here())
    settings.graph_optimization_level = _LEVELS[options.get("level", "all")]
    settings.add_session_config_entry("session.intra_op.allow_spinning", "0")  # it slows other work on a small machine
    if "profile" in options:
        settings.enable_profiling, settings.profile_file_prefix = True, options["profile"]
    return settings


def _runner(
    model: Union[str, bytes], settings: Any, options: Mapping[str, Any], runner: Type[SessionRunner], keep: Any = None
) -> SessionRunner:
    cpus = options.get("cpus", ())
    providers = onnx_providers.listed(options, onnxruntime.get_available_providers())
    with bound_to(cpus):  # the session's threads inherit the affinity of the thread that makes it
        session = onnxruntime.InferenceSession(model, settings, providers=providers)
    lost = set(map(_provider, providers)).difference(session.get_providers())  # it goes on without, and only logs why
    if lost:
        raise ValueError(f"onnxruntime cannot start {', '.join(lost)} for {options.get('device') or 'it'}")
    return runner(session, keep, cpus)


def _provider(given: Any) -> str:
    """The name of a provider that may have options."""
    return str(given if isinstance(given, str) else given[0])


def complaint(options: Mapping[str, Any]) -> str:
    """The options that this machine cannot fulfil, as text; empty if none."""
    lacking: List[Any] = sorted(set(options.get("cpus", ())) - cpus_here())
    if lacking:
        return f"is for CPUs that this process may not use: {', '.join(map(str, lacking))}"
    lacking = [name for name in options.get("providers", ()) if name not in onnxruntime.get_available_providers()]
    if lacking:
        has = ", ".join(onnxruntime.get_available_providers())
        return f"is for {', '.join(lacking)}, and onnxruntime here has {has}"
    return onnx_providers.complaint(options.get("device", ""), onnxruntime.get_available_providers())


def options_of(given: Any) -> Dict[str, Any]:
    """Check options for onnxruntime (see `onnx.onnx_module`). Raises ValueError with the reason."""
    if not isinstance(given, dict) or set(given) - {"threads", "cpus", "level", "providers", "runtime", "device"}:
        raise ValueError("options are threads, cpus, level, providers, runtime and device")
    if given.get("level", "all") not in _LEVELS:
        raise ValueError("a level is one of " + ", ".join(_LEVELS))
    threads, cpus, providers = given.get("threads", 1), given.get("cpus", []), given.get("providers", [])
    if type(threads) is not int or not 0 < threads < 1 << 16:
        raise ValueError("threads is a number from 1")
    if not isinstance(cpus, list) or not all(type(cpu) is int and 0 <= cpu < 1 << 16 for cpu in cpus):
        raise ValueError("cpus is a list of numbers from 0")
    if not isinstance(providers, list) or not all(isinstance(name, str) for name in providers):
        raise ValueError("providers is a list of names")
    if given.get("runtime", "onnxruntime") not in ("onnxruntime", "reference"):
        raise ValueError("a runtime is onnxruntime or reference")
    device = onnx_providers.checked(given.get("device", str(CPU)))
    if device and (providers or given.get("runtime") == "reference"):
        raise ValueError(f"{device} is for onnxruntime to find a provider for; leave providers and runtime out")
    rest = {key: value for key, value in given.items() if key != "device"}
    return {**rest, "device": device} if device else rest


# ------------------------------------------------------------------ inputs and outputs

#: onnxruntime's name of an element type -> the wire's.
_DTYPES = {
    **{name: name for name in ("float16", "bfloat16", "bool", "complex64", "complex128")},
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (2, 4, 8, 16, 32, 64)},
    **{name.replace("_", ""): name for name in NUMBERS if name.startswith("float8")},
    "float": "float32",
    "double": "float64",
    "string": "strings",
}
#: onnxruntime packs several of these into a byte, the first one lowest; on the wire each has its own byte.
_BITS = {"uint4": 4, "int4": 4, "uint2": 2, "int2": 2}
_BY_NUMBER = {number: name for name, (number, _) in RAW.items()}
_TENSOR = re.compile(r"tensor\((\w+)\)\Z")


def declared(node: Any) -> Value:
    """An input or output as onnxruntime describes it."""
    match = _TENSOR.match(node.type)
    shape = list(node.shape) if match and node.shape is not None else []
    dtype = _DTYPES.get(match.group(1)) if match else None
    return Value(node.name, dtype, shape, node.type, node.type.startswith("optional"))


def to_ort(value: Any) -> Any:
    """A checked input as an OrtValue over the same memory."""
    make = onnxruntime.OrtValue
    if isinstance(value, Tensor) and value.dtype in RAW:
        number, same_width = RAW[value.dtype]
        bits = np.frombuffer(value.data, same_width).reshape(value.shape)
        if value.dtype in _BITS:
            bits = _packed(bits, _BITS[value.dtype])
        return make.ortvalue_from_numpy_with_onnx_type(bits, number)
    return make.ortvalue_from_numpy(value)


def from_ort(value: Any) -> Any:
    """An output for the session: numpy's array, or a `Tensor` of a type that numpy lacks."""
    name = _BY_NUMBER.get(value.element_type()) if value.is_tensor() else None
    if name is None:
        return value.numpy()
    data = bytearray(ctypes.string_at(value.data_ptr(), value.tensor_size_in_bytes()))
    if name in _BITS:
        data = _unpacked(data, name, count(tuple(value.shape())))
    return Tensor(name, value.shape(), data)


def _packed(values: Any, bits: int) -> Any:
    """An array of the same shape that starts with the packed ``values``, ``bits`` each."""
    each = 8 // bits
    rows = np.zeros((-(-values.size // each), each), "uint8")
    rows.reshape(-1)[: values.size] = values.reshape(-1) & ((1 << bits) - 1)
    packed = np.zeros(values.size, "uint8")
    packed[: len(rows)] = np.bitwise_or.reduce(rows << np.arange(0, 8, bits, dtype="uint8"), axis=1)
    return packed.reshape(values.shape)


def _unpacked(packed: bytearray, name: str, size: int) -> bytearray:
    """The inverse: ``size`` values, one byte each; signed values keep their sign."""
    bits = _BITS[name]
    places = np.arange(0, 8, bits, dtype="uint8")
    values = (np.frombuffer(packed, "uint8")[:, None] >> places & ((1 << bits) - 1)).reshape(-1)[:size]
    if name.startswith("int"):
        values = values | np.where(values >> (bits - 1), 0xFF << bits & 0xFF, 0).astype("uint8")
    return bytearray(values.astype("uint8").tobytes())
