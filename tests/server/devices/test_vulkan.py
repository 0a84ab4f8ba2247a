"""Devices by Vulkan: lavapipe's, and those of a driver that says nonsense."""

import pytest

from rpcsys.server.devices import board, vulkan
from rpcsys.server.devices.reading import MAX_FOUND
from tests.server.devices import fakes

FAKE = r"""
#include <stdint.h>
#include <string.h>
int vkCreateInstance(const uint32_t *create, void *allocator, void **instance) {
    *instance = instance;
    return *create == 1 ? STATUS : -1;
}
int vkEnumeratePhysicalDevices(void *instance, uint32_t *count, uintptr_t *out) {
    if (out) for (uint32_t i = 0; i < *count; i++) out[i] = i + 1;
    else *count = 4000000000u;
    return out ? 5 : 0;
}
void vkGetPhysicalDeviceProperties(void *device, void *out) { memset(out, 'x', 824); }
void vkGetPhysicalDeviceMemoryProperties(void *device, void *out) { memset(out, 0xff, 520); }
"""


def fake(folder, status):
    return vulkan.find(fakes.library(folder, "libvulkan.so.1", FAKE, f"-DSTATUS={status}"))


def test_a_count_of_billions_and_a_name_without_an_end_are_cut(tmp_path):
    found = fake(tmp_path, 0)
    assert len(found) == MAX_FOUND
    assert len(found[0]["title"]) == 256
    assert found[0]["memory"] == 16 * (2**64 - 1)


def test_a_loader_without_a_driver_has_no_device(tmp_path):
    assert fake(tmp_path, -9) == []


def test_a_failure_is_told(tmp_path):
    with pytest.raises(OSError, match="vkCreateInstance failed with status -3"):
        fake(tmp_path, -3)


def test_this_machines_devices():
    path = board.drivers().get("vulkan")
    if path is None:
        pytest.skip("this machine has no Vulkan; Debian: apt-get install libvulkan1 mesa-vulkan-drivers")
    found = vulkan.find(path)
    assert found
    for each in found:
        assert each["title"]
        assert each["runtime"].startswith("Vulkan 1.")
        assert 0 < each["memory"] < 1 << 50
