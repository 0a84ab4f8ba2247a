"""Devices by OpenCL. Those that are no GPUs come last: TVM's runtime counts its devices of that kind so."""

from __future__ import annotations

import ctypes
import functools
from typing import Any, Dict, List

from rpcsys.server.devices.reading import MAX_FOUND, check, load, text

_NO_PLATFORM = -1001  # there is the loader, and no driver
_NO_DEVICE = -1
_ALL, _GPU = 0xFFFFFFFF, 1 << 2
_TYPES = {"cpu": 1 << 1, "gpu": _GPU, "accelerator": 1 << 3}
_PLATFORM_VERSION = 0x0901
_NAME, _DRIVER, _MEMORY, _TYPE = 0x102B, 0x102D, 0x101F, 0x1000
_handle = ctypes.c_void_p


def find(library: str) -> List[Dict[str, Any]]:
    """The devices of all platforms. Raises OSError."""
    api = load(library, "clGetPlatformIDs", "clGetPlatformInfo", "clGetDeviceIDs", "clGetDeviceInfo")
    found = []
    for platform in _handles(api.clGetPlatformIDs, _NO_PLATFORM):
        runtime = text(_said(api.clGetPlatformInfo, platform, _PLATFORM_VERSION))
        devices = functools.partial(api.clGetDeviceIDs, platform, ctypes.c_uint64(_ALL))
        for device in _handles(devices, _NO_DEVICE):
            name, driver, memory, kind = (
                _said(api.clGetDeviceInfo, device, what) for what in (_NAME, _DRIVER, _MEMORY, _TYPE)
            )
            bits = _number(kind)
            about = {"title": text(name), "driver": text(driver), "runtime": runtime, "memory": _number(memory)}
            about["type"] = next((name for name, bit in _TYPES.items() if bits & bit), "")
            found.append((not bits & _GPU, about))
    return [about for _, about in sorted(found, key=lambda each: each[0])]


def _handles(ask: Any, none: int) -> List[Any]:
    """The handles that a function gives which takes a room, an array and a count; ``none``: its status for none."""
    count = ctypes.c_uint32()
    status = ask(0, None, ctypes.byref(count))
    if status == none:
        return []
    check("clGetPlatformIDs or clGetDeviceIDs", status)
    room = min(count.value, MAX_FOUND)
    array = (_handle * room)()
    check("clGetPlatformIDs or clGetDeviceIDs", ask(room, array, None))
    return [_handle(each) for each in array]


def _said(ask: Any, handle: Any, what: int) -> bytes:
    """What one of the functions for facts says; empty where it says nothing."""
    room = ctypes.create_string_buffer(1024)
    size = ctypes.c_size_t()
    status = ask(handle, ctypes.c_uint32(what), ctypes.c_size_t(len(room)), room, ctypes.byref(size))
    return room.raw[: min(size.value, len(room))] if status == 0 else b""


def _number(data: bytes) -> int:
    return int.from_bytes(data[:8], "little")
