"""Calls of native functions in a session: arguments where the function can use them, results arrays.

A function on a device takes arrays in its memory. Arrays of the host are copied there, and those of other devices, too;
a function that writes into its arguments has them copied back. Its results stay there.
"""

from __future__ import annotations

from typing import Any, Callable, Dict

from rpcsys.ffi import device_arrays
from rpcsys.ffi.memory import Memory, address_of, locate
from rpcsys.ffi.tensors import NativeTensor, TensorView
from rpcsys.module.placement import HOST, DeviceArray, on_host
from rpcsys.wire.memory import ALIGNMENT, Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor


def adapted(native: Callable[..., Any], device: str = "", writes: bool = True) -> Callable[..., Any]:
    """Wrap a native function for a session's calls. It returns when its work is done.

    ``device``: where it runs, "" for the CPU. ``writes``: whether it writes into its arguments.
    """

    def call(*args: Any) -> Any:
        copies: Dict[Any, _Copy] = {}
        result = native(*[_argument(arg, copies, device) for arg in args])
        if device:
            device_arrays.synchronise(device)
        if writes or not device:
            for copy in copies.values():
                copy.write_back()
        return result if result is None else _result(result, device, writes)

    call.__name__ = getattr(native, "__name__", "")
    return call


def _argument(value: Any, copies: Dict[Any, _Copy], device: str) -> Any:
    if type(value) in (int, float, str, bool, bytes) or value is None:
        return value
    if isinstance(value, (list, tuple)):
        return tuple(_argument(item, copies, device) for item in value)
    if isinstance(value, DeviceArray):
        return _moved(value, device)
    memory = locate(value)
    if memory is None:
        return value
    if not device and memory.address % ALIGNMENT == 0 and memory.strides is None:
        return memory
    place = memory[:4]
    if place not in copies:  # an array that is passed twice must be one array for the function, too
        copies[place] = _Copy(value, memory, device)
    return copies[place].array


def _moved(array: DeviceArray, device: str) -> Any:
    """An array of a device for a function on ``device``: itself if it lies there, else a copy through the host."""
    if array.device == device and hasattr(array, "__dlpack__"):
        return array
    return device_arrays.copied(on_host(array), device) if device else on_host(array)


class _Copy:
    """A copy of an array in memory that native code can use, in place of one that it cannot."""

    def __init__(self, value: Any, original: Memory, device: str) -> None:
        tensor = as_tensor(value)
        assert tensor is not None
        self._value = value
        self._original = original
        self._source = memoryview(tensor.data)
        self.array: Any
        if device:
            self.array = device_arrays.copied(tensor, device)
            return
        self._block = Pool().take(self._source.nbytes)
        self._block[:] = self._source
        self.array = Memory(address_of(self._block), original.dtype, original.shape, None, False, self._block)

    def write_back(self) -> None:
        """Copy what the function wrote back into the original array."""
        if self._original.readonly:
            return
        if isinstance(self.array, DeviceArray):
            written = as_tensor(on_host(self.array))
            assert written is not None
            self._block = memoryview(written.data)
        if self._original.strides is None:
            self._source[:] = self._block
        else:  # only numpy has such arrays
            self._value[...] = Tensor(self._original.dtype, self._original.shape, self._block).numpy()


def _result(value: Any, device: str, writes: bool) -> Any:
    if isinstance(value, TensorView):
        if isinstance(value, NativeTensor) and value.device != HOST:
            return device_arrays.TvmArray(value.object)
        return as_array(Tensor(value.dtype, value.shape, value.data))
    if isinstance(value, (tuple, list)) and type(value) in (tuple, list):
        return type(value)(_result(item, device, writes) for item in value)
    if isinstance(value, dict):
        return {key: _result(item, device, writes) for key, item in value.items()}
    return adapted(value, device, writes) if callable(value) else value
