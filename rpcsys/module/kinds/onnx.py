"""Kind ``rpcsys.onnx``: an ONNX model that onnxruntime runs.

Facts about onnxruntime that this file respects (found by running 1.31 with onnx 1.23): it refuses models
stamped with a newer IR version than it knows, though they run when the stamp is lowered; a brand-new
opset needs ``ALLOW_RELEASED_ONNX_OPSET_ONLY=0``; with its default thread count it pins its own workers
and escapes the process's CPU affinity, so the count is set to the CPUs the process may use; spinning
threads disturb everything else on a small machine; bfloat16 and float8 pass only as raw bits in OrtValues.
"""

from __future__ import annotations

import ctypes
import os
import re
from typing import Any, Callable, Dict, List, Optional, Sequence, Tuple

import numpy as np
import onnxruntime

from rpcsys.errors import RemoteArgumentError, RemoteFunctionError
from rpcsys.module.loading import model_error
from rpcsys.wire.tensor import Tensor, as_tensor

os.environ.setdefault("ALLOW_RELEASED_ONNX_OPSET_ONLY", "0")

#: onnxruntime's name of an element type -> the wire's.
_DTYPES = {
    "float": "float32",
    "double": "float64",
    "float16": "float16",
    "bfloat16": "bfloat16",
    "bool": "bool",
    "string": "strings",
    "complex64": "complex64",
    "complex128": "complex128",
    "float8e4m3fn": "float8_e4m3fn",
    "float8e4m3fnuz": "float8_e4m3fnuz",
    "float8e5m2": "float8_e5m2",
    "float8e5m2fnuz": "float8_e5m2fnuz",
    **{f"{sign}int{bits}": f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)},
}
#: Element types numpy lacks -> (onnx.TensorProto's number, the numpy type of the same width).
_RAW = {
    "bfloat16": (16, "uint16"),
    "float8_e4m3fn": (17, "uint8"),
    "float8_e4m3fnuz": (18, "uint8"),
    "float8_e5m2": (19, "uint8"),
    "float8_e5m2fnuz": (20, "uint8"),
}
_RAW_BY_NUMBER = {number: name for name, (number, _) in _RAW.items()}
_TENSOR = re.compile(r"tensor\((\w+)\)\Z")


