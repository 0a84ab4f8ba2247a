"""Native libraries as modules of a session: aligned arrays, results for the wire, errors of one sentence."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from rpcsys.errors import ModelError, NativeError, RemoteFunctionError
from rpcsys.ffi import library
from rpcsys.module import loading
from rpcsys.wire.tensor import Tensor
from tests.native import FUNCTIONS, compiled

LENGTH = 64


@pytest.fixture(scope="module")
def module(tmp_path_factory: pytest.TempPathFactory):
    if not library.present():
        pytest.skip("there is no libtvm_ffi here")
    path = compiled(FUNCTIONS, tmp_path_factory.mktemp("native") / "model.so", "-mavx")
    return loading.load_file(str(path), "model.so")


def at_offset(offset: int, count: int = LENGTH) -> np.ndarray:
    """An array of float32 at an address that is ``offset`` modulo 64."""
    block = np.zeros(4 * count + 128, "uint8")
    start = -block.ctypes.data % 64 + offset
    array = block[start : start + 4 * count].view("float32") if offset % 4 == 0 else None
    if array is None:
        array = np.ndarray((count,), "float32", block.data, start)
    assert array.ctypes.data % 64 == offset
    return array


def test_its_description(module) -> None:
    about = module.describe()
    assert about["kind"] == "_lib"
    assert about["functions"] == ["add", "describe", "double_it", "offset", "silent", "type"]


@pytest.mark.parametrize("offset", range(64))
def test_arrays_are_aligned_and_written_back(module, offset: int) -> None:
    x, y = at_offset(offset), at_offset(63 - offset)
    x[:] = np.arange(LENGTH)
    assert module.function("offset")(x) == 0
    module.function("double_it")(x, y)
    assert y.tolist() == (2 * np.arange(LENGTH)).tolist()


def test_an_array_that_is_passed_twice_is_one(module) -> None:
    x = at_offset(4)
    x[:] = np.arange(LENGTH)
    module.function("double_it")(x, x)
    assert x.tolist() == (2 * np.arange(LENGTH)).tolist()


def test_strided_arrays_are_written_back(module) -> None:
    x, y = np.arange(2.0 * LENGTH, dtype="float32")[::2], np.zeros((LENGTH, 3), "float32")[:, 1]
    module.function("double_it")(x, y)
    assert y.tolist() == (2 * x).tolist()


def test_a_read_only_array_can_be_read(module) -> None:
    x = np.frombuffer(np.arange(LENGTH + 1, dtype="float32").tobytes(), "float32")[1:]
    y = np.zeros(LENGTH, "float32")
    module.function("double_it")(x, y)
    assert y.tolist() == (2 * x).tolist()


def test_arrays_without_numpy(module) -> None:
    x, y = (Tensor("float32", (LENGTH,), bytearray(4 * LENGTH)) for _ in range(2))
    x.view()[:] = memoryview(np.ones(LENGTH, "float32"))
    module.function("double_it")(x, y)
    assert y.tolist() == [2.0] * LENGTH


def test_errors_are_native_ones(module) -> None:
    with pytest.raises(NativeError, match="takes two arrays"):
        module.function("double_it")(1, 2)
    with pytest.raises(RemoteFunctionError, match="'nowhere'; it has add, describe"):
        module.function("nowhere")
    with pytest.raises(RemoteFunctionError, match="no function 'main'"):
        module.run({"x": 1})


def load_code(folder: Path, code: str, *flags: str):
    source = folder / "f.c"
    source.write_text(code)
    return loading.load_file(str(compiled(source, folder / "f.so", *flags)), "f.so")


@pytest.mark.parametrize(
    ("code", "words"),
    [
        ("int f(void) { return 0; }", "exports no TVM-FFI function"),
        ("int g(void); int __tvm_ffi_main(void) { return g(); }", "f.so needs g, which no library"),
    ],
)
def test_a_library_that_cannot_run_is_an_error(code: str, words: str, tmp_path: Path) -> None:
    with pytest.raises(ModelError, match=words):
        load_code(tmp_path, code)


def test_the_error_names_a_missing_dependency(tmp_path: Path) -> None:
    (tmp_path / "g.c").write_text("int g(void) { return 0; }")
    compiled(tmp_path / "g.c", tmp_path / "libgone.so", "-Wl,-soname,libgone.so")
    code = "int g(void); int __tvm_ffi_main(void) { return g(); }"
    source = tmp_path / "f.c"
    source.write_text(code)
    path = compiled(source, tmp_path / "f.so", "-Wl,--no-as-needed", f"-L{tmp_path}", "-lgone")
    (tmp_path / "libgone.so").unlink()
    with pytest.raises(ModelError, match=r"f\.so needs the library libgone\.so, which is not on this device"):
        loading.load_file(str(path), "f.so")


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        (lambda data: b"", "is an empty file"),
        (lambda data: b"PK\3\4 a zip", "is not an ELF"),
        (lambda data: data[: len(data) // 2], "cut off"),
        (lambda data: data[:18] + b"\xb7\0" + data[20:], "built for aarch64"),
        (lambda data: data[:4] + b"\1" + data[5:], "f.so "),
    ],
)
def test_a_file_that_is_no_library_of_this_machine(damage, words: str, tmp_path: Path) -> None:
    source = tmp_path / "f.c"
    source.write_text("int __tvm_ffi_main(void) { return 0; }")
    path = compiled(source, tmp_path / "f.so")
    path.write_bytes(damage(path.read_bytes()))
    with pytest.raises(ModelError, match=words) as caught:
        loading.load_file(str(path), "f.so")
    assert "\n" not in caught.value.args[0]
