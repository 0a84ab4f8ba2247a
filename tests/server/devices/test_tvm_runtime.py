"""Which kinds of devices TVM's runtime has, with the libraries that a server loads."""

import json

import pytest

from rpcsys.ffi import library
from rpcsys.server.devices.search import DriverQuestion, DriverSearch
from tests.server.devices import fakes

#: What a library with an OpenCL runtime does when it is loaded.
REGISTERS = r"""
#include <stddef.h>
#include <stdint.h>
typedef struct { const char *data; size_t size; } bytes;
int TVMFFIFunctionCreate(void *, int (*)(void *, const void *, int32_t, void *), void (*)(void *), void **);
int TVMFFIFunctionSetGlobal(const bytes *, void *, int);
static int call(void *self, const void *args, int32_t count, void *result) { return 0; }
__attribute__((constructor)) static void start() {
    bytes name = {"device_api.opencl", 17};
    void *function;
    TVMFFIFunctionCreate(0, call, 0, &function);
    TVMFFIFunctionSetGlobal(&name, function, 1);
}
"""

pytestmark = pytest.mark.skipif(not library.has_runtime(), reason="there is no libtvm_runtime; pip install apache-tvm")


@pytest.mark.parametrize("loaded", [True, False])
def test_a_library_that_is_loaded_brings_a_kind(tmp_path, loaded):
    libraries = [fakes.library(tmp_path, "tvm_opencl.so", REGISTERS)] if loaded else []
    one = DriverSearch(
        {
            "opencl": DriverQuestion("OpenCL", [fakes.library(tmp_path, "libOpenCL.so.1", fakes.OPENCL)]),
            "tvm": DriverQuestion("TVM's runtime", [None, libraries, ["opencl", "vulkan"]]),
        }
    )
    one.wait()
    assert one.problems == []
    loaders = {each["name"]: each["loaders"] for each in json.loads(one.devices().described)}
    assert ("tvm" in loaders["opencl:0"]) == loaded
    assert "tvm" in loaders["cpu:0"]
