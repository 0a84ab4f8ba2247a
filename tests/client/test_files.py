"""Files to and from a device: whole or not at all, with a clear error for every problem."""

from __future__ import annotations

import os
import resource
import signal
import threading

import pytest

from rpcsys.client.files import PIECE
from rpcsys.errors import PathError, ProtocolError, RemoteFileError, SessionLost, UsageError
from tests.device import Device, until


@pytest.mark.parametrize("size", [0, 1, PIECE - 1, PIECE, 3 * PIECE + 5])
def test_a_file_survives_upload_and_download(shared, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "file").write_bytes(data)
    assert shared.upload(tmp_path / "file") == "file"
    assert shared.download("file") == data
    assert shared.download("file", tmp_path / "back") == b""
    assert (tmp_path / "back").read_bytes() == data
    assert sorted(os.listdir(tmp_path)) == ["back", "file"]


@pytest.mark.parametrize(
    "source", [b"bytes", bytearray(b"bytes"), memoryview(b"bytes"), memoryview(b"b_y_t_e_s_")[::2]]
)
def test_bytes_are_uploaded(shared, source):
    assert shared.upload(source, "from/bytes") == "from/bytes"
    assert shared.download("from/bytes") == b"bytes"
    assert shared.listdir("from") == ["bytes"]
    shared.remove("from/bytes")
    assert shared.listdir("from") == []


def test_progress(shared, tmp_path):
    size = 2 * PIECE + 5
    up, down = [], []
    shared.upload(bytes(size), "p", progress=lambda *told: up.append(told))
    shared.download("p", progress=lambda *told: down.append(told))
    expected = [(PIECE, size), (2 * PIECE, size), (size, size)]
    assert up == expected
    assert down[-1] == (size, size)
    assert [done for done, _ in down] == sorted(done for done, _ in down)


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x"])
def test_a_name_outside_the_directory_is_refused(shared, name):
    for use in (lambda: shared.upload(b"x", name), lambda: shared.download(name), lambda: shared.remove(name),
                lambda: shared.listdir(name), lambda: shared.load_module("x", name=name)):  # fmt: skip
        with pytest.raises(PathError, match=r"leads out of|an absolute path"):
            use()


def test_a_missing_file_is_an_error(shared, tmp_path):
    with pytest.raises(RemoteFileError, match="no file 'none'"):
        shared.download("none")
    with pytest.raises(RemoteFileError, match="none: No such file or directory"):
        shared.remove("none")
    with pytest.raises(UsageError, match=r"cannot read .*none: No such file or directory"):
        shared.upload(tmp_path / "none")
    with pytest.raises(UsageError, match=r"cannot read .*: Is a directory"):
        shared.upload(tmp_path)
    with pytest.raises(RemoteFileError):
        shared.download("none", tmp_path / "target")
    assert os.listdir(tmp_path) == []


@pytest.mark.parametrize("target", ["missing/file", "folder"])
def test_an_unwritable_target_is_a_usage_error(shared, tmp_path, target):
    shared.upload(b"data", "d")
    (tmp_path / "folder").mkdir()
    with pytest.raises(UsageError, match=f"cannot write .*{target}: "):
        shared.download("d", tmp_path / target)
    assert os.listdir(tmp_path) == ["folder"]
    assert shared.download("d") == b"data"


def test_a_target_that_is_no_file_is_not_replaced(shared, tmp_path):
    shared.upload(b"data", "d")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(UsageError, match=r"cannot write .*pipe: it is no file; give another name"):
        shared.download("d", tmp_path / "pipe")
    assert (tmp_path / "pipe").is_fifo()


def test_a_full_local_disk_is_a_usage_error(shared, tmp_path):
    shared.upload(bytes(3 * PIECE), "large")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    ignored = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (PIECE, before[1]))
    try:
        with pytest.raises(UsageError, match=r"cannot write .*target: File too large"):
            shared.download("large", tmp_path / "target")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, ignored)
    assert os.listdir(tmp_path) == []
    assert shared.download("large") == bytes(3 * PIECE)


