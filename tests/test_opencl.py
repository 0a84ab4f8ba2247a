"""TVM's OpenCL runtime of native/tvm_opencl, with PoCL, in this process."""

from __future__ import annotations

import contextlib
import ctypes
import os
import shutil
import subprocess
import sys
import threading
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from rpcsys.module import container
from rpcsys.module.registry import File
from tests import opencl
from tests.opencl import LENGTH, Programs, weights

tvm = pytest.importorskip("tvm")

MEMORY = 1 << 30  # bytes that PoCL has in tests
NUMBERS = np.arange(LENGTH, dtype="float32")


@pytest.fixture(scope="module")
def device(opencl_library: Path) -> Any:
    ctypes.CDLL(str(opencl_library), ctypes.RTLD_GLOBAL)
    return tvm.opencl(0)


@pytest.fixture(scope="module")
def addone(device: Any, opencl_programs: Programs) -> Any:
    return tvm.runtime.load_module(str(opencl_programs.addone))["addone"]


def one_line(error: pytest.ExceptionInfo[BaseException]) -> str:
    text = str(error.value)
    assert "\n" not in text
    return text


# ---------------------------------------------------------------- devices and arrays


def test_a_device_describes_itself(device: Any) -> None:
    assert device.exist
    assert device.device_name
    assert device.compute_version.startswith("OpenCL ")
    assert device.api_version >= 120
    assert device.total_global_memory == MEMORY
    assert device.max_threads_per_block > 1
    assert device.max_shared_memory_per_block > 0
    assert device.multi_processor_count == 1
    assert len(device.max_thread_dimensions) == 3
    assert not tvm.opencl(99).exist
    assert not tvm.opencl(-1).exist


@pytest.mark.parametrize("shape", [(), (0,), (1,), (3, 0, 2), (1000, 3)])
def test_arrays_come_back_as_they_were(device: Any, shape: tuple[int, ...]) -> None:
    values = np.random.default_rng(0).standard_normal(shape).astype("float32")
    there = tvm.runtime.tensor(values, device)
    other = tvm.runtime.empty(shape, "float32", device)
    there.copyto(other)
    np.testing.assert_array_equal(there.numpy(), values)
    np.testing.assert_array_equal(other.numpy(), values)


def test_a_view_is_copied_from_where_it_begins(device: Any) -> None:
    there = tvm.runtime.tensor(NUMBERS, device)
    view = there._create_view((8,), relative_byte_offset=64)
    np.testing.assert_array_equal(view.numpy(), NUMBERS[16:24])
    tvm.runtime.tensor(np.zeros(8, "float32"), device).copyto(view)
    assert np.flatnonzero(there.numpy() != NUMBERS).tolist() == list(range(16, 24))


def test_memory_is_counted(device: Any) -> None:
    before = device.available_global_memory
    there = tvm.runtime.tensor(NUMBERS, device)
    assert device.available_global_memory == before - NUMBERS.nbytes
    del there
    assert device.available_global_memory == before


