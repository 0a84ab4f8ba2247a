"""Fixtures of the tests of native code."""

from __future__ import annotations

from pathlib import Path

import pytest

from rpcsys.ffi import library
from rpcsys.ffi.module import Library
from tests.native import FUNCTIONS, compiled, lay_out


@pytest.fixture(scope="session")
def functions_so(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """functions.c, compiled."""
    return compiled(FUNCTIONS, tmp_path_factory.mktemp("native") / "functions.so")


@pytest.fixture(scope="session")
def board(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The device tier only, without any TVM library."""
    return lay_out(tmp_path_factory.mktemp("board"))


@pytest.fixture(scope="session")
def tvm_ffi() -> None:
    """libtvm_ffi is loaded."""
    if not library.present():
        pytest.skip("there is no libtvm_ffi here")
    library.api()


@pytest.fixture(scope="session")
def native(tvm_ffi: None, functions_so: Path) -> Library:
    """functions.c, loaded."""
    return Library(str(functions_so))


@pytest.fixture(scope="session")
def tvm_libraries(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with only libtvm_ffi and libtvm_runtime."""
    found = library.find()
    if found is None or found.runtime is None:
        pytest.skip("there is no libtvm_runtime here")
    folder = tmp_path_factory.mktemp("libraries")
    for path in found:
        (folder / Path(path).name).symlink_to(path)
    return folder
