"""Uploads and downloads of large files: interrupted, resumed, shared, and never whole in memory."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import signal

import psutil
import pytest

import rpcsys
from rpcsys.errors import SessionLost
from rpcsys.server.sandbox import work_folders
from tests.live.daemons import STOP_S, Daemon, Daemons, wait_until

MB = 1 << 20
IN_FLIGHT = 24 * MB  # in sockets, and encrypted before them
#: The memory limit of a session's process during a transfer of any size.
MOST_RSS = 60 * MB


def started(daemons: Daemons, size: str) -> Daemon:
    flags = ("--preload", "none", "--tvm", "off", "--slots", "2")
    return daemons.server("k", *flags, "--cache", str(daemons.folder / "cache"), "--cache-size", size)


class Interrupted(Exception):
    """A client interrupts its upload."""


def uploaded(server: Daemon, path: os.PathLike, break_at: int | None, how: str) -> tuple[int, int]:
    """Upload ``path``; the byte at which the upload began, and the session's peak memory.

    After the byte ``break_at`` the session's process is killed, or the client raises an exception.
    """
    first, most = None, 0
    with rpcsys.connect(*server.address, key="k") as session:
        process = psutil.Process(session.info["pid"])

        def progress(done: int, total: int) -> None:
            nonlocal first, most
            first = done if first is None else first
            with contextlib.suppress(psutil.NoSuchProcess):
                most = max(most, process.memory_info().rss)
            if break_at is not None and done >= break_at:
                if how != "killed":
                    raise Interrupted
                # Progress goes on while the socket's buffer has space: the process may have ended.
                with contextlib.suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)

        try:
            session.upload(path, "model.bin", progress=progress)
        except (SessionLost, Interrupted):
            assert break_at is not None
        else:
            assert session.listdir() == ["model.bin"]
            assert _hash(f"/proc/{session.info['pid']}/cwd/model.bin") == _hash(path)
    return first, most


def _hash(path: object) -> str:
    digest = hashlib.sha256()
    with open(path, "rb") as file:
        while piece := file.read(MB):
            digest.update(piece)
    return digest.hexdigest()


def broken_three_times(daemons: Daemons, size: int, record) -> None:
    source = daemons.folder / "model.bin"
    with open(source, "wb") as file:
        file.truncate(size)  # sparse except for its ends
        file.write(b"beginning")
        file.seek(size - 3)
        file.write(b"end")
    server = started(daemons, "3G")
    starts, most = [], 0
    for quarter, how in ((1, "killed"), (2, "failed"), (3, "killed"), (4, "")):
        first, rss = uploaded(server, source, quarter * size // 4 if quarter < 4 else None, how)
        starts.append(first)
        most = max(most, rss)
    assert starts == sorted(starts)
    for quarter, start in enumerate(starts):
        assert start >= quarter * size // 4 - IN_FLIGHT, "it resumes where it stopped, except for bytes in flight"
    record("most resident memory, MB", most // MB)
    assert most < MOST_RSS
    assert os.listdir(daemons.folder / "cache" / "partial") == []
    first, _ = uploaded(server, source, None, "")
    assert first == size, "the next session does not send it again"


def test_an_upload_interrupted_three_times_resumes(daemons, record_property):
    broken_three_times(daemons, 256 * MB, record_property)


@pytest.mark.slow
@pytest.mark.one_path
@pytest.mark.timeout(600)
def test_an_upload_of_two_gigabytes_interrupted_three_times_resumes(daemons, record_property):
    broken_three_times(daemons, 2048 * MB, record_property)


def test_two_sessions_share_a_cache_within_its_size(daemons):
    server = started(daemons, "20M")
    files = []
    for number in range(4):
        path = daemons.folder / f"model-{number}"
        path.write_bytes(os.urandom(8 * MB))
        files.append(path)
    with rpcsys.connect(*server.address, key="k") as one, rpcsys.connect(*server.address, key="k") as two:
        for path in files:
            for session in (one, two):
                assert session.upload(path) == path.name
        for session in (one, two):
            assert session.listdir() == [path.name for path in files]
            assert session.download(files[0].name) == files[0].read_bytes()
    objects = daemons.folder / "cache" / "objects"
    assert 0 < sum(path.stat().st_size for path in objects.iterdir()) <= 20 << 20
    assert (objects / _hash(files[3])).exists()
    assert not (objects / _hash(files[0])).exists()


@pytest.mark.parametrize("where", ["beside", "elsewhere"])
def test_a_changed_copy_of_a_cached_file_affects_no_other_session(daemons, where):
    """Neither a running session with the same file, nor a later one."""
    folder = work_folders.make_folder("/var" if where == "elsewhere" else str(daemons.folder))
    cache = os.path.join(folder, "cache")
    try:
        flags = ("--preload", "none", "--tvm", "off", "--slots", "2", "--cache", cache)
        server = daemons.server("k", *flags, env={"TMPDIR": folder})
        source = daemons.folder / "model"
        source.write_bytes(os.urandom(3 * MB))
        with rpcsys.connect(*server.address, key="k") as one, rpcsys.connect(*server.address, key="k") as two:
            for session in (one, two):
                session.upload(source)
            with open(f"/proc/{one.info['pid']}/cwd/model", "r+b") as copy:
                copy.write(b"changed")
            assert one.download("model") != source.read_bytes()
            assert two.download("model") == source.read_bytes()
        with rpcsys.connect(*server.address, key="k") as three:
            sent = []
            three.upload(source, progress=lambda done, total: sent.append(done))
            assert sent == [3 * MB]  # the cache has it
            assert three.download("model") == source.read_bytes()
    finally:
        daemons.stop()
        shutil.rmtree(folder)


def test_a_damaged_cached_file_is_uploaded_again(daemons):
    server = started(daemons, "20M")
    source = daemons.folder / "model"
    source.write_bytes(b"right" * 1000)
    with rpcsys.connect(*server.address, key="k") as session:
        session.upload(source)
    (kept,) = (daemons.folder / "cache" / "objects").iterdir()
    kept.chmod(0o644)
    kept.write_bytes(b"wrong" * 1000)
    with rpcsys.connect(*server.address, key="k") as session:
        sent = []
        session.upload(source, progress=lambda done, total: sent.append(done))
        assert session.download("model") == source.read_bytes()
    assert kept.read_bytes() == source.read_bytes()


@pytest.mark.parametrize("cache", [True, False])
def test_a_wrong_hash_leaves_no_file(daemons, cache, monkeypatch):
    """The file changes while it is uploaded."""
    server = started(daemons, "20M") if cache else daemons.server("k", "--preload", "none", "--tvm", "off")
    source = daemons.folder / "model"
    source.write_bytes(b"a" * 3 * MB)

    def change(done: int, total: int) -> None:
        with open(source, "r+b") as file:
            file.seek(2 * MB)
            file.write(b"b" * MB)

    with rpcsys.connect(*server.address, key="k") as session:
        if cache:
            with pytest.raises(rpcsys.RpcsysError, match="changed on its way"):
                session.upload(source, progress=change)
            assert session.listdir() == []
            assert list((daemons.folder / "cache" / "objects").iterdir()) == []
        session.upload(source)
        assert session.download("model") == source.read_bytes()


def test_a_download_resumes_where_it_stopped(daemons):
    server = started(daemons, "100M")
    source, target = daemons.folder / "model", daemons.folder / "back"
    source.write_bytes(os.urandom(40 * MB))
    with rpcsys.connect(*server.address, key="k") as session:
        session.upload(source)
        pid = session.info["pid"]
        with pytest.raises(SessionLost):
            session.download(
                "model",
                target,
                resume=True,
                progress=lambda done, total: done >= 10 * MB and os.kill(pid, signal.SIGKILL),
            )
    assert not target.exists()
    begun = (daemons.folder / "back.part").stat().st_size
    assert 10 * MB <= begun < 40 * MB
    wait_until(lambda: not psutil.pid_exists(pid), STOP_S, "it is gone")
    with rpcsys.connect(*server.address, key="k") as session:
        session.upload(source)
        seen = []
        session.download("model", target, resume=True, progress=lambda done, total: seen.append(done))
        assert seen[0] > begun
        assert target.read_bytes() == source.read_bytes()
        assert not (daemons.folder / "back.part").exists()
        # a wrong partial file: an error, then it is removed and the download succeeds
        (daemons.folder / "back.part").write_bytes(b"something else")
        with pytest.raises(rpcsys.RpcsysError, match="changed on its way"):
            session.download("model", target, resume=True)
        session.download("model", target, resume=True)
        assert target.read_bytes() == source.read_bytes()
