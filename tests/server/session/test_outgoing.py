"""Frames that a session sends: in order, replies to quick calls together, long ones in parts."""

from __future__ import annotations

import contextlib
import socket
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys import errors, stream
from rpcsys.server.session import outgoing
from rpcsys.server.session.outgoing import BATCH, SMALL, STRETCH, Outgoing, error_frame, exception_frame
from rpcsys.stream import DONT_WAIT, Ended
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from tests.device import until


@pytest.fixture
def ends():
    ours, theirs = socket.socketpair()
    with ours, theirs:
        peer = stream.open(theirs)
        peer.tick(20)
        yield Outgoing(stream.open(ours)), peer


def nothing_came(peer):
    return peer.receive(DONT_WAIT) is None


def test_held_replies_are_sent_before_other_frames(ends):
    out, peer = ends
    out.hold(frames.pack(frames.RESULT, 1))
    out.send(frames.pack(frames.PONG, 2))
    assert [peer.receive().call_id, peer.receive().call_id] == [1, 2]


def test_a_batch_is_sent_when_it_is_full(ends):
    out, peer = ends
    for number in range(1, BATCH):
        out.hold(frames.pack(frames.RESULT, number))
    assert nothing_came(peer)
    out.hold(frames.pack(frames.RESULT, BATCH))
    assert [peer.receive().call_id for _ in range(BATCH)] == list(range(1, BATCH + 1))


def test_a_large_reply_is_not_held(ends):
    out, peer = ends
    out.hold(frames.pack(frames.RESULT, 1))
    out.hold(frames.pack(frames.CHUNK, 2, b"", (bytes(SMALL + 1),)))
    assert [peer.receive().call_id, peer.receive().call_id] == [1, 2]


def test_a_held_reply_is_a_copy(ends):
    out, peer = ends
    memory = bytearray(b"before")
    out.hold(frames.pack(frames.CHUNK, 1, b"", (memory,)))
    memory[:] = b"after!"
    out.flush()
    assert bytes(peer.receive().buffers[0]) == b"before"


def test_the_last_frame_follows_the_held_ones_and_ends_the_sending(ends):
    out, peer = ends
    out.hold(frames.pack(frames.RESULT, 1))
    out.send_last(frames.encode(frames.ERROR, 0, {"type": "SessionLost"}))
    assert [peer.receive().call_id, peer.receive().kind] == [1, frames.ERROR]
    with pytest.raises(Ended):
        peer.receive()


def test_the_last_frame_does_not_wait_for_the_client(ends):
    """Nor for a thread that sends to a client that does not read."""
    out, _ = ends

    def send():
        with contextlib.suppress(Ended):
            out.send(frames.pack(frames.CHUNK, 1, b"", (bytes(8 << 20),)))

    sender = threading.Thread(target=send, daemon=True)
    sender.start()
    until(out.lock.locked)
    out.send_last(frames.pack(frames.PONG, 1))
    assert sender.is_alive()


def test_a_frame_that_is_no_reply_does_not_wait_for_another_sender(ends):
    out, peer = ends
    assert out.try_send(frames.pack(frames.PONG, 1))
    assert peer.receive().call_id == 1
    with out.lock:
        assert not out.try_send(frames.pack(frames.PONG, 2))
    assert nothing_came(peer)


def test_a_sender_gives_up_after_its_wait(ends):
    out, peer = ends
    with out.lock:
        out.send(frames.pack(frames.PONG, 1), wait_s=0.01)
    assert nothing_came(peer)


def test_a_long_reply_is_sent_in_parts_with_reads_between(ends):
    out, peer = ends
    pauses = []
    out.on_full = lambda: pauses.append(out._stream.wait(1, read=False, write=True))
    got = []
    reader = threading.Thread(target=lambda: got.append(peer.receive()), daemon=True)
    reader.start()
    out.send(frames.encode(frames.RESULT, 1, {"r": bytes(3 * STRETCH)}))
    reader.join(20)
    assert len(got[0].get("r")) == 3 * STRETCH
    assert len(pauses) >= 3


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_parts_have_one_size_and_all_bytes(pieces):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(outgoing, "STRETCH", 16)
        parts = [b"".join(map(bytes, part)) for part in outgoing._stretches(pieces)]
    assert b"".join(parts) == b"".join(pieces)
    assert all(len(part) == 16 for part in parts[:-1])
    assert all(parts)


# Errors


def error_of(pieces):
    (frame,) = FrameReader().feed(b"".join(map(bytes, pieces)))
    assert (frame.kind, frame.call_id) == (frames.ERROR, 5)
    return frame.fields()


def raised(error):
    try:
        raise error
    except Exception as caught:
        return error_of(exception_frame(5, caught))


def test_an_error_frame_has_all_fields():
    assert error_of(error_frame(5, "Busy", "full", fault="device", retryable=True)) == {
        "type": "Busy", "message": "full", "traceback": "", "retryable": True, "fault": "device",
    }  # fmt: skip


def test_our_errors_are_one_line():
    fields = raised(errors.RemoteFileError("gone", retryable=True, fault="device"))
    assert fields == {
        "type": "RemoteFileError", "message": "gone", "traceback": "", "retryable": True, "fault": "device",
    }  # fmt: skip
    fields = raised(errors.PathError("two\nlines"))
    assert (fields["type"], fields["traceback"], len(fields["message"].splitlines())) == ("PathError", "", 1)


def test_a_users_error_has_a_traceback():
    fields = raised(KeyError("x"))
    assert (fields["type"], fields["message"], fields["fault"]) == ("KeyError", "'x'", "user")
    assert "in raised" in fields["traceback"]


@pytest.mark.parametrize(("kind", "sent"), [("ValueError", "ValueError"), ("SessionLost", "NativeError")])
def test_a_native_kind_never_equals_one_of_our_errors(kind, sent):
    fields = raised(errors.NativeError("what went wrong", kind=kind, backtrace="f.c:1"))
    assert (fields["type"], fields["message"], fields["traceback"]) == (sent, "what went wrong", "f.c:1")


def test_an_error_without_text_is_reported():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert raised(Mute())["message"] == "an exception whose text cannot be made"


def test_a_long_traceback_is_cut():
    assert len(raised(ValueError("x" * 100_000))["traceback"]) == 64000
