"""Files into and out of a session's directory: whole or not at all, and never outside it."""

from __future__ import annotations

import hashlib
import os

import pytest

from rpcsys.errors import PathError, RemoteFileError
from rpcsys.server.session.transfers import PIECE, Directory, Upload, hashed
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from tests.device import Device


@pytest.fixture
def directory(tmp_path):
    return Directory(str(tmp_path))


def chunk(data, *, last=False, sha256=None):
    head, _ = frames.encode_head({"sha256": sha256}) if sha256 else (b"", None)
    piece = [data] if data else []
    reader = FrameReader()
    (frame,) = reader.feed(b"".join(frames.pack(frames.CHUNK, 1, head, piece, flags=frames.LAST if last else 0)))
    return frame


def digest(data):
    return hashlib.sha256(data).hexdigest()


def names(path):
    return sorted(os.listdir(path))


def test_a_file_appears_when_it_is_whole(directory, tmp_path):
    upload = Upload(directory, "a/b/model.so", 7, 100)
    assert not upload.take(chunk(b"first "))
    assert names(tmp_path / "a" / "b") == []
    assert directory.listdir() == ["a"]
    assert upload.take(chunk(b"last", last=True, sha256=digest(b"first last")))
    upload.discard()
    assert (tmp_path / "a/b/model.so").read_bytes() == b"first last"
    assert names(tmp_path) == ["a"]