class OnnxModule:
    """One model in one onnxruntime session. ``main`` takes the inputs in order and gives the outputs."""

    kind = "rpcsys.onnx"

    def __init__(self, session: Any) -> None:
        self._session = session
        self.inputs = [_Value(node) for node in session.get_inputs()]
        self.outputs = [_Value(node) for node in session.get_outputs()]
        self._optional = [_Value(node) for node in session.get_overridable_initializers()]
        self._raw = any(value.dtype in _RAW for value in self.inputs + self.outputs)
        if self._raw and any(value.dtype in (None, "strings") for value in self.inputs + self.outputs):
            raise ValueError(
                "its inputs and outputs mix bfloat16 or float8 with strings, sequences or maps, and onnxruntime takes no such calls from Python"
            )

    def describe(self) -> Dict[str, Any]:
        """kind, functions, inputs and outputs; a free extent is its name or None."""
        return {
            "kind": self.kind,
            "functions": ["main"],
            "inputs": [value.describe() for value in self.inputs],
            "outputs": [value.describe() for value in self.outputs],
        }

    def function(self, name: str) -> Callable[..., Any]:
        """``main``; raises `RemoteFunctionError` for any other name."""
        if name != "main":
            raise RemoteFunctionError(
                f"an ONNX model has the function 'main' only, not {name!r}", type="RemoteFunctionError"
            )
        return self._main

    def run(self, inputs: Dict[str, Any], outputs: Optional[Sequence[str]] = None) -> Dict[str, Any]:
        """Run by names: the wanted outputs, all if None. Raises `RemoteArgumentError`."""
        known = {value.name: value for value in self.inputs + self._optional}
        for name in inputs:
            if name not in known:
                raise _refusal(f"the model has no input {name!r}; it has {_listed(known)}")
        for value in self.inputs:
            if value.name not in inputs and not value.optional:
                raise _refusal(f"input {value.name!r} is missing; the model wants {_listed(known)}")
        names = [value.name for value in self.outputs]
        for name in outputs if outputs is not None else ():
            if name not in names:
                raise _refusal(f"the model has no output {name!r}; it has {_listed(names)}")
        wanted = list(outputs) if outputs is not None else names
        feeds = {name: known[name].check(value) for name, value in inputs.items()}
        return dict(zip(wanted, self._run(wanted, feeds)))

    def _main(self, *args: Any) -> Any:
        if len(args) != len(self.inputs):
            raise _refusal(
                f"the model takes {len(self.inputs)} input(s), not {len(args)}: {_listed(value.name for value in self.inputs)}"
            )
        feeds = {value.name: value.check(arg) for value, arg in zip(self.inputs, args)}
        results = self._run([value.name for value in self.outputs], feeds)
        return results[0] if len(results) == 1 else tuple(results)

    def _run(self, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        if not self._raw:
            results: List[Any] = self._session.run(outputs, feeds)
            return results
        values = {name: _ort_value(feed) for name, feed in feeds.items()}
        return [_from_ort_value(value) for value in self._session.run_with_ort_values(outputs, values)]


class _Value:
    """An input or output as the model declares it."""

    def __init__(self, node: Any) -> None:
        self.name: str = node.name
        self.type: str = node.type
        match = _TENSOR.match(node.type)
        self.dtype = _DTYPES.get(match.group(1)) if match else None
        self.shape: List[Any] = list(node.shape) if match and node.shape is not None else []
        self.optional = node.type.startswith("optional")

    def describe(self) -> Dict[str, Any]:
        return {"name": self.name, "dtype": self.dtype or self.type, "shape": self.shape}

    def check(self, given: Any) -> Any:
        """``given`` as onnxruntime takes it. Raises `RemoteArgumentError` for a wrong dtype or shape."""
        if self.dtype is None:
            return given
        if self.dtype in _RAW:
            tensor = as_tensor(given)
            dtype, shape, value = (
                (tensor.dtype, tensor.shape, tensor) if tensor else (type(given).__name__, (), given)
            )
        else:
            value = self._array(given)
            dtype, shape = "strings" if value.dtype.kind in "OU" else value.dtype.name, value.shape
        if dtype != self.dtype or not self._fits(shape):
            raise _refusal(
                "input {!r} wants {} {}, and got {} {}{}".format(
                    self.name,
                    self.dtype,
                    _shape_text(self.shape),
                    dtype,
                    _shape_text(shape),
                    f"; convert it with .astype({self.dtype!r})" if dtype != self.dtype else "",
                )
            )
        return value

    def _array(self, given: Any) -> Any:
        """``given`` as an array of a kind that onnxruntime reads rightly."""
        try:
            value = given.numpy() if isinstance(given, Tensor) else np.asarray(given)
        except ValueError as error:  # a list of lists of unequal lengths
            raise _refusal(f"input {self.name!r} cannot be made an array: {error}") from None
        if value.dtype.kind == "T":
            return value.astype(object)
        # It takes the bytes of other machines' numbers as they are, without a word.
        return value if value.dtype.isnative else value.astype(value.dtype.newbyteorder("="))

    def _fits(self, shape: Tuple[int, ...]) -> bool:
        # onnxruntime gives an empty shape for a scalar and for a tensor of unknown rank alike.
        if not self.shape:
            return True
        return len(shape) == len(self.shape) and all(
            not isinstance(want, int) or want < 0 or want == have for want, have in zip(self.shape, shape)
        )


def load(path: str, name: str) -> OnnxModule:
    """Load the model at ``path``, ``name`` in messages. Raises `ModelError`, in one line."""
    options = onnxruntime.SessionOptions()
    options.log_severity_level = 3  # what it would warn of comes back as an exception, or concerns nobody
    options.intra_op_num_threads = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 0
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    try:
        return OnnxModule(_session(path, options))
    except Exception as error:  # noqa: BLE001 - onnxruntime has a class of its own for each status
        why = " ".join(str(error).replace(path, name).split())
        raise model_error(f"{name} cannot be loaded: {why[:400]}") from None


def _session(path: str, options: Any) -> Any:
    providers = ["CPUExecutionProvider"]
    try:
        return onnxruntime.InferenceSession(path, options, providers=providers)
    except Exception as error:
        newest = re.search(r"max supported IR version: (\d+)", str(error))
        if newest is None:
            raise
    # The patched copy stands beside the model, so that external weights are still found.
    lowered = path + ".ir"
    try:
        with open(path, "rb") as model, open(lowered, "wb") as copy:
            copy.write(with_ir_version(model.read(), int(newest.group(1))))
        return onnxruntime.InferenceSession(lowered, options, providers=providers)
    finally:
        os.unlink(lowered)


def with_ir_version(model: bytes, version: int) -> bytes:
    """A serialised ModelProto with its IR version lowered to ``version`` (below 128).

    ``ir_version`` is field 1, a varint (onnx.proto). Protobuf takes the last of several values of such a
    field, so the new one is simply added behind.
    """
    return model + bytes([1 << 3, version])


def _ort_value(value: Any) -> Any:
    make = onnxruntime.OrtValue
    if isinstance(value, Tensor) and value.dtype in _RAW:
        number, same_width = _RAW[value.dtype]
        bits = np.frombuffer(value.data, same_width).reshape(value.shape)
        return make.ortvalue_from_numpy_with_onnx_type(bits, number)
    return make.ortvalue_from_numpy(value)


def _from_ort_value(value: Any) -> Any:
    name = _RAW_BY_NUMBER.get(value.element_type()) if value.is_tensor() else None
    if name is None:
        return value.numpy()
    size = value.tensor_size_in_bytes()
    return Tensor(name, value.shape(), bytearray(ctypes.string_at(value.data_ptr(), size)))


def _shape_text(shape: Sequence[Any]) -> str:
    return "[{}]".format(", ".join("?" if extent is None else str(extent) for extent in shape))


def _listed(names: Any) -> str:
    return ", ".join(repr(name) for name in names) or "none"


def _refusal(message: str) -> RemoteArgumentError:
    return RemoteArgumentError(message, type="RemoteArgumentError")
