"""Native functions on a device: what is copied, what stays there, and what fails."""

from __future__ import annotations

from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest

from rpcsys.errors import ModelError, NativeError
from rpcsys.ffi import device_arrays
from rpcsys.module import export_library, library, load_module, loading, placement
from rpcsys.module.placement import DeviceArray
from tests import opencl, opencl_here
from tests.opencl_here import DEVICE

X = np.linspace(-1, 1, 32, dtype="float32").reshape(4, 8)


class Copies(NamedTuple):
    """Arrays that were copied to the device and back."""

    there: int
    back: int


class Counter:
    """Counts the copies since its start."""

    def __init__(self) -> None:
        self._start = self._now()

    @property
    def copies(self) -> Copies:
        return Copies(*(new - old for new, old in zip(self._now(), self._start, strict=True)))

    @staticmethod
    def _now() -> Copies:
        figures = placement.queue(DEVICE).figures
        return Copies(figures.copied_in, figures.copied_out)


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> opencl.Programs:
    return opencl_here.programs(tmp_path_factory)


@pytest.fixture
def counted(programs: opencl.Programs) -> Counter:
    return Counter()


def expected() -> np.ndarray:
    return np.maximum(X @ opencl.weights(), 0)


def test_a_program_runs_on_the_device_that_it_is_compiled_for(programs: opencl.Programs, counted: Counter) -> None:
    module = load_module(programs.relax)
    assert (module.device, module.devices) == (DEVICE, (DEVICE,))
    result = module(X)
    assert isinstance(result, DeviceArray)
    assert counted.copies == (1, 0)
    assert np.allclose(placement.on_host(result), expected(), rtol=1e-5)
    assert counted.copies == (1, 1)


def test_an_array_of_the_device_is_not_copied(programs: opencl.Programs, counted: Counter) -> None:
    x = device_arrays.copied(X, DEVICE)
    result = load_module(programs.relax, device="opencl")(x)
    assert counted.copies == (1, 0)
    assert np.allclose(result.to_host(), expected(), rtol=1e-5)


def test_an_array_of_another_device_goes_through_the_host(programs: opencl.Programs, counted: Counter) -> None:
    class Elsewhere(DeviceArray):
        dtype, shape, device, nbytes = "float32", (4, 8), "npu:3", 128

        def to_host(self) -> np.ndarray:
            return X

    result = load_module(programs.relax)(Elsewhere())
    assert counted.copies == (1, 0)
    assert placement.queue("npu:3").figures.copied_out == 1
    assert np.allclose(result.to_host(), expected(), rtol=1e-5)


@pytest.mark.parametrize("step", [1, 2])
def test_a_function_that_writes_into_its_arguments(programs: opencl.Programs, counted: Counter, step: int) -> None:
    module = load_module(programs.addone)
    x, y = np.arange(opencl.LENGTH, dtype="float32"), np.zeros(opencl.LENGTH * step, "float32")[::step]
    x.flags.writeable = False
    module["addone"](x, y)
    assert np.array_equal(y, x + 1)
    assert counted.copies == (2, 1)


def test_arrays_of_the_device_are_written_where_they_are(programs: opencl.Programs, counted: Counter) -> None:
    x, y = (device_arrays.copied(np.zeros(opencl.LENGTH, "float32"), DEVICE) for _ in range(2))
    addone = load_module(programs.addone)["addone"]
    addone(x, y)
    addone(y, x)
    assert counted.copies == (2, 0)
    assert (x.to_host() == 2).all()


def test_the_cpu_takes_an_array_of_a_device(programs: opencl.Programs, counted: Counter, artefacts) -> None:
    x, y = device_arrays.copied(np.ones(1024, "float32"), DEVICE), np.zeros(1024, "float32")
    load_module(artefacts.addone)["addone"](x, y)
    assert (y == 2).all()
    assert counted.copies == (1, 1)


def test_a_library_inside_a_library(programs: opencl.Programs, tmp_path: Path) -> None:
    path = tmp_path / "outer.so"
    inner = library(programs.relax, functions=["main"])
    assert inner.devices == (DEVICE,)
    export_library(inner, path)
    module = load_module(path)
    assert module.devices == (DEVICE,)
    assert np.allclose(placement.on_host(module(X)), expected(), rtol=1e-5)
    with pytest.raises(ModelError, match=r"relax\.so is compiled for opencl, not for cuda:0"):
        load_module(path, device="cuda:0")


@pytest.mark.parametrize(
    ("device", "words"),
    [
        ("cuda:0", r"relax\.so is compiled for opencl, not for cuda:0"),
        ("cpu:0", r"relax\.so is compiled for opencl, not for cpu:0"),
        ("opencl:77", r"relax\.so cannot be loaded: there is no opencl:77 on this machine"),
    ],
)
def test_another_device(programs: opencl.Programs, device: str, words: str) -> None:
    with pytest.raises(ModelError, match=words):
        load_module(programs.relax, device=device)


def test_a_program_of_the_cpu_on_a_device(programs: opencl.Programs, artefacts) -> None:
    with pytest.raises(ModelError, match=r"relax\.so is compiled for the CPU, not for opencl:0"):
        load_module(artefacts.relax, device=DEVICE)


def test_a_kind_that_the_runtime_lacks(programs: opencl.Programs, tmp_path: Path) -> None:
    path = tmp_path / "relax.so"
    path.write_bytes(programs.relax.read_bytes().replace(b"\6\0\0\0\0\0\0\0opencl", b"\6\0\0\0\0\0\0\0vulkan"))
    words = (
        r"relax\.so holds a module of kind 'vulkan', and TVM's runtime here has no Vulkan; build TVM with USE_VULKAN$"
    )
    with pytest.raises(ModelError, match=words):
        load_module(path)


@pytest.mark.parametrize("name", ["wrong", "large"])
def test_a_kernel_that_cannot_run(programs: opencl.Programs, name: str) -> None:
    """The call fails, and the device goes on."""
    x, y = np.zeros((2, opencl.LENGTH), "float32")
    with pytest.raises(NativeError):
        load_module(getattr(programs, name))["addone"](x, y)
    load_module(programs.addone)["addone"](x, y)
    assert (y == 1).all()


def test_an_array_that_has_no_room(programs: opencl.Programs) -> None:
    big = np.broadcast_to(np.float32(0), (1 << 33,))
    module = load_module(programs.relax)
    with pytest.raises(NativeError, match="opencl:0 has no room for an array of float32"):
        device_arrays.empty("float32", big.shape, DEVICE)
    assert np.allclose(module(X).to_host(), expected(), rtol=1e-5)


def test_a_loaded_program_stays_on_its_device(programs: opencl.Programs) -> None:
    module = loading.load_file(str(programs.relax), "relax.so")
    module.place(DEVICE)
    with pytest.raises(ModelError, match="it runs on opencl:0; load it again, with device='cuda:0'"):
        module.place("cuda:0")