def test_an_empty_file(directory, tmp_path):
    assert Upload(directory, "empty", 1, 100).take(chunk(b"", last=True, sha256=digest(b"")))
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_file_replaces_the_one_of_its_name(directory, tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    upload = Upload(directory, "f", 1, 100)
    upload.take(chunk(b"new"))
    assert (tmp_path / "f").read_bytes() == b"old"
    upload.take(chunk(b"", last=True, sha256=digest(b"new")))
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize("sha256", [None, digest(b"other"), "", 5, digest(b"data").upper()])
def test_a_wrong_hash_leaves_nothing(directory, tmp_path, sha256):
    upload = Upload(directory, "f", 1, 100)
    with pytest.raises(RemoteFileError, match="changed on its way to the device; upload it again"):
        upload.take(chunk(b"data", last=True, sha256=sha256))
    upload.discard()
    assert names(tmp_path) == []


@pytest.mark.parametrize("name", ["../x", "/etc/x", "a/../../x", "", "\0", "x" * 5000, "\ud800"])
def test_names_that_lead_out(directory, name):
    for use in (directory.path, directory.existing, directory.listdir, directory.remove, directory.pieces):
        with pytest.raises(PathError):
            use(name)
    with pytest.raises(PathError):
        Upload(directory, name, 1, 100)


def test_a_link_that_leads_out(directory, tmp_path):
    (tmp_path / "link").symlink_to("/etc")
    with pytest.raises(PathError):
        directory.listdir("link")
    with pytest.raises(PathError):
        Upload(directory, "link/passwd", 1, 100)


@pytest.mark.parametrize("name", [".rpcsys-1", "a/.rpcsys-1"])
def test_the_servers_own_names(directory, name):
    with pytest.raises(RemoteFileError, match="a name kept for the server"):
        Upload(directory, name, 1, 100)


def test_what_the_system_refuses_is_said_in_its_words(directory, tmp_path):
    (tmp_path / "file").write_bytes(b"")
    (tmp_path / "folder").mkdir()
    for use, words in (
        (lambda: directory.remove("none"), "none: No such file or directory"),
        (lambda: directory.remove("folder"), "folder: Is a directory"),
        (lambda: directory.listdir("none"), "none: No such file or directory"),
        (lambda: directory.listdir("file"), "file: Not a directory"),
        (lambda: directory.existing("folder"), "there is no file 'folder'"),
        (lambda: directory.pieces("none"), "there is no file 'none'"),
        (lambda: Upload(directory, "file/below", 1, 100), "file/below: "),
        (
            lambda: Upload(directory, "folder", 1, 100).take(chunk(b"", last=True, sha256=digest(b""))),
            "folder: Is a directory",
        ),
    ):
        with pytest.raises(RemoteFileError, match=words):
            use()


def test_names_in_a_directory(directory, tmp_path):
    for name in ("b", "a", ".hidden", ".rpcsys-9"):
        (tmp_path / name).touch()
    assert directory.listdir() == [".hidden", "a", "b"]
    directory.remove("a")
    assert directory.listdir(".") == [".hidden", "b"]


@pytest.mark.parametrize("size", [0, 1, PIECE, PIECE + 1, 3 * PIECE])
def test_a_file_in_pieces(directory, tmp_path, size):
    data = os.urandom(size)
    (tmp_path / "f").write_bytes(data)
    told, pieces = directory.pieces("f")
    sent = []
    end = hashed(pieces, sent.append)
    assert told == size
    assert b"".join(sent) == data
    assert all(len(piece) == PIECE for piece in sent[:-1])
    assert end == {"size": size, "sha256": digest(data)}


# ---------------------------------------------------------------- in a session


@pytest.fixture
def device():
    with Device() as device:
        yield device


def answer(raw):
    frame = raw.receive()
    return frame.kind, frame.call_id, frame.get("r", frame.get("type"))


def test_more_than_was_announced_ends_an_upload(device):
    raw = device.raw()
    raw.call(1, "session.upload", "f", 10)
    raw.send(frames.CHUNK, 1, body=b"x" * 10)
    raw.send(frames.CHUNK, 1, body=b"x")
    assert answer(raw) == (frames.ERROR, 1, "ProtocolError")
    raw.send(frames.CHUNK, 1, body=b"x" * 1000)
    raw.call(2, "session.listdir")
    assert answer(raw) == (frames.RESULT, 2, [])
    assert names(device.workdir) == []


def test_uploads_that_mingle(device):
    raw = device.raw()
    raw.call(1, "session.upload", "one", 6)
    raw.call(2, "session.upload", "two", 6)
    for call_id in (1, 2, 1, 2):
        raw.send(frames.CHUNK, call_id, body=b"%d" % call_id * 3)
    raw.call(3, "session.listdir")
    for call_id in (2, 1):
        raw.send(frames.CHUNK, call_id, {"sha256": digest(b"%d" % call_id * 6)}, flags=frames.LAST)
    raw.call(4, "session.listdir")
    assert [answer(raw) for _ in range(4)] == [
        (frames.RESULT, 3, []),
        (frames.RESULT, 2, "two"),
        (frames.RESULT, 1, "one"),
        (frames.RESULT, 4, ["one", "two"]),
    ]
    assert (device.workdir / "two").read_bytes() == b"222222"


def test_a_refused_upload_ignores_what_still_comes(device):
    raw = device.raw()
    raw.call(1, "session.upload", "../out", 3)
    for _ in range(3):
        raw.send(frames.CHUNK, 1, body=b"x" * 1000)
    raw.send(frames.CHUNK, 1, {"sha256": "0"}, flags=frames.LAST)
    raw.send(frames.CHUNK, 99, body=b"of no upload")
    raw.call(2, "session.listdir")
    assert answer(raw) == (frames.ERROR, 1, "PathError")
    assert answer(raw) == (frames.RESULT, 2, [])


def test_a_full_disk(device):
    raw = device.raw()
    raw.call(1, "test.file_limit", 5000)
    assert answer(raw)[0] == frames.RESULT
    raw.call(2, "session.upload", "big", 10000)
    raw.send(frames.CHUNK, 2, body=b"x" * 4000)
    raw.send(frames.CHUNK, 2, body=b"x" * 4000)
    frame = raw.receive()
    assert (frame.get("type"), frame.get("message")) == ("RemoteFileError", "big: File too large")
    raw.send(frames.CHUNK, 2, body=b"x" * 4000)
    raw.send(frames.CHUNK, 2, {"sha256": digest(b"x" * 12000)}, flags=frames.LAST)
    raw.call(3, "session.listdir")
    assert answer(raw) == (frames.RESULT, 3, [])
    assert names(device.workdir) == []


def test_a_cancelled_upload_leaves_nothing(device):
    raw = device.raw()
    raw.call(1, "session.upload", "f", 10)
    raw.send(frames.CHUNK, 1, body=b"half")
    raw.send(frames.CANCEL, 1)
    assert answer(raw) == (frames.ERROR, 1, "Cancelled")
    raw.send(frames.CHUNK, 1, {"sha256": digest(b"half")}, flags=frames.LAST)
    raw.call(2, "session.listdir")
    assert answer(raw) == (frames.RESULT, 2, [])
    assert names(device.workdir) == []


def test_an_upload_is_cancelled_while_a_call_runs(device):
    raw = device.raw()
    raw.call(1, "session.upload", "f", 10)
    raw.send(frames.CHUNK, 1, body=b"half")
    raw.call(2, "test.sleep", 0.3)
    device.wait_for_call()
    raw.send(frames.CANCEL, 1)
    assert answer(raw) == (frames.RESULT, 2, None)
    assert answer(raw) == (frames.ERROR, 1, "Cancelled")
    assert names(device.workdir) == ["running"]


def test_removing_a_link_leaves_what_it_leads_to(directory, tmp_path):
    (tmp_path / "f").write_bytes(b"kept")
    (tmp_path / "inside").symlink_to("f")
    (tmp_path / "outside").symlink_to("/etc/hostname")
    (tmp_path / "nowhere").symlink_to("gone")
    for name in ("inside", "outside", "nowhere"):
        directory.remove(name)
    assert directory.listdir() == ["f"]


@pytest.mark.parametrize("end", [lambda raw: raw.send(frames.GOODBYE), lambda raw: raw.sock.close()])
def test_an_upload_that_nobody_finishes_leaves_nothing(device, end):
    raw = device.raw()
    raw.call(1, "session.upload", "f", 10)
    raw.send(frames.CHUNK, 1, body=b"half")
    end(raw)
    assert "served" in device.reports()[-1]
    assert names(device.workdir) == []


def test_a_download(device):
    raw = device.raw()
    data = os.urandom(2 * PIECE + 5)
    (device.workdir / "f").write_bytes(data)
    raw.call(1, "session.download", "f")
    came = []
    while (frame := raw.receive()).kind == frames.CHUNK:
        assert frame.get("size") == len(data)
        came.append(bytes(frame.buffers[0]))
    assert b"".join(came) == data
    assert frame.get("r") == {"size": len(data), "sha256": digest(data)}


def test_a_download_of_what_is_no_file(device):
    raw = device.raw()
    (device.workdir / "f").mkdir()
    raw.call(1, "session.download", "f")
    assert answer(raw) == (frames.ERROR, 1, "RemoteFileError")


def test_a_disk_that_fails_while_it_is_read(directory, tmp_path, monkeypatch):
    (tmp_path / "f").touch()
    unreadable = open("/proc/self/mem", "rb")  # noqa: SIM115 - closed by the generator
    monkeypatch.setattr("builtins.open", lambda *_: unreadable)
    _, pieces = directory.pieces("f")
    with pytest.raises(RemoteFileError, match="f: Input/output error"):
        list(pieces)
    assert unreadable.closed
