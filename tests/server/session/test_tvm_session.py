"""The functions of every TVM session, and sessions by the tvm package."""

from __future__ import annotations

import ctypes
import subprocess
import tarfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from rpcsys.errors import PathError
from rpcsys.server.session import tvm_session
from tests.device import until
from tests.live.daemons import Daemons


def test_functions_stay_in_the_directory(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"library")
    loaded: list[str] = []
    files = tvm_session.SessionFiles(loaded.append, str(tmp_path))
    files.load_module("a.so")
    assert loaded == [str(tmp_path / "a.so")]
    assert files.workpath("sub/x") == str(tmp_path / "sub/x")
    assert files.listdir("") == "a.so"
    assert files.download_linked_module("a.so") == b"library"
    for name in ("workpath", "remove", "load_module", "listdir", "download_linked_module"):
        with pytest.raises(PathError):
            getattr(files, name)("../x.so")


def test_the_name_of_a_loaded_library_is_of_a_copy_before_it_is_written(tmp_path: Path) -> None:
    library = tmp_path / "a.so"
    library.write_bytes(b"library")
    files = tvm_session.SessionFiles(str, str(tmp_path))
    files.load_module("a.so")
    with library.open("rb") as mapped:
        Path(files.workpath("a.so")).write_bytes(b"another")
        assert mapped.read() == b"library"
    assert [file.name for file in tmp_path.iterdir()] == ["a.so"]
    number = library.stat().st_ino
    assert Path(files.workpath("a.so")).stat().st_ino == number  # not loaded again since


def test_the_name_of_a_loaded_library_may_be_gone(tmp_path: Path) -> None:
    (tmp_path / "a.so").write_bytes(b"library")
    files = tvm_session.SessionFiles(str, str(tmp_path))
    files.load_module("a.so")
    (tmp_path / "a.so").unlink()
    assert files.workpath("a.so") == str(tmp_path / "a.so")
    assert list(tmp_path.iterdir()) == []


def test_the_functions_are_registered_once_for_all_sessions(tmp_path: Path) -> None:
    registered: dict[str, Callable[..., Any]] = {"rpc.ServerLoop": print}
    runtime = tvm_session.Runtime(registered.__setitem__, registered.__getitem__, str)
    files = tvm_session.prepare(runtime)
    names = {"ServerLoop", "workpath", "remove", "load_module", "listdir", "download_linked_module"}
    assert {name.rpartition(".")[2] for name in registered} == names
    assert tvm_session.prepare(runtime) is files
    files.workdir = str(tmp_path)
    assert registered["tvm.rpc.server.workpath"]("a.so") == str(tmp_path / "a.so")


def test_what_a_client_removes(tmp_path: Path) -> None:
    files = tvm_session.SessionFiles(str, str(tmp_path))
    (tmp_path / "link").symlink_to("x.bin")
    (tmp_path / "x.bin").write_bytes(b"data")
    (tmp_path / "folder").mkdir()
    (tmp_path / "full").mkdir()
    (tmp_path / "full/a.so").write_bytes(b"library")
    for name in ("link", "folder", "full", "nowhere", "", "."):
        files.remove(name)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["full", "x.bin"]
    files.load_module("full/a.so")
    files.remove("full/a.so")
    assert list((tmp_path / "full").iterdir()) == []  # no copy of a removed library stays


def test_an_empty_name_removes_nothing(tmp_path: Path) -> None:
    home = tmp_path / "home"
    home.mkdir()
    tvm_session.SessionFiles(str, str(home)).remove("")
    assert home.is_dir()


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    files = tvm_session.SessionFiles(str, str(tmp_path))
    for name in ("load_module", "download_linked_module"):
        with pytest.raises(FileNotFoundError, match=r"nowhere\.so"):
            getattr(files, name)("nowhere.so")


# ---------------------------------------------------------------- linking


@pytest.fixture
def made(tmp_path: Path) -> Path:
    """An object file with ``int answer(void)``."""
    source = tmp_path / "f.c"
    source.write_text("int answer(void) { return 42; }")
    subprocess.run(["cc", "-fPIC", "-c", str(source), "-o", str(tmp_path / "f.o")], check=True)
    return tmp_path / "f.o"


def test_an_object_file_is_linked(made: Path) -> None:
    assert ctypes.CDLL(tvm_session.link(str(made))).answer() == 42


