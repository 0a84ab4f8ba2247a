"""What every TVM session has, whichever way TVM's runtime is reached."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from rpcsys.errors import PathError
from rpcsys.server.session import tvm_session


def test_functions_stay_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"library")
    loaded: list[str] = []
    functions = tvm_session.functions(str(tmp_path), loaded.append)
    functions["load_module"]("a.so")
    assert loaded == [str(tmp_path / "a.so")]
    assert functions["workpath"]("sub/x") == str(tmp_path / "sub/x")
    assert Path(functions["workpath"]("")).samefile(tmp_path)
    assert functions["listdir"]("") == "a.so"
    (tmp_path / "link").symlink_to("a.so")
    assert functions["workpath"]("link") == str(tmp_path / "link")  # removing it removes the link
    (tmp_path / "link").unlink()
    assert functions["download_linked_module"]("a.so") == b"library"
    for name in ("workpath", "load_module", "listdir", "download_linked_module"):
        with pytest.raises(PathError):
            functions[name]("../x.so")


def test_no_name_is_the_directory_which_cannot_be_removed(tmp_path: Path) -> None:
    home = tmp_path / "empty"
    home.mkdir()
    path = tvm_session.functions(str(home), lambda path: path)["workpath"]("")
    with pytest.raises(OSError, match="Invalid argument"):
        os.rmdir(path)
    assert home.is_dir()


def test_a_file_that_is_not_there_is_named(tmp_path: Path) -> None:
    functions = tvm_session.functions(str(tmp_path), lambda path: path)
    for name in ("load_module", "download_linked_module"):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.so"):
            functions[name]("nowhere.so")