def test_a_full_device_says_what_was_asked_for_and_what_is_free(device: Any) -> None:
    before = device.available_global_memory
    kept = [tvm.runtime.empty((50 << 20,), "float32", device) for _ in range(before // (200 << 20))]
    free = device.available_global_memory
    with pytest.raises(MemoryError) as error:
        tvm.runtime.empty((50 << 20,), "float32", device)
    assert f"{200 << 20} bytes are asked for, {free} of {MEMORY} are free" in one_line(error)
    kept.clear()
    assert device.available_global_memory == before
    with pytest.raises(MemoryError) as error:
        tvm.runtime.empty((1 << 40,), "uint8", device)
    assert "one array has at most" in one_line(error)


def test_a_number_without_a_device_is_named(device: Any) -> None:
    with pytest.raises(RuntimeError) as error:
        tvm.runtime.empty((1,), "float32", tvm.opencl(3))
    assert one_line(error) == "there is no opencl:3 on this machine; the only one is opencl:0"


# ---------------------------------------------------------------- kernels


def test_a_function_runs(device: Any, addone: Any) -> None:
    y = tvm.runtime.empty((LENGTH,), "float32", device)
    addone(tvm.runtime.tensor(NUMBERS, device), y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS + 1)


@pytest.mark.parametrize("length", [0, 1, 33, LENGTH])
def test_numbers_are_arguments_too(device: Any, opencl_programs: Programs, length: int) -> None:
    scale = tvm.runtime.load_module(str(opencl_programs.scale))["scale"]
    y = tvm.runtime.empty((length,), "float32", device)
    scale(tvm.runtime.tensor(NUMBERS[:length], device), 2.5, y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS[:length] * 2.5)


def test_a_relax_program_runs(device: Any, opencl_programs: Programs) -> None:
    machine = tvm.relax.VirtualMachine(tvm.runtime.load_module(str(opencl_programs.relax)), device)
    x = np.random.default_rng(0).standard_normal((4, 8)).astype("float32")
    y = machine["main"](tvm.runtime.tensor(x, device))
    assert y.device == device
    np.testing.assert_allclose(y.numpy(), np.maximum(x @ weights(), 0), rtol=1e-5)


def test_threads_call_one_kernel(device: Any, addone: Any) -> None:
    """Each gets the results of its own arguments, which OpenCL keeps in the kernel."""
    wrong: list[float] = []

    def calls(number: int) -> None:
        x = tvm.runtime.tensor(np.full(LENGTH, number, "float32"), device)
        for _ in range(200):
            y = tvm.runtime.tensor(np.zeros(LENGTH, "float32"), device)
            addone(x, y)
            wrong.extend(value for value in y.numpy()[:1] if value != number + 1)

    threads = [threading.Thread(target=calls, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert wrong == []


def test_a_kernel_that_does_not_build_is_named_with_the_compilers_first_error(
    device: Any, addone: Any, opencl_programs: Programs
) -> None:
    wrong = tvm.runtime.load_module(str(opencl_programs.wrong))["addone"]
    x, y = (tvm.runtime.tensor(NUMBERS, device) for _ in range(2))
    for _ in range(2):
        with pytest.raises(RuntimeError) as error:
            wrong(x, y)
        text = one_line(error)
        assert text.startswith("kernel addone_kernel on opencl:0 does not build: ")
        assert "no_number_now" in text
    addone(x, y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS + 1)


def test_a_kernel_that_does_not_start_is_named(device: Any, addone: Any, opencl_programs: Programs) -> None:
    large = tvm.runtime.load_module(str(opencl_programs.large))["addone"]
    x, y = (tvm.runtime.tensor(NUMBERS, device) for _ in range(2))
    with pytest.raises(RuntimeError) as error:
        large(x, y)
    assert "has groups of 1048576 work items, which the device does not take: CL_INVALID_WORK_" in one_line(error)
    addone(x, y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS + 1)


def test_wrong_arguments_of_a_kernel_are_refused(device: Any, opencl_programs: Programs) -> None:
    kernel = tvm.runtime.load_module(str(opencl_programs.addone)).imports[0]["addone_kernel"]
    with pytest.raises(TypeError, match="takes 4 arguments with its sizes, not 1"):
        kernel(1)
    with pytest.raises(TypeError):
        kernel(1.5, "x", 1, 1)


# ---------------------------------------------------------------- modules


def payload(path: Path) -> bytes:
    """The bytes of the module of kind opencl in a library."""
    records = container.parse(File.map(str(path)).mapping).records
    return next(bytes(record.data) for record in records if record.kind == "opencl" and record.data is not None)


def load(data: bytes) -> Any:
    return tvm.get_global_func("ffi.Module.load_from_bytes.opencl")(data)


def test_a_module_that_was_just_compiled_runs_and_is_saved(
    device: Any, opencl_programs: Programs, tmp_path: Path
) -> None:
    """The plug-in makes it, since it is loaded here; the other library was compiled without it."""
    compiled = opencl.addone(256)
    (kernels,) = compiled.mod.imports
    assert kernels.kind == "opencl"
    assert "// Function: addone_kernel" in kernels.inspect_source()
    y = tvm.runtime.empty((LENGTH,), "float32", device)
    compiled["addone"](tvm.runtime.tensor(NUMBERS, device), y)
    np.testing.assert_array_equal(y.numpy(), NUMBERS + 1)
    compiled.export_library(str(tmp_path / "saved.so"))
    assert payload(tmp_path / "saved.so") == payload(opencl_programs.addone)


@settings(max_examples=200)
@given(data=st.data())
def test_broken_bytes_are_refused(device: Any, opencl_programs: Programs, data: st.DataObject) -> None:
    whole = payload(opencl_programs.addone)
    damaged = bytearray(whole[: data.draw(st.integers(0, len(whole)))])
    for _ in range(data.draw(st.integers(0, 4)) if damaged else 0):
        damaged[data.draw(st.integers(0, len(damaged) - 1))] = data.draw(st.integers(0, 255))
    with contextlib.suppress(ValueError):
        assert load(bytes(damaged)).kind == "opencl"


def test_another_form_of_kernels_is_refused(device: Any, opencl_programs: Programs) -> None:
    with pytest.raises(ValueError, match="has its kernels as 'xl', not as source"):
        load(payload(opencl_programs.addone).replace(b"cl", b"xl", 1))


# ---------------------------------------------------------------- other processes

ALONE = """
import ctypes, sys, tvm
for path in sys.argv[1:]:
    ctypes.CDLL(path, ctypes.RTLD_GLOBAL)
print(tvm.opencl(0).exist)
try:
    tvm.runtime.empty((1,), "float32", tvm.opencl(0))
except RuntimeError as error:
    print(error)
"""


def alone(*paths: Path, **environment: str) -> list[str]:
    command = [sys.executable, "-c", ALONE, *map(str, paths)]
    done = subprocess.run(command, env={**os.environ, **environment}, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    return done.stdout.splitlines()


def test_a_machine_without_a_driver_says_what_to_install(opencl_library: Path, tmp_path: Path) -> None:
    exists, error = alone(opencl_library, OCL_ICD_VENDORS=str(tmp_path))
    assert exists == "False"
    assert error.startswith("there is no OpenCL platform on this machine; install the driver")


def test_the_first_runtime_that_is_loaded_serves(opencl_library: Path, tmp_path: Path) -> None:
    other = shutil.copy(opencl_library, tmp_path / "other.so")
    assert alone(opencl_library, Path(other)) == ["True"]
