"""Arrays in the memory of a device that TVM's runtime drives: copied there, and back.

TVM's runtime has a device if it has the code for its kind (a registered ``device_api.KIND``), and its driver finds it.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Tuple

from rpcsys.errors import NativeError, one_line
from rpcsys.ffi import library
from rpcsys.ffi.abi import DType
from rpcsys.ffi.calls import Device, find_global, known_global
from rpcsys.ffi.library import Object
from rpcsys.ffi.memory import address_of
from rpcsys.ffi.tensors import NativeTensor
from rpcsys.module.placement import DeviceArray, queue
from rpcsys.wire import device_names, dtypes
from rpcsys.wire.memory import Pool
from rpcsys.wire.tensor import Tensor, as_array, as_tensor

#: Kinds of devices that TVM may have code for -> their names for people, as in the option ``USE_OPENCL`` of its build.
TITLES = {
    "cuda": "CUDA", "opencl": "OpenCL", "vulkan": "Vulkan", "metal": "Metal", "rocm": "ROCm", "webgpu": "WebGPU",
    "hexagon": "Hexagon",
}  # fmt: skip
_EXISTS = 0  # the number of the attribute in TVM's device API


class TvmArray(NativeTensor, DeviceArray):
    """An array in a device's memory. Native functions of its device take it, and others through ``__dlpack__``."""

    def __init__(self, native: Object) -> None:
        super().__init__(native)
        self._item = dtypes.item_bytes(self.dtype)

    @property
    def nbytes(self) -> int:
        return self._item * dtypes.count(self.shape)

    def to_host(self) -> Any:
        block = Pool().take(self.nbytes)
        if self.nbytes:
            self._copy("runtime.TVMTensorCopyToBytes", block)
        return as_array(Tensor(self.dtype, self.shape, block))

    def fill(self, data: memoryview) -> None:
        """Copy ``data``, its elements in C order, into it. Raises `NativeError` if the device fails."""
        if data.nbytes:
            self._copy("runtime.TVMTensorCopyFromBytes", data)

    def _copy(self, function: str, data: memoryview) -> None:
        known_global(function)(self, ctypes.c_void_p(address_of(data)), data.nbytes)


def copied(array: Any, device: str) -> TvmArray:
    """A copy of a host's array in the memory of ``device``, counted there. Raises `NativeError`."""
    tensor = as_tensor(array)
    if tensor is None:
        raise NativeError(f"a {type(array).__name__} is no array that {device} could hold", kind="TypeError")
    made = empty(tensor.dtype, tensor.shape, device)
    made.fill(memoryview(tensor.data))
    queue(device).copied_in(made.nbytes)
    return made


def empty(dtype: str, shape: Tuple[int, ...], device: str) -> TvmArray:
    """An array in the memory of ``device``, its elements undefined. Raises `NativeError` if there is no room."""
    place = device_of(device)
    try:
        made = known_global("runtime.TVMTensorAllocWithScope").raw(_shape(tuple(shape)), DType(dtype), place, None)
    except NativeError as error:
        text = f"{device} has no room for an array of {dtype} {list(shape)}: {one_line(error)}"
        raise NativeError(text, kind=error.kind) from None
    return TvmArray(made)


@functools.lru_cache(maxsize=1024)
def _shape(extents: Tuple[int, ...]) -> Object:
    """A shape as a native object, made once."""
    return known_global("ffi.Shape").raw(*extents)


def synchronise(device: str) -> None:
    """Wait until ``device`` has done all that it was given. Raises `NativeError` for work that failed."""
    known_global("runtime.Device_StreamSync")(device_of(device), 0)


@functools.lru_cache(maxsize=None)
def device_of(name: str) -> Device:
    """The device in TVM's terms. Raises `NativeError`, in one line, if TVM's runtime here does not have it."""
    device = device_names.parse(name)
    library.load_runtime()
    lacking = missing(device.kind)
    if lacking:
        raise NativeError(f"{name} cannot be used: {lacking}")
    assert device.dlpack is not None
    place = Device(device.dlpack, int(device.number))
    if not known_global("runtime.GetDeviceAttr")(*place, _EXISTS):
        raise NativeError(f"there is no {name} on this machine; is its driver installed, and may this user open it?")
    return place


def missing(kind: str) -> str:
    """What TVM's runtime here lacks for devices of that kind, and what to do, as text; empty if nothing."""
    if kind != device_names.CPU.kind and kind not in TITLES:
        return f"TVM has no devices of kind {kind}"
    if kind == device_names.CPU.kind or find_global(f"device_api.{kind}") is not None:
        return ""
    how = f"build TVM with USE_{TITLES[kind].upper()}"
    own = " or load native/tvm_opencl with --load-library" if kind == "opencl" else ""
    return f"TVM's runtime here has no {TITLES[kind]}; {how}{own}"
