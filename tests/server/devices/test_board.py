"""What the board's files tell: libraries of drivers, NPUs, and what can use a kind of devices."""

import pytest

from rpcsys.server import capabilities
from rpcsys.server.devices import board


@pytest.fixture
def bare(tmp_path, monkeypatch):
    """A board without any driver; a folder for its libraries."""
    monkeypatch.setattr(board, "_CACHE", str(tmp_path / "ld.so.cache"))
    monkeypatch.setattr(board, "_FOLDERS", (str(tmp_path / "lib"),))
    monkeypatch.setattr(board, "_ACCEL", str(tmp_path / "accel"))
    monkeypatch.setattr(board, "_package", lambda name: None)
    monkeypatch.delenv("LD_LIBRARY_PATH", raising=False)
    (tmp_path / "lib").mkdir()
    return tmp_path


def test_no_driver_is_found_where_none_is(bare):
    assert board.drivers() == {}
    assert board.npus() == []


def test_libraries_are_found_in_the_loaders_cache(bare):
    listed = (
        "libcuda.so",
        "libcuda.so.1",
        "libvulkan.so.1",
        "libvulkan.so.1.3.239",
        "libamdhip64.so.6",
        "libOpenCLx.so.1",
    )
    (bare / "ld.so.cache").write_bytes(b"glibc-ld.so.cache1.1\0\1\2\0" + b"\0".join(map(str.encode, listed)) + b"\0")
    assert board.drivers() == {"cuda": "libcuda.so.1", "rocm": "libamdhip64.so.6", "vulkan": "libvulkan.so.1"}


def test_libraries_are_found_in_folders(bare, monkeypatch):
    (bare / "lib" / "libOpenCL.so.1").touch()
    (bare / "own").mkdir()
    (bare / "own" / "libopenvino_c.so.2641").touch()
    assert board.drivers() == {"opencl": "libOpenCL.so.1"}
    (bare / "ld.so.cache").touch()
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{bare}/absent:{bare}/own:")
    assert board.drivers() == {"openvino": "libopenvino_c.so.2641"}


def test_openvinos_library_is_found_in_its_package(bare, monkeypatch):
    monkeypatch.setattr(board, "_package", lambda name: str(bare / name))
    (bare / "openvino" / "libs").mkdir(parents=True)
    path = bare / "openvino" / "libs" / "libopenvino_c.so.2641"
    path.touch()
    assert board.drivers() == {"openvino": str(path)}


def test_npus_of_linux(bare):
    for number, driver in ((10, "amdxdna"), (2, "intel_vpu")):
        device = bare / "accel" / f"accel{number}" / "device"
        (bare / "drivers" / driver).mkdir(parents=True)
        device.mkdir(parents=True)
        (device / "driver").symlink_to(bare / "drivers" / driver)
        (device / "vendor").write_text("0x8086\n")
    assert board.npus() == [
        {"title": "intel_vpu 0x8086", "driver": "", "number": "2"},
        {"title": "amdxdna 0x8086", "driver": "", "number": "10"},
    ]


def test_what_can_use_a_kind_of_devices(bare, monkeypatch):
    monkeypatch.setattr(board, "_package", lambda name: str(bare / name))
    monkeypatch.setattr(capabilities, "installed", lambda name: name in ("onnxruntime", "openvino", "iree.runtime"))
    monkeypatch.setattr(board.library, "has_runtime", lambda: True)
    (bare / "onnxruntime" / "capi").mkdir(parents=True)
    for name in ("cuda", "qnn", "shared"):
        (bare / "onnxruntime" / "capi" / f"libonnxruntime_providers_{name}.so").touch()
    kinds = ("cpu", "cuda", "opencl", "npu", "openvino", "vulkan")
    assert {kind: list(board.loaders(kind, frozenset(["opencl"]))) for kind in kinds} == {
        "cpu": ["tvm", "onnxruntime", "openvino", "iree"],
        "cuda": ["onnxruntime", "iree"],
        "opencl": ["tvm"],
        "npu": ["onnxruntime"],
        "openvino": ["openvino"],
        "vulkan": ["iree"],
    }


def test_this_boards_cpu():
    cpu = board.cpu()
    assert cpu["title"]
    assert cpu["memory"] > 0
