"""Uploads and downloads: complete or not at all; offered, resumed, refused, cancelled."""

from __future__ import annotations

import hashlib
import os

import pytest

from rpcsys.errors import RemoteFileError
from rpcsys.server.cache import PIECE
from rpcsys.server.session.directory import Directory
from rpcsys.server.session.files import Upload
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from tests.device import Device

MB = 1 << 20


def digest(data):
    return hashlib.sha256(data).hexdigest()


@pytest.fixture
def directory(tmp_path):
    return Directory(str(tmp_path))


def chunk(data, *, last=False, sha256=None):
    head, _ = frames.encode_head({"sha256": sha256}) if sha256 else (b"", None)
    piece = [data] if data else []
    reader = FrameReader()
    (frame,) = reader.feed(b"".join(frames.pack(frames.CHUNK, 1, head, piece, flags=frames.LAST if last else 0)))
    return frame


def names(path):
    return sorted(os.listdir(path))


def test_a_file_appears_when_it_is_complete(directory, tmp_path):
    upload = Upload(directory, "a/b/model.so", 7, 10)
    assert not upload.take(chunk(b"first "))
    assert names(tmp_path / "a" / "b") == []
    assert directory.listdir() == ["a"]
    assert upload.take(chunk(b"last", last=True, sha256=digest(b"first last")))
    upload.discard()
    assert (tmp_path / "a/b/model.so").read_bytes() == b"first last"
    assert names(tmp_path) == ["a"]


def test_an_empty_file_is_uploaded(directory, tmp_path):
    assert Upload(directory, "empty", 1, 0).take(chunk(b"", last=True, sha256=digest(b"")))
    assert (tmp_path / "empty").read_bytes() == b""


def test_a_file_replaces_one_of_the_same_name(directory, tmp_path):
    (tmp_path / "f").write_bytes(b"old")
    upload = Upload(directory, "f", 1, 3)
    upload.take(chunk(b"new"))
    assert (tmp_path / "f").read_bytes() == b"old"
    upload.take(chunk(b"", last=True, sha256=digest(b"new")))
    assert (tmp_path / "f").read_bytes() == b"new"


@pytest.mark.parametrize(
    ("size", "sha256"), [*((4, sha256) for sha256 in (None, digest(b"other"), "", 5, digest(b"data").upper())),
    (5, digest(b"data"))]
)  # fmt: skip
def test_a_wrong_hash_or_size_is_refused(directory, tmp_path, size, sha256):
    upload = Upload(directory, "f", 1, size)
    with pytest.raises(RemoteFileError, match="changed on its way to the device; upload it again"):
        upload.take(chunk(b"data", last=True, sha256=sha256))
    upload.discard()
    assert names(tmp_path) == []


def test_a_file_does_not_replace_a_folder(directory, tmp_path):
    (tmp_path / "folder").mkdir()
    with pytest.raises(RemoteFileError, match="folder: Is a directory"):
        Upload(directory, "folder", 1, 0).take(chunk(b"", last=True, sha256=digest(b"")))


# ---------------------------------------------------------------- in a session


@pytest.fixture
def device():
    with Device() as device:
        yield device


def answer(raw):
    frame = raw.receive()
    return frame.kind, frame.call_id, frame.get("r", frame.get("type"))


def test_an_upload_beyond_its_announced_size_fails(device):
    raw = device.raw()
    raw.call(1, "session.upload", "f", 10)
    raw.send(frames.CHUNK, 1, body=b"x" * 10)
    raw.send(frames.CHUNK, 1, body=b"x")
    assert answer(raw) == (frames.ERROR, 1, "ProtocolError")
    raw.send(frames.CHUNK, 1, body=b"x" * 1000)
    raw.call(2, "session.listdir")
    assert answer(raw) == (frames.RESULT, 2, [])
    assert names(device.workdir) == []


def test_interleaved_uploads_stay_separate(device):
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