def test_a_refused_upload_stops_early(shared):
    sent = []
    with pytest.raises(PathError):
        shared.upload(bytes(200 * PIECE), "../x", progress=lambda done, total: sent.append(done))
    assert len(sent) < 100
    assert shared.get_function("testing.echo")(1) == 1


def test_an_exception_of_progress_stops_an_upload(shared):
    def stop(done, total):
        raise KeyError("enough")

    with pytest.raises(KeyError, match="enough"):
        shared.upload(bytes(5 * PIECE), "stopped", progress=stop)
    assert "stopped" not in shared.listdir()
    shared.upload(b"again", "stopped")
    assert shared.download("stopped") == b"again"


def test_an_exception_of_progress_stops_a_download(shared, tmp_path):
    def stop(done, total):
        raise KeyError("enough")

    shared.upload(bytes(5 * PIECE), "stop")
    with pytest.raises(KeyError, match="enough"):
        shared.download("stop", tmp_path / "f", progress=stop)
    assert os.listdir(tmp_path) == []
    assert shared.get_function("testing.echo")(1) == 1


def test_a_source_that_cannot_be_read_is_a_usage_error(shared):
    """/proc/self/mem opens and cannot be read at 0."""
    with pytest.raises(UsageError, match=r"cannot read .*: Input/output error"):
        shared.upload("/proc/self/mem", "mem")
    assert "mem" not in shared.listdir()
    assert shared.get_function("testing.echo")(1) == 1


def test_a_full_disk_on_the_device_is_an_error(session):
    session.get_function("test.file_limit")(2 * PIECE)
    with pytest.raises(RemoteFileError, match="big: File too large"):
        session.upload(bytes(50 * PIECE), "big")
    assert session.listdir() == []
    session.upload(b"small", "small")


def test_a_file_that_changed_during_its_transfer_is_an_error(device, session, monkeypatch):
    import hashlib

    class Wrong:
        def __init__(self, *data):
            self._inner = hashlib.md5(*data)

        def __getattr__(self, name):
            return getattr(self._inner, name)

    monkeypatch.setattr("rpcsys.client.files.hashlib.sha256", Wrong)
    with pytest.raises(RemoteFileError, match="'f' changed on its way to the device; upload it again"):
        session.upload(b"data", "f")
    assert os.listdir(device.workdir) == []
    monkeypatch.undo()
    session.upload(b"data", "f")
    monkeypatch.setattr("rpcsys.client.files.hashlib.sha256", Wrong)
    with pytest.raises(Exception, match=r"'f' changed on its way \(4 bytes came\); download it again"):
        session.download("f")


def test_a_device_lost_during_a_transfer_is_session_lost(device, session, tmp_path):
    def kill(done, total):
        device.process.kill()

    with pytest.raises(SessionLost):
        session.upload(bytes(200 * PIECE), "f", progress=kill)
    with pytest.raises(SessionLost):
        session.download("f", tmp_path / "f")
    assert os.listdir(tmp_path) == []


def test_files_and_calls_of_many_threads(shared):
    """Uploads, downloads and calls share one connection without mixing."""
    wrong = []

    def work(number):
        data = os.urandom(PIECE + number)
        for _ in range(4):
            shared.upload(data, f"many/{number}")
            if shared.download(f"many/{number}") != data or shared.get_function("testing.echo")(number) != number:
                wrong.append(number)

    threads = [threading.Thread(target=work, args=(number,), daemon=True) for number in range(5)]
    for thread in threads:
        thread.start()
    until(lambda: not any(thread.is_alive() for thread in threads), "five threads")
    assert wrong == []
    assert shared.listdir("many") == [str(number) for number in range(5)]


# ---------------------------------------------------------------- a device with a cache


