"""Devices by NVIDIA's CUDA, and by AMD's HIP, which has the same functions under other names."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List, Tuple

from rpcsys.server import versions
from rpcsys.server.devices.reading import MAX_FOUND, check, load, text, version

_NO_DEVICE = 100  # of both
_NAMES = ("Init", "DeviceGetCount", "DeviceGet", "DeviceGetName", "DeviceTotalMem_v2", "DriverGetVersion")
_HIP_NAMES = ("Init", "GetDeviceCount", "DeviceGet", "DeviceGetName", "DeviceTotalMem", "DriverGetVersion")


def find(library: str) -> List[Dict[str, Any]]:
    """The devices of CUDA. Raises OSError."""
    return _find(library, "cu", _NAMES, "CUDA", (1000, 10))


def find_rocm(library: str) -> List[Dict[str, Any]]:
    """The devices of HIP. Raises OSError."""
    return _find(library, "hip", _HIP_NAMES, "ROCm", (10_000_000, 100_000, 1))


def _find(
    library: str, prefix: str, names: Tuple[str, ...], runtime: str, units: Tuple[int, ...]
) -> List[Dict[str, Any]]:
    names = tuple(prefix + name for name in names)
    api = load(library, *names)
    init, count, get, name, memory, driver = (getattr(api, each) for each in names)
    status = init(0)
    if status == _NO_DEVICE:
        return []
    check(names[0], status)
    found, number = [], ctypes.c_int()
    kernel = versions.driver() if prefix == "cu" else ""
    check(names[5], driver(ctypes.byref(number)))
    runtime = f"{runtime} {version(number.value, *units)}"
    status = count(ctypes.byref(number))
    if status == _NO_DEVICE:
        return []
    check(names[1], status)
    for place in range(min(number.value, MAX_FOUND)):
        device, title, size = ctypes.c_int(), ctypes.create_string_buffer(256), ctypes.c_size_t()
        check(names[2], get(ctypes.byref(device), place))
        check(names[3], name(title, len(title) - 1, device))
        check(names[4], memory(ctypes.byref(size), device))
        found.append({"title": text(title.raw), "memory": size.value, "runtime": runtime, "driver": kernel})
    return found