def test_chunks_after_a_refused_upload_are_ignored(device):
    raw = device.raw()
    raw.call(1, "session.upload", "../out", 3)
    for _ in range(3):
        raw.send(frames.CHUNK, 1, body=b"x" * 1000)
    raw.send(frames.CHUNK, 1, {"sha256": "0"}, flags=frames.LAST)
    raw.send(frames.CHUNK, 99, body=b"of no upload")
    raw.call(2, "session.listdir")
    assert answer(raw) == (frames.ERROR, 1, "PathError")
    assert answer(raw) == (frames.RESULT, 2, [])


def test_a_full_disk_fails_the_upload(device):
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


@pytest.mark.parametrize("end", [lambda raw: raw.send(frames.GOODBYE), lambda raw: raw.sock.close()])
def test_an_unfinished_upload_leaves_nothing(device, end):
    raw = device.raw()
    raw.call(1, "session.upload", "f", 10)
    raw.send(frames.CHUNK, 1, body=b"half")
    raw.call(2, "session.listdir")
    assert answer(raw) == (frames.RESULT, 2, [])  # while a call still runs, the watcher reads and ends the process
    end(raw)
    assert "served" in device.reports()[-1]
    assert names(device.workdir) == []


def test_a_download_sends_the_file_and_its_hash(device):
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


def test_a_download_of_a_folder_is_refused(device):
    raw = device.raw()
    (device.workdir / "f").mkdir()
    raw.call(1, "session.download", "f")
    assert answer(raw) == (frames.ERROR, 1, "RemoteFileError")


# ---------------------------------------------------------------- with a cache


def cached(tmp_path, cap=64 * MB):
    return Device(cache=[str(tmp_path / "cache"), cap])


def call(raw, function, *args):
    """Return the result of a call, or the fields of its error."""
    raw.call(77, function, *args)
    frame = raw.receive()
    assert frame.call_id == 77
    return frame.get("r") if frame.kind == frames.RESULT else frame.fields()


def upload(raw, name, data, *more, sha256=None, call_id=5):
    raw.call(call_id, "session.upload", name, len(data), *more)
    for start in range(more[1] if len(more) > 1 else 0, len(data), MB):
        raw.send(frames.CHUNK, call_id, body=data[start : start + MB])
    raw.send(frames.CHUNK, call_id, {"sha256": sha256 or digest(data)}, flags=frames.LAST)
    frame = raw.receive()
    assert frame.call_id == call_id
    return frame.get("r") if frame.kind == frames.RESULT else frame.fields()


def test_a_server_without_a_cache_needs_every_upload(tmp_path):
    with Device() as device:
        raw = device.raw()
        assert call(raw, "session.offer", "f", 3, digest(b"abc")) == {"here": False, "offset": 0}
        assert upload(raw, "f", b"abc", digest(b"abc"), 0) == "f"
        assert call(raw, "session.offer", "g", 3, digest(b"abc")) == {"here": False, "offset": 0}


def test_the_second_session_needs_no_upload(tmp_path):
    data = os.urandom(2 * MB + 5)
    with cached(tmp_path) as device:
        raw = device.raw()
        assert call(raw, "session.offer", "f", len(data), digest(data)) == {"here": False, "offset": 0}
        assert upload(raw, "f", data, digest(data), 0) == "f"
    with cached(tmp_path) as device:
        raw = device.raw()
        assert call(raw, "session.offer", "a/g", len(data), digest(data)) == {"here": True, "offset": 0}
        assert (device.workdir / "a/g").read_bytes() == data
        assert call(raw, "session.remove", "a/g") is None
        assert call(raw, "session.offer", "h", len(data), digest(data))["here"] is True