@pytest.fixture
def cached(tmp_path):
    with Device(cache=[str(tmp_path / "cache"), 100 * PIECE]) as device, device.session() as session:
        yield session


def told(session, *args):
    """The progress reports of an upload."""
    steps = []
    assert session.upload(*args, progress=lambda done, total: steps.append((done, total))) == args[-1]
    return steps


def test_a_file_is_sent_once(cached):
    data = os.urandom(2 * PIECE + 1)
    assert told(cached, data, "one") == [(PIECE, len(data)), (2 * PIECE, len(data)), (len(data), len(data))]
    assert told(cached, data, "two") == [(len(data), len(data))]
    assert cached.download("one") == cached.download("two") == data
    assert told(cached, b"", "empty") == []
    assert told(cached, b"", "empty too") == [(0, 0)]


def test_a_stopped_upload_continues(cached):
    data = os.urandom(4 * PIECE)

    def stop(done, total):
        if done == 2 * PIECE:
            raise KeyError

    with pytest.raises(KeyError):
        cached.upload(data, "f", progress=stop)
    assert cached.listdir() == []
    assert told(cached, data, "f")[0][0] > PIECE
    assert cached.download("f") == data


def test_an_upload_whose_beginning_is_gone_is_offered_again(cached, monkeypatch):
    """Another session has removed it, or uploads the same file. After the last attempt it is an error."""
    offers = []

    def offer(session, name, *args):
        if name == "session.offer":
            offers.append(args)
            if len(offers) < 3:
                return {"here": False, "offset": 1}
        return original(session, name, *args)

    original = type(cached)._builtin
    monkeypatch.setattr(type(cached), "_builtin", offer)
    assert told(cached, b"some data", "f")[-1] == (9, 9)
    assert len(offers) == 3
    monkeypatch.setattr(type(cached), "_builtin", lambda *_: {"here": False, "offset": 1})
    with pytest.raises(RemoteFileError, match="what an earlier session left of it is gone; upload it again"):
        cached.upload(b"other data", "g")


@pytest.mark.parametrize("answer", [None, {}, {"here": False}, {"here": False, "offset": -1}, {"offset": "0"}, []])
def test_an_invalid_answer_to_an_offer_is_refused(cached, monkeypatch, answer):
    monkeypatch.setattr(type(cached), "_builtin", lambda *_: answer)
    with pytest.raises(ProtocolError, match="makes no sense"):
        cached.upload(b"x", "f")


# ---------------------------------------------------------------- downloads that go on


def test_a_resumed_download_continues_behind_its_beginning(shared, tmp_path):
    data = os.urandom(3 * PIECE)
    shared.upload(data, "resumed")
    target, part = tmp_path / "f", tmp_path / "f.part"

    def stop(done, total):
        if done == 2 * PIECE:
            raise KeyError

    with pytest.raises(KeyError):
        shared.download("resumed", target, resume=True, progress=stop)
    assert part.stat().st_size == 2 * PIECE
    assert not target.exists()
    steps = []
    shared.download("resumed", target, resume=True, progress=lambda done, total: steps.append((done, total)))
    assert steps == [(3 * PIECE, 3 * PIECE)]
    assert target.read_bytes() == data
    assert os.listdir(tmp_path) == ["f"]


def test_a_wrong_beginning_is_an_error_and_removed(shared, tmp_path):
    shared.upload(b"twelve bytes", "resumed")
    for wrong in (b"other", b"longer than that"):
        (tmp_path / "f.part").write_bytes(wrong)
        with pytest.raises(ProtocolError, match="changed on its way"):
            shared.download("resumed", tmp_path / "f", resume=True)
        assert os.listdir(tmp_path) == []
    shared.download("resumed", tmp_path / "f", resume=True)
    assert (tmp_path / "f").read_bytes() == b"twelve bytes"


def test_only_a_download_into_a_file_can_be_resumed(shared):
    with pytest.raises(UsageError, match="only a download into a file can be resumed"):
        shared.download("resumed", resume=True)