def test_a_tar_is_linked_inside_the_directory(made: Path) -> None:
    path = made.with_name("f.tar")
    with tarfile.open(path, "w") as archive:
        archive.add(made, "../../outside/f.o")
    assert ctypes.CDLL(tvm_session.link(str(path))).answer() == 42
    assert not (made.parent.parent.parent / "outside").exists()


def test_a_library_is_not_linked_again() -> None:
    assert tvm_session.link("/models/a.so") == "/models/a.so"


def test_other_files_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"notes\.txt"):
        tvm_session.link("/models/notes.txt")
    broken = tmp_path / "broken.tar"
    broken.write_bytes(b"x" * 1024)
    with pytest.raises(ValueError, match=r"broken\.tar"):
        tvm_session.link(str(broken))


def test_a_missing_compiler_is_an_error(made: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", str(made.parent))
    monkeypatch.delenv("CXX", raising=False)
    with pytest.raises(RuntimeError, match="no compiler"):
        tvm_session.link(str(made))


def test_the_linkers_message_is_in_the_error(tmp_path: Path) -> None:
    broken = tmp_path / "broken.o"
    broken.write_bytes(b"no object")
    with pytest.raises(RuntimeError, match=r"broken\.o cannot be linked"):
        tvm_session.link(str(broken))


# ---------------------------------------------------------------- through the tvm package


@pytest.fixture(scope="module")
def server(tmp_path_factory):
    pytest.importorskip("tvm")
    daemons = Daemons(tmp_path_factory.mktemp("daemons"))
    yield daemons.server("k", "--slots", "2")
    daemons.stop()


@pytest.fixture
def remote(server, request):
    from tvm import rpc

    yield rpc.connect(*server.address, key="k")
    request.node.funcargs.clear()  # the session ends with the last reference to it


@pytest.mark.live
def test_names_outside_the_directory_are_refused(remote, server, tmp_path):
    from tvm.error import RPCError

    secret = tmp_path / "secret"
    secret.write_text("s")
    remote.upload(bytearray(b"abc"), "x.bin")
    assert remote.download("x.bin") == b"abc"
    for name in (str(secret), "../../secret", "/etc/passwd"):
        for act in (remote.download, remote.remove, remote.load_module, remote.listdir):
            with pytest.raises(RPCError, match="directory"):
                act(name)
        with pytest.raises(RPCError, match="directory"):
            remote.upload(bytearray(b"x"), name)
    assert secret.read_text() == "s"


@pytest.mark.live
def test_listdir_lists_sorted_names(remote):
    remote.upload(bytearray(b"1"), "b")
    remote.upload(bytearray(b"1"), "a")
    assert remote.listdir(".") == remote.listdir("") == "a,b"


@pytest.mark.live
def test_functions_of_tvms_server_can_be_called(remote):
    assert remote.get_function("rpc.test.addone")(1) == 2
    assert remote.get_function("testing.echo")("x") == "x"


@pytest.mark.live
def test_an_uploaded_object_is_linked(remote, tmp_path):
    source = tmp_path / "f.c"
    source.write_text("int f(void) { return 1; }")
    subprocess.run(["gcc", "-fPIC", "-c", str(source), "-o", str(tmp_path / "f.o")], check=True)
    remote.upload(str(tmp_path / "f.o"))
    library = remote.get_function("tvm.rpc.server.download_linked_module")("f.o")
    assert bytes(library)[:4] == b"\x7fELF"


@pytest.mark.live
def test_a_library_named_by_the_server_is_loaded(tmp_path):
    pytest.importorskip("tvm")
    source = tmp_path / "loud.c"
    source.write_text('#include <stdio.h>\n__attribute__((constructor)) void f(void) { fputs("LOADED\\n", stderr); }')
    library = tmp_path / "loud.so"
    subprocess.run(["gcc", "-shared", "-fPIC", str(source), "-o", str(library)], check=True)
    daemons = Daemons(tmp_path)
    try:
        from tvm import rpc

        server = daemons.server("k", "--load-library", str(library))
        rpc.connect(*server.address, key="k").get_function("testing.echo")(1)
        until(lambda: "LOADED" in server.stderr(), "the supervisor to log what the session has printed")
    finally:
        daemons.stop()