@pytest.mark.parametrize("end", ["lost", "killed", "cancelled"])
def test_an_interrupted_upload_is_resumed(tmp_path, end):
    data = os.urandom(3 * MB)
    with cached(tmp_path) as device:
        raw = device.raw()
        raw.call(1, "session.upload", "f", len(data), digest(data), 0)
        raw.send(frames.CHUNK, 1, body=data[:MB])
        assert call(raw, "session.listdir") == []
        if end == "cancelled":
            raw.send(frames.CANCEL, 1)
            assert raw.receive().get("type") == "Cancelled"
        elif end == "killed":
            device.process.kill()
        else:
            raw.sock.close()
        if end != "cancelled":
            device.process.wait(20)
    with cached(tmp_path) as device:
        raw = device.raw()
        assert call(raw, "session.offer", "f", len(data), digest(data)) == {"here": False, "offset": MB}
        assert upload(raw, "f", data, digest(data), MB) == "f"
        assert (device.workdir / "f").read_bytes() == data


def test_two_sessions_upload_the_same_file_at_once(tmp_path):
    data = os.urandom(2 * MB)
    with cached(tmp_path) as one, cached(tmp_path) as two:
        first, second = one.raw(), two.raw()
        first.call(1, "session.upload", "f", len(data), digest(data), 0)
        first.send(frames.CHUNK, 1, body=data[:MB])
        assert call(first, "session.listdir") == []
        assert upload(second, "f", data, digest(data), 0) == "f"
        first.send(frames.CHUNK, 1, body=data[MB:])
        first.send(frames.CHUNK, 1, {"sha256": digest(data)}, flags=frames.LAST)
        assert first.receive().get("r") == "f"
        assert (one.workdir / "f").read_bytes() == (two.workdir / "f").read_bytes() == data


@pytest.mark.parametrize("last", ["sent", "announced"])
def test_a_wrong_hash_leaves_nothing(tmp_path, last):
    """Neither in the session nor in the cache, whichever hash is in the last CHUNK."""
    data, announced = b"sent" * 1000, digest(b"announced")
    with cached(tmp_path) as device:
        raw = device.raw()
        error = upload(raw, "f", data, announced, 0, sha256=digest(data) if last == "sent" else announced)
        assert (error["type"], error["message"]) == (
            "RemoteFileError", "'f' changed on its way to the device; upload it again",
        )  # fmt: skip
        assert os.listdir(device.workdir) == []
        assert [names for _, _, names in os.walk(tmp_path / "cache") if names] == []
        assert call(raw, "session.offer", "f", len(data), announced) == {"here": False, "offset": 0}


def test_an_upload_beyond_its_announced_size_is_not_cached(tmp_path):
    with cached(tmp_path) as device:
        raw = device.raw()
        raw.call(1, "session.upload", "f", 10, digest(b"x"), 0)
        raw.send(frames.CHUNK, 1, body=b"x" * 11)
        assert raw.receive().get("type") == "ProtocolError"
        assert os.listdir(device.workdir) == []
        assert [names for _, _, names in os.walk(tmp_path / "cache") if names] == []


def test_an_announced_upload_takes_no_cache_space(tmp_path):
    data = os.urandom(MB)
    with cached(tmp_path, cap=2 * MB) as device:
        raw = device.raw()
        assert upload(raw, "f", data, digest(data), 0) == "f"
        raw.call(1, "session.upload", "g", 2 * MB, digest(b"g"), 0)
        assert call(raw, "session.offer", "h", MB, digest(data))["here"] is True


def test_a_wrong_beginning_from_another_client_is_discarded(tmp_path):
    data = os.urandom(2 * MB)
    with cached(tmp_path) as device:
        raw = device.raw()
        raw.call(1, "session.upload", "f", len(data), digest(data), 0)
        raw.send(frames.CHUNK, 1, body=b"x" * MB)
        assert call(raw, "session.listdir") == []
    with cached(tmp_path) as device:
        raw = device.raw()
        assert call(raw, "session.offer", "f", len(data), digest(data))["offset"] == MB
        assert upload(raw, "f", data, digest(data), MB)["retryable"]
        assert call(raw, "session.offer", "f", len(data), digest(data))["offset"] == 0
        assert upload(raw, "f", data, digest(data), 0) == "f"
        assert (device.workdir / "f").read_bytes() == data


