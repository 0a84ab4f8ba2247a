"""A server with --read-only: a session leaves no file on any disk."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

import rpcsys
from rpcsys.errors import RemoteError
from rpcsys.server.sandbox import mount_namespace
from tests.live.daemons import STOP_S, Daemon, Daemons, wait_until

WHY_NOT = mount_namespace.probe("/tmp/rpcsys-probe", read_only=True)

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=f"no mounts of a session's own here: {WHY_NOT}")

FLAGS = ("--read-only", "--preload", "none", "--slots", "2", "--allow-pickle")


@pytest.fixture(scope="module", params=["below /tmp", "elsewhere"])
def server(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory):
    daemons = Daemons(tmp_path_factory.mktemp("daemons"))
    folder = daemons.folder
    if request.param == "elsewhere":
        folder = Path(os.path.expanduser("~")) / f".cache-rpcsys-{os.getpid()}"
        folder.mkdir()
    flags = (*FLAGS, "--cache", str(folder / "cache"))
    yield daemons.server("k", *flags, flavour="ctypes", env={"TMPDIR": str(folder)})
    daemons.stop()
    if request.param == "elsewhere":
        for path in sorted(folder.rglob("*"), reverse=True):
            path.rmdir() if path.is_dir() else path.unlink()
        folder.rmdir()


def write(path: str) -> str:
    with open(path, "w") as file:
        file.write("left behind")
    return os.path.abspath(path)


@pytest.mark.parametrize("folder", ["/", "/var", "/etc", os.path.expanduser("~"), "beside the code"])
def test_a_session_cannot_write_outside_its_folders(server: Daemon, folder: str):
    folder = os.path.dirname(__file__) if folder == "beside the code" else folder
    path = os.path.join(folder, f"written-{os.getpid()}")
    with rpcsys.connect(*server.address, key="k") as session:
        with pytest.raises(RemoteError, match="Read-only file system"):
            session.run(write, path)
        with pytest.raises(RemoteError, match="Read-only file system"):
            session.run(os.mkdir, path)
    assert not os.path.lexists(path)


def test_a_session_writes_into_its_own_folders(server: Daemon):
    with rpcsys.connect(*server.address, key="k") as session:
        own = session.run(write, "kept")
        assert session.download("kept") == b"left behind"
        for path in ("/tmp/written", "/var/tmp/written", "/dev/shm/written"):
            session.run(write, path)
        assert session.run(write, os.path.join(session.run(os.getenv, "TMPDIR"), "x"))
        assert session.run(os.getenv, "XDG_CACHE_HOME") == session.run(os.getenv, "TMPDIR")
        assert session.run(write, "/dev/null") == "/dev/null"
    assert not os.path.lexists("/tmp/written")
    wait_until(lambda: not os.path.lexists(own), STOP_S, "its directory is gone")


def test_the_cache_is_writable_for_uploads(server: Daemon, tmp_path: Path):
    source = tmp_path / "model"
    source.write_bytes(os.urandom(2 << 20))

    def sent() -> list[int]:
        """The progress in bytes after each piece of an upload."""
        there: list[int] = []
        with rpcsys.connect(*server.address, key="k") as session:
            session.upload(source, progress=lambda done, total: there.append(done))
            assert session.download("model") == source.read_bytes()
        return there

    assert min(sent()) < 2 << 20
    assert min(sent()) == 2 << 20


def test_tvms_client_works_on_a_read_only_server(server: Daemon):
    rpc = pytest.importorskip("tvm.rpc")
    remote = rpc.connect(*server.address, key="k")
    remote.upload(bytearray(b"there and back"), "file")
    assert remote.download("file") == b"there and back"
    remote.remove("file")
    assert remote.listdir("") == ""
