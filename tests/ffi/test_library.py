"""Finding and loading the libraries."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.ffi import library
from tests.native import bare, compiled

LOAD = """
from rpcsys.errors import NativeError
from rpcsys.ffi import calls, library
library.use(sys.argv[1] if len(sys.argv) > 1 else None)
print(library.present(), library.has_runtime())
try:
    library.load_runtime()
    print(calls.get_global("rpc.ServerLoop").__name__)
except NativeError as error:
    print(error.kind, error)
"""


def test_libraries_in_the_named_folder(tvm_libraries: Path, tmp_path: Path) -> None:
    found = library.find(str(tvm_libraries))
    assert found is not None
    assert [Path(path).name for path in found if path] == [library.FFI, library.RUNTIME]
    assert library.find(str(tmp_path)) is None
    (tmp_path / library.FFI).touch()
    assert library.find(str(tmp_path)) == (str(tmp_path / library.FFI), None)


def test_only_the_named_folder_is_searched(tmp_path: Path) -> None:
    try:
        library.use(str(tmp_path))
        assert library.find() is None
    finally:
        library.use(None)


def test_python_without_packages_loads_them(board: Path, tvm_libraries: Path) -> None:
    assert bare(board, LOAD, tvm_libraries).splitlines() == ["True True", "rpc.ServerLoop"]


def test_libraries_beside_the_package(board: Path, tvm_libraries: Path, tmp_path: Path) -> None:
    (tmp_path / "rpcsys").symlink_to(board / "rpcsys")
    (tmp_path / "lib").symlink_to(tvm_libraries)
    code = "import os; real = os.path.abspath; os.path.abspath = lambda path: real(path)\n" + LOAD
    assert bare(tmp_path, code).splitlines() == ["True True", "rpc.ServerLoop"]


def test_missing_libraries_are_an_error(board: Path) -> None:
    first, second = bare(board, LOAD).splitlines()
    assert first == "False False"
    assert second.startswith("LibraryMissing there is no libtvm_ffi")
    assert "--tvm-library" in second


@pytest.mark.parametrize("content", [b"", b"no library"])
def test_a_broken_library_is_an_error(board: Path, tmp_path: Path, content: bytes) -> None:
    for name in (library.FFI, library.RUNTIME):
        (tmp_path / name).write_bytes(content)
    assert "LibraryBroken" in bare(board, LOAD, tmp_path)


def test_another_library_of_that_name_is_an_error(board: Path, functions_so: Path, tmp_path: Path) -> None:
    source = tmp_path / "empty.c"
    source.write_text("int nothing;")
    compiled(source, tmp_path / library.FFI)
    assert "too old or too new" in bare(board, LOAD, tmp_path)


BESIDE = """
from rpcsys.errors import NativeError
from rpcsys.ffi import library
library.use(sys.argv[1])
for _ in range(2):
    library.beside(sys.argv[2:])
    for _ in range(2):
        try:
            library.load_runtime()
            print("loaded")
        except NativeError as error:
            print(error.kind, error)
"""


def test_libraries_beside_it_are_loaded_behind_it(board: Path, tvm_libraries: Path, tmp_path: Path) -> None:
    source = tmp_path / "driver.c"
    source.write_text(
        "int TVMBackendFreeWorkspace(int, int, void *); void *use(void) { return TVMBackendFreeWorkspace; }"
    )
    driver = compiled(source, tmp_path / "driver.so", "-Wl,-z,now")  # it needs libtvm_runtime when it is opened
    assert bare(board, BESIDE, tvm_libraries, driver).splitlines() == ["loaded"] * 4


def test_a_library_beside_it_that_does_not_load_is_an_error_each_time(
    board: Path, tvm_libraries: Path, tmp_path: Path
) -> None:
    (tmp_path / "driver.so").write_bytes(b"no library")
    lines = bare(board, BESIDE, tvm_libraries, tmp_path / "driver.so").splitlines()
    assert len(lines) == 4
    assert all(line.startswith(f"LibraryBroken {tmp_path / 'driver.so'} does not load: ") for line in lines)


def test_a_file_that_replaced_another_one_has_a_path_of_its_own(tmp_path: Path) -> None:
    """dlopen takes a path that it has opened for the same library."""
    path, paths, kept = tmp_path / "f.so", [], []
    for number in range(20):
        fresh = tmp_path / "fresh"
        fresh.write_text(str(number))
        fresh.replace(path)
        kept.append(path.open())  # as a loaded library keeps its inode
        paths.append(library.to_open(str(path)))
        assert Path(paths[-1]).read_text() == str(number)
        assert library.to_open(str(path)) == paths[-1]
    assert paths[0] == str(path)
    assert len(set(paths)) == 20
    assert max(map(len, paths)) < len(str(path)) + 11
    for file in kept:
        file.close()


def test_a_path_without_a_folder_is_of_this_folder() -> None:
    assert library.to_open("nowhere.so") == "./nowhere.so"
    assert library.to_open("/nowhere/f.so") == "/nowhere/f.so"