def test_an_upload_completes_without_the_cache_if_that_fails(tmp_path):
    data = os.urandom(2 * MB)
    with cached(tmp_path, cap=64 * MB) as device:
        raw = device.raw()
        raw.call(1, "session.upload", "f", len(data), digest(data), 0)
        assert call(raw, "session.listdir") == []
        (tmp_path / "cache" / "partial" / digest(data)).unlink()
        for start in (0, MB):
            raw.send(frames.CHUNK, 1, body=data[start : start + MB])
        raw.send(frames.CHUNK, 1, {"sha256": digest(data)}, flags=frames.LAST)
        assert raw.receive().get("r") == "f"
        assert (device.workdir / "f").read_bytes() == data


def test_an_upload_whose_beginning_is_gone_is_retryable(tmp_path):
    with cached(tmp_path) as device:
        raw = device.raw()
        raw.call(1, "session.upload", "f", 10, digest(b"x"), 5)
        error = raw.receive().fields()
        assert (error["type"], error["retryable"]) == ("RemoteFileError", True)


def test_a_file_larger_than_the_cache_is_not_kept(tmp_path):
    data = b"x" * 2 * MB
    with cached(tmp_path, cap=MB) as device:
        raw = device.raw()
        assert call(raw, "session.offer", "f", len(data), digest(data)) == {"here": False, "offset": 0}
        assert upload(raw, "f", data, digest(data), 0) == "f"
        assert not (tmp_path / "cache").exists()


@pytest.mark.parametrize(
    ("args", "error"),
    [
        (["f", 1, "0"], "ProtocolError"),
        (["f", -1, "0" * 64], "ProtocolError"),
        (["f", "1", "0" * 64], "RemoteArgumentError"),
        (["f", 1, None], "RemoteArgumentError"),
        (["f", True, "0" * 64], "RemoteArgumentError"),
    ],
)
def test_invalid_offers_are_refused(tmp_path, args, error):
    with cached(tmp_path) as device:
        assert call(device.raw(), "session.offer", *args)["type"] == error


@pytest.mark.parametrize(
    "args",
    [
        [],
        [5],
        ["f", 1, "x"],
        ["f", 1, "0" * 64, -1],
        ["f", 1, "0" * 64, "0"],
        ["f", 1, "0" * 64, 2],
        ["f", -1],
        ["f", "1"],
    ],
)
def test_invalid_uploads_are_refused(tmp_path, args):
    with cached(tmp_path) as device:
        assert call(device.raw(), "session.upload", *args)["type"] == "ProtocolError"


def test_an_offer_of_a_name_outside_is_refused(tmp_path):
    with cached(tmp_path) as device:
        assert call(device.raw(), "session.offer", "../f", 1, digest(b"x"))["type"] == "PathError"


@pytest.mark.parametrize("offset", [0, 1, MB - 1, MB, MB + 1, 2 * MB + 5])
def test_a_download_begins_at_any_byte(tmp_path, offset):
    data = os.urandom(2 * MB + 5)
    with Device() as device:
        (device.workdir / "f").write_bytes(data)
        raw = device.raw()
        raw.call(1, "session.download", "f", offset)
        came = []
        while (frame := raw.receive()).kind == frames.CHUNK:
            came.append(bytes(frame.buffers[0]))
        assert frame.get("r") == {"size": len(data), "sha256": digest(data)}
        assert b"".join(came) == data[offset:]


@pytest.mark.parametrize(("offset", "kind"), [(-1, "ProtocolError"), ("1", "ProtocolError")])
def test_an_invalid_offset_of_a_download_is_refused(offset, kind):
    with Device() as device:
        (device.workdir / "f").write_bytes(b"12345")
        assert call(device.raw(), "session.download", "f", offset)["type"] == kind


def test_a_download_from_beyond_the_end_has_only_the_result():
    """Only the file's size and hash are sent: by these the client sees that the file is another one."""
    with Device() as device:
        (device.workdir / "f").write_bytes(b"12345")
        assert call(device.raw(), "session.download", "f", 6) == {"size": 5, "sha256": digest(b"12345")}
