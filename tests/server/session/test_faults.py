"""What a client is told of what went wrong on the device."""

from __future__ import annotations

import pytest

from rpcsys import errors
from rpcsys.server.session.faults import error_frame, exception_frame
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader


def said(pieces):
    (frame,) = FrameReader().feed(b"".join(map(bytes, pieces)))
    assert (frame.kind, frame.call_id) == (frames.ERROR, 5)
    return frame.fields()


def raised(error):
    try:
        raise error
    except Exception as caught:
        return said(exception_frame(5, caught))


def test_an_error_of_a_call():
    assert said(error_frame(5, "Busy", "full", fault="device", retryable=True)) == {
        "type": "Busy", "message": "full", "traceback": "", "retryable": True, "fault": "device",
    }  # fmt: skip


def test_errors_of_ours_are_one_line():
    fields = raised(errors.RemoteFileError("gone", retryable=True, fault="device"))
    assert fields == {
        "type": "RemoteFileError", "message": "gone", "traceback": "", "retryable": True, "fault": "device",
    }  # fmt: skip
    fields = raised(errors.PathError("two\nlines"))
    assert (fields["type"], fields["traceback"], len(fields["message"].splitlines())) == ("PathError", "", 1)


def test_a_users_error_has_its_traceback():
    fields = raised(KeyError("x"))
    assert (fields["type"], fields["message"], fields["fault"]) == ("KeyError", "'x'", "user")
    assert "in raised" in fields["traceback"]


@pytest.mark.parametrize(("kind", "told"), [("ValueError", "ValueError"), ("SessionLost", "NativeError")])
def test_a_kind_of_native_code_does_not_pass_for_one_of_the_session(kind, told):
    fields = raised(errors.NativeError("what went wrong", kind=kind, backtrace="f.c:1"))
    assert (fields["type"], fields["message"], fields["traceback"]) == (told, "what went wrong", "f.c:1")


def test_an_error_whose_text_cannot_be_made():
    class Mute(Exception):
        def __str__(self):
            raise ValueError

    assert raised(Mute())["message"] == "an exception whose text cannot be made"


def test_a_traceback_leaves_room_in_its_head():
    assert len(raised(ValueError("x" * 100_000))["traceback"]) == 64000
