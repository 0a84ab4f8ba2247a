"""Drivers that are not there: small libraries in C, compiled for a test."""

from __future__ import annotations

from pathlib import Path

from tests.native import compiled

#: Drivers that never load, and that end the process which loads them.
HANGS = "#include <unistd.h>\n__attribute__((constructor)) static void start() { for (;;) pause(); }"
CRASHES = "#include <stdlib.h>\n__attribute__((constructor)) static void start() { abort(); }"

#: OpenCL with one platform and two devices: a CPU, then a GPU. COUNT and GARBAGE change what it says.
OPENCL = r"""
#include <stdint.h>
#include <string.h>
#ifndef COUNT
#define COUNT 2
#endif
typedef uintptr_t *handles;
int clGetPlatformIDs(uint32_t room, handles out, uint32_t *count) {
    if (count) *count = 1;
    if (out && room) out[0] = 7;
    return 0;
}
static int say(const void *data, size_t size, size_t room, void *out, size_t *said) {
    if (said) *said = size;
    if (out) memcpy(out, data, size < room ? size : room);
    return 0;
}
int clGetPlatformInfo(uintptr_t platform, uint32_t what, size_t room, void *out, size_t *said) {
    return say("OpenCL 3.0 fake", 16, room, out, said);
}
int clGetDeviceIDs(uintptr_t platform, uint64_t kind, uint32_t room, handles out, uint32_t *count) {
    if (count) *count = COUNT;
    for (uint32_t i = 0; out && i < room && i < COUNT; i++) out[i] = i + 1;
    return platform == 7 ? 0 : -32;
}
int clGetDeviceInfo(uintptr_t device, uint32_t what, size_t room, void *out, size_t *said) {
#ifdef GARBAGE
    memset(out, 0xff, room);
    *said = (size_t)-1;
    return 0;
#endif
    uint64_t memory = device << 30, kind = device == 2 ? 4 : 2;
    if (what == 0x102B) return say(device == 2 ? "a GPU" : "a CPU", 6, room, out, said);
    if (what == 0x101F) return say(&memory, 8, room, out, said);
    if (what == 0x1000) return say(&kind, 8, room, out, said);
    return -30;
}
"""

#: CUDA, and HIP with -DHIP, with two devices.
CUDA = r"""
#include <stddef.h>
#include <string.h>
#ifdef HIP
#define OF(name, other) hip##other
#define VERSION 60032830
#else
#define OF(name, other) cu##name
#define VERSION 12040
#endif
int OF(Init, Init)(unsigned flags) { return flags ? 1 : STATUS; }
int OF(DeviceGetCount, GetDeviceCount)(int *count) { *count = 2; return 0; }
int OF(DeviceGet, DeviceGet)(int *device, int place) { *device = 10 + place; return 0; }
int OF(DeviceGetName, DeviceGetName)(char *name, int room, int device) {
    strncpy(name, device == 10 ? "first" : "second", room);
    return 0;
}
int OF(DeviceTotalMem_v2, DeviceTotalMem)(size_t *size, int device) { *size = (size_t)device << 30; return 0; }
int OF(DriverGetVersion, DriverGetVersion)(int *version) { *version = VERSION; return 0; }
"""

#: OpenVINO with a CPU and a GPU.
OPENVINO = r"""
#include <stddef.h>
#include <string.h>
#ifdef LONG
static char CPU[1 << 20] = {[0 ... (1 << 20) - 2] = 'x'};
#else
#define CPU "a CPU"
#endif
typedef struct { char **names; size_t count; } devices;
typedef struct { const char *number, *description; } version;
static char *names[] = {"CPU", "GPU.0"};
int ov_core_create(void **core) { *core = names; return 0; }
int ov_get_openvino_version(version *said) { said->number = "2026.4.1-22982-e213"; said->description = ""; return 0; }
int ov_core_get_available_devices(void *core, devices *found) {
    found->names = names;
    found->count = 2;
    return core == names ? 0 : -1;
}
int ov_core_get_property(void *core, const char *device, const char *what, char **value) {
    if (!strcmp(what, "FULL_DEVICE_NAME")) *value = !strcmp(device, "CPU") ? CPU : "a GPU";
    else if (!strcmp(what, "GPU_DEVICE_TOTAL_MEM_SIZE") && !strcmp(device, "GPU.0")) *value = "1024";
    else return -1;
    return 0;
}
"""


def library(folder: Path, name: str, source: str, *flags: str) -> str:
    """The path of a library of that name, compiled from ``source``."""
    file = folder / (name + ".c")
    file.write_text(source)
    return str(compiled(file, folder / name, *flags))
