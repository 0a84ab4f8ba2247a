"""Devices by Vulkan, in its own order."""

from __future__ import annotations

import ctypes
from typing import Any, Dict, List

from rpcsys.server.devices.reading import MAX_FOUND, check, load, text

_NO_DRIVER = -9  # VK_ERROR_INCOMPATIBLE_DRIVER: there is the loader, and no driver
_INCOMPLETE = 5  # there are more than the room that was given
_LOCAL = 1  # a heap is the device's own memory
_u32 = ctypes.c_uint32
_pointer = ctypes.c_void_p


class _Create(ctypes.Structure):
    """VkInstanceCreateInfo."""

    _fields_ = (
        ("type", _u32), ("next", _pointer), ("flags", _u32), ("application", _pointer),
        ("layer_count", _u32), ("layers", _pointer), ("extension_count", _u32), ("extensions", _pointer),
    )  # fmt: skip


class _Properties(ctypes.Structure):
    """The beginning of VkPhysicalDeviceProperties; the rest, of 824 bytes in all, is not read."""

    _fields_ = (
        ("api", _u32), ("driver", _u32), ("vendor", _u32), ("device", _u32), ("kind", _u32),
        ("name", ctypes.c_char * 256), ("rest", ctypes.c_uint64 * 128),
    )  # fmt: skip


class _Heap(ctypes.Structure):
    """VkMemoryHeap."""

    _fields_ = (("size", ctypes.c_uint64), ("flags", _u32))


class _Memory(ctypes.Structure):
    """VkPhysicalDeviceMemoryProperties."""

    _fields_ = (
        ("type_count", _u32), ("types", _u32 * 2 * 32), ("heap_count", _u32), ("heaps", _Heap * 16),
    )  # fmt: skip


def find(library: str) -> List[Dict[str, Any]]:
    """The physical devices. Raises OSError."""
    api = load(library, "vkCreateInstance", "vkEnumeratePhysicalDevices", "vkGetPhysicalDeviceProperties")
    instance, count = _pointer(), _u32()
    status = api.vkCreateInstance(ctypes.byref(_Create(type=1)), None, ctypes.byref(instance))
    if status == _NO_DRIVER:
        return []
    check("vkCreateInstance", status)
    check("vkEnumeratePhysicalDevices", api.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), None))
    count = _u32(min(count.value, MAX_FOUND))
    devices = (_pointer * count.value)()
    status = api.vkEnumeratePhysicalDevices(instance, ctypes.byref(count), devices)
    check("vkEnumeratePhysicalDevices", 0 if status == _INCOMPLETE else status)
    return [_describe(api, _pointer(device)) for device in devices[: count.value]]


def _describe(api: Any, device: Any) -> Dict[str, Any]:
    about, memory = _Properties(), _Memory()
    api.vkGetPhysicalDeviceProperties(device, ctypes.byref(about))
    api.vkGetPhysicalDeviceMemoryProperties(device, ctypes.byref(memory))
    heaps = memory.heaps[: min(memory.heap_count, 16)]
    return {
        "title": text(about.name),
        "memory": sum(heap.size for heap in heaps if heap.flags & _LOCAL),
        "driver": _version(about.driver),
        "runtime": f"Vulkan {_version(about.api)}",
    }


def _version(packed: int) -> str:
    """As Vulkan packs versions; some drivers pack their own in another way."""
    return f"{packed >> 22 & 0x7F}.{packed >> 12 & 0x3FF}.{packed & 0xFFF}"
