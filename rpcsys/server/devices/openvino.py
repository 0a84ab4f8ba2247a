"""Devices by OpenVINO's library for C, which loads in a third of the time of its Python package."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List

from rpcsys.server.devices.reading import MAX_FOUND, check, load, text

_pointer = ctypes.c_void_p
_text = ctypes.c_char_p


class _Devices(ctypes.Structure):
    """ov_available_devices_t."""

    _fields_ = (("names", ctypes.POINTER(_text)), ("count", ctypes.c_size_t))


class _Version(ctypes.Structure):
    """ov_version_t."""

    _fields_ = (("number", _text), ("description", _text))


def find(library: str) -> List[Dict[str, Any]]:
    """OpenVINO's devices, with its own names. Raises OSError."""
    api = load(library, "ov_core_create", "ov_core_get_available_devices", "ov_core_get_property")
    core, devices, version = _pointer(), _Devices(), _Version()
    check("ov_core_create", api.ov_core_create(ctypes.byref(core)))
    check("ov_get_openvino_version", api.ov_get_openvino_version(ctypes.byref(version)))
    check("ov_core_get_available_devices", api.ov_core_get_available_devices(core, ctypes.byref(devices)))
    runtime = "OpenVINO " + text(version.number or b"").partition("-")[0]

    def said(device: bytes, what: bytes) -> str:
        value = _text()
        status = api.ov_core_get_property(core, _text(device), _text(what), ctypes.byref(value))
        return text(value.value or b"") if status == 0 else ""

    found = []
    for name in devices.names[: min(devices.count, MAX_FOUND)]:
        memory = said(name, b"GPU_DEVICE_TOTAL_MEM_SIZE") or said(name, b"NPU_DEVICE_TOTAL_MEM_SIZE")
        about = {"title": said(name, b"FULL_DEVICE_NAME"), "runtime": runtime, "number": text(name)}
        found.append({**about, "memory": int(memory) if memory.isdecimal() else 0})
    return found
