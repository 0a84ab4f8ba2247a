"""Uploads and downloads of one session: offered, resumed, refused, cancelled."""

from __future__ import annotations

import hashlib
import os

import pytest

from rpcsys.wire import frames
from tests.device import Device

MB = 1 << 20


def digest(data):
    return hashlib.sha256(data).hexdigest()


def cached(tmp_path, cap=64 * MB):
    return Device(cache=[str(tmp_path / "cache"), cap])


def call(raw, function, *args):
    """The result of a call, or the fields of its error."""
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


def test_a_server_without_a_cache_wants_everything(tmp_path):
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
def test_an_upload_that_broke_off_is_gone_on_with(tmp_path, end):
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


def test_two_sessions_upload_the_same_at_once(tmp_path):
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


@pytest.mark.parametrize("said", ["sent", "announced"])
def test_a_wrong_hash_leaves_nothing(tmp_path, said):
    """Neither in the session nor in the cache, whichever of the two the client says at the end."""
    data, announced = b"sent" * 1000, digest(b"announced")
    with cached(tmp_path) as device:
        raw = device.raw()
        error = upload(raw, "f", data, announced, 0, sha256=digest(data) if said == "sent" else announced)
        assert (error["type"], error["message"]) == (
            "RemoteFileError", "'f' changed on its way to the device; upload it again",
        )  # fmt: skip
        assert os.listdir(device.workdir) == []
        assert [names for _, _, names in os.walk(tmp_path / "cache") if names] == []
        assert call(raw, "session.offer", "f", len(data), announced) == {"here": False, "offset": 0}


def test_more_than_was_announced_is_kept_nowhere(tmp_path):
    with cached(tmp_path) as device:
        raw = device.raw()
        raw.call(1, "session.upload", "f", 10, digest(b"x"), 0)
        raw.send(frames.CHUNK, 1, body=b"x" * 11)
        assert raw.receive().get("type") == "ProtocolError"
        assert os.listdir(device.workdir) == []
        assert [names for _, _, names in os.walk(tmp_path / "cache") if names] == []


def test_an_announced_upload_takes_no_room(tmp_path):
    data = os.urandom(MB)
    with cached(tmp_path, cap=2 * MB) as device:
        raw = device.raw()
        assert upload(raw, "f", data, digest(data), 0) == "f"
        raw.call(1, "session.upload", "g", 2 * MB, digest(b"g"), 0)
        assert call(raw, "session.offer", "h", MB, digest(data))["here"] is True


def test_a_beginning_that_another_client_has_made_up(tmp_path):
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


def test_a_cache_that_takes_nothing_is_no_hindrance(tmp_path):
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


def test_a_beginning_that_is_gone_is_said_to_be_worth_another_try(tmp_path):
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
def test_offers_that_make_no_sense(tmp_path, args, error):
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
def test_uploads_that_make_no_sense(tmp_path, args):
    with cached(tmp_path) as device:
        assert call(device.raw(), "session.upload", *args)["type"] == "ProtocolError"


def test_names_that_lead_out(tmp_path):
    with cached(tmp_path) as device:
        assert call(device.raw(), "session.offer", "../f", 1, digest(b"x"))["type"] == "PathError"


@pytest.mark.parametrize("offset", [0, 1, MB - 1, MB, MB + 1, 2 * MB + 5])
def test_a_download_from_the_middle(tmp_path, offset):
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
def test_downloads_that_cannot_be(offset, kind):
    with Device() as device:
        (device.workdir / "f").write_bytes(b"12345")
        assert call(device.raw(), "session.download", "f", offset)["type"] == kind


def test_a_download_from_behind_the_end():
    """Nothing comes but what the file is: the client sees that it has begun another one."""
    with Device() as device:
        (device.workdir / "f").write_bytes(b"12345")
        assert call(device.raw(), "session.download", "f", 6) == {"size": 5, "sha256": digest(b"12345")}
