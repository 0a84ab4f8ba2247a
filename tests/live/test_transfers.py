"""Push and pull on a real board: only what has changed moves, whole, and goes on where it was broken off."""

from __future__ import annotations

import os
import socket
import stat
import struct

import pytest

import rpcsys
from rpcsys.errors import PathError, RemoteFileError
from tests.live.daemons import Daemon, Daemons

KEY = "board"


@pytest.fixture(scope="module")
def tracker(module_daemons, tmp_path_factory) -> Daemon:
    daemons: Daemons = module_daemons()
    tracker = daemons.tracker()
    cache = str(tmp_path_factory.mktemp("cache"))
    flags = ("--tvm", "off", "--preload", "none", "--allow-pickle", "--session-user", "none")  # they read the cache
    daemons.server(KEY, *flags, "--cache", cache, tracker=tracker)
    return tracker


@pytest.fixture
def hold(tracker, tmp_path, monkeypatch):
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "run"))
    with rpcsys.hold(KEY, tracker=tracker.where) as hold:
        yield hold


def sent(session: rpcsys.client.Session) -> int:
    """Bytes that the board has acknowledged on a session's connection: ``tcpi_bytes_acked`` of Linux's tcp_info."""
    info = session._channel._stream.socket.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, 192)
    return struct.unpack_from("Q", info, 120)[0]


def test_only_what_has_changed_moves(hold, tmp_path):
    folder = tmp_path / "app"
    for number in range(300):
        file = folder / f"part{number % 7}" / f"{number}.txt"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_bytes(os.urandom(3000))
    (folder / "empty").mkdir()
    (folder / "run").write_bytes(os.urandom(300_000))
    (folder / "run").chmod(0o755)
    (folder / "latest").symlink_to("run")
    (folder / "lost").symlink_to("nowhere")
    with hold.session() as session:
        first = session.push(folder)
        assert (first.files, first.unchanged, first.left_out) == (302, 0, ("lost",))
        assert first.bytes == 300 * 3000 + 2 * 300_000
    with hold.session() as session:
        before = sent(session)
        assert session.push(folder)[:3] == (0, 0, 302)
        (folder / "part3" / "3.txt").write_bytes(b"changed")
        (folder / "part4" / "4.txt").chmod(0o600)
        assert session.push(folder)[:3] == (2, 3007, 300)
        assert sent(session) - before < 6000, "two trees are asked for, and two small files sent"
        mode = session.run(lambda path: __import__("os").stat(path).st_mode, "app/run")
        assert stat.S_IMODE(mode) == 0o755
        assert session.download("app/part3/3.txt") == b"changed"
        back = tmp_path / "back"
        assert session.pull("app", back).files == 302
        assert session.pull("app", back)[:3] == (0, 0, 302)
    for name in ("run", "part3/3.txt", "part4/4.txt"):
        ours, theirs = (folder / name).stat(), (back / name).stat()
        assert (back / name).read_bytes() == (folder / name).read_bytes()
        assert (ours.st_mode, ours.st_mtime_ns) == (theirs.st_mode, theirs.st_mtime_ns)
    assert (back / "empty").is_dir()


class Broken(Exception):
    """Raised while a transfer is under way."""


@pytest.mark.parametrize("way_of", ["push", "pull"])
def test_a_transfer_that_broke_off_goes_on(hold, tmp_path, way_of):
    size = 48 << 20  # of which sockets' buffers hold a small part
    source = tmp_path / way_of
    source.mkdir()
    (source / "big").write_bytes(os.urandom(size))
    (source / "small").write_bytes(b"small")
    told: list[int] = []

    def break_off(done: int, total: int) -> None:
        if done > size // 2:
            raise Broken

    def move(session: rpcsys.client.Session, progress) -> object:
        if way_of == "push":
            return session.push(source, progress=progress)
        return session.pull("pull", tmp_path / "back", progress=progress)

    with hold.session() as session:
        if way_of == "pull":
            session.push(source)
        with pytest.raises(Broken):
            move(session, break_off)
    with hold.session() as session:
        assert way_of == "pull" or session.listdir("push") == ["small"], "the file appears whole or not at all"
        move(session, lambda done, total: told.append(done))
        assert min(told) > size // 3, "it begins where it was broken off"
        assert session.download(f"{way_of}/big") == (source / "big").read_bytes()
    if way_of == "pull":
        assert (tmp_path / "back" / "big").read_bytes() == (source / "big").read_bytes()


def test_nothing_leaves_the_folder(hold, tmp_path):
    file = tmp_path / "file"
    file.write_text("x")
    with hold.session() as session:
        for name in ("../x", "/etc/x", "a/../../x"):
            with pytest.raises(PathError):
                session.push(file, name)
            with pytest.raises(PathError):
                session.pull(name, tmp_path / "there")
        session.run(
            lambda: [__import__("os").symlink(to, name) for to, name in (("/etc", "out"), ("/etc/passwd", "p"))]
        )
        with pytest.raises(PathError):
            session.push(file, "out/file")
        with pytest.raises(PathError):
            session.pull("p", tmp_path / "p")
        with pytest.raises(RemoteFileError, match="no file or folder 'nothing'"):
            session.pull("nothing")
        session.push(file, "kept/")
        session.pull(".", tmp_path / "all")
    assert sorted(os.listdir(tmp_path / "all")) == ["kept"]
