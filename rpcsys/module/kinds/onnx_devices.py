"""Runs ONNX models in onnxruntime with arrays in the memory of a device: inputs stay there, and outputs, too.

onnxruntime has such memory for CUDA. With its other providers inputs and outputs are arrays of the host.
"""

from __future__ import annotations

from typing import Any, Dict, List, Mapping, Optional, Tuple

import numpy as np
import onnxruntime

from rpcsys.ffi.tensors import NativeTensor
from rpcsys.module.kinds import onnx_session
from rpcsys.module.kinds.onnx_proto import NUMBERS
from rpcsys.module.kinds.onnx_providers import MEMORIES
from rpcsys.module.kinds.onnx_session import OnnxWeight, SessionRunner, from_ort, is_array, to_ort
from rpcsys.module.kinds.values import RAW
from rpcsys.module.placement import DeviceArray, on_host, queue
from rpcsys.wire import dtypes
from rpcsys.wire.device_names import parse

#: Numbers of element types that numpy has, as far as devices do -> their names.
_DTYPES = {number: name for name, number in NUMBERS.items() if name not in RAW}


class OrtArray(DeviceArray):
    """An array of onnxruntime in a device's memory; other libraries take it through ``__dlpack__``."""

    def __init__(self, value: Any, device: str) -> None:
        self.value = value
        self.device = device
        self.dtype = _DTYPES[value.element_type()]
        self.shape: Tuple[int, ...] = tuple(value.shape())

    @property
    def nbytes(self) -> int:
        return dtypes.item_bytes(self.dtype) * dtypes.count(self.shape)

    def to_host(self) -> Any:
        return from_ort(self.value)

    def __dlpack__(self, **how: Any) -> Any:
        return self.value.__dlpack__(stream=how.get("stream"))

    def __dlpack_device__(self) -> Any:
        return self.value.__dlpack_device__()


class DeviceRunner(SessionRunner):
    """A model that is ready to run on a device with memory of its own."""

    on_device = True

    def place(self, device: str) -> DeviceRunner:
        """Bind its arrays to ``device``. Returns itself."""
        kind, number = parse(device)
        self._device, self._memory = device, (MEMORIES[kind], int(number))
        return self

    def _run_with(self, how: Any, outputs: List[str], feeds: Dict[str, Any]) -> List[Any]:
        binding = self._session.io_binding()
        kept = [self._bind(binding, name, feed) for name, feed in feeds.items()]
        plain = {value.name for value in self.outputs if value.dtype in _DTYPES.values()}
        for name in outputs:
            binding.bind_output(name, *(self._memory if name in plain else ("cpu",)))
        self._session.run_with_iobinding(binding, how)
        binding.synchronize_outputs()
        del kept  # onnxruntime reads them until here
        return [self._given(value) for value in binding.get_outputs()]

    def _bind(self, binding: Any, name: str, feed: Any) -> Any:
        value = self._there(feed)
        if value is None:
            binding.bind_cpu_input(name, feed)
        else:
            binding.bind_ortvalue_input(name, value)
        return value

    def _there(self, feed: Any) -> Optional[Any]:
        """An input in the device's memory: itself if it lies there, else a copy; None for what is no plain array."""
        if isinstance(feed, OrtArray) and feed.device == self._device:
            return feed.value
        if isinstance(feed, NativeTensor) and feed.device == self._device:
            return onnxruntime.OrtValue.from_dlpack(feed)
        feed = on_host(feed)
        if not is_array(feed):
            return None
        if not isinstance(feed, np.ndarray):  # of a type that numpy lacks: onnxruntime copies it itself
            return to_ort(feed)
        queue(self._device).copied_in(feed.nbytes)
        return onnxruntime.OrtValue.ortvalue_from_numpy(np.asarray(feed, order="C"), *self._memory)

    def _given(self, value: Any) -> Any:
        if value.is_tensor() and value.device_name() == self._memory[0] and value.element_type() in _DTYPES:
            return OrtArray(value, self._device)
        return from_ort(value)


def of_file(path: str, options: Mapping[str, Any]) -> SessionRunner:
    """As `onnx_session.of_file`, for a model on a device."""
    return _placed(onnx_session.of_file(path, options, DeviceRunner), options)


def of_bytes(model: bytes, weights: Mapping[str, OnnxWeight], options: Mapping[str, Any]) -> SessionRunner:
    """As `onnx_session.of_bytes`, for a model on a device."""
    return _placed(onnx_session.of_bytes(model, weights, options, DeviceRunner), options)


def _placed(runner: Any, options: Mapping[str, Any]) -> SessionRunner:
    return runner.place(options["device"])  # type: ignore[no-any-return]
