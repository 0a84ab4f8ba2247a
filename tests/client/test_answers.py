"""Answers of peers: kept where they are valid, else refused with one sentence; a device's errors as exceptions."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys import errors
from rpcsys.client import answers, turns
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader

ANY_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(),
    lambda inside: st.lists(inside, max_size=3) | st.dictionaries(st.text(max_size=5), inside, max_size=3),
    max_leaves=8,
)
LEASE = {"lease": "l", "epoch": 1, "key": "k", "host": "h", "port": 1, "matchkey": "k:1"}


def error_frame(call_id=1, **fields):
    (frame,) = FrameReader().feed(b"".join(frames.encode(frames.ERROR, call_id, fields)))
    return answers.error_of(frame)


def test_unknown_fields_stay_in_the_answer():
    assert answers.from_tracker(answers.LEASES, [{**LEASE, "newer": 1}], "leases") == [{**LEASE, "newer": 1}]
    queued = {"position": 1, "ahead": 0, "eta_s": [-1, 2.5], "ticket": None, "holders": [{"user": "a", "newer": 1}]}
    assert answers.from_tracker(answers.QUEUED, dict(queued), "event") == queued
    module = {"kind": "k", "functions": ["f"], "inputs": [{"name": "x", "shape": [None, "n", 3]}]}
    assert answers.from_device(answers.MODULE, dict(module), "a module") == module


@pytest.mark.parametrize("check", [answers.MODULES, answers.LEASES, answers.QUEUED, answers.LIMIT])
@given(said=ANY_JSON)
def test_a_trackers_answer_is_valid_or_refused_in_one_sentence(check, said):
    problem = ""
    try:
        answers.from_tracker(check, said, "it")
    except errors.ProtocolError as error:
        problem = str(error)
    assert problem == "" or problem.startswith("the tracker's answer makes no sense: ")


@pytest.mark.parametrize(
    "check",
    [
        *(answers.MODULE, answers.ARRAY, answers.HELLO, answers.MEMORY, answers.NAMES, answers.times, answers.RUN),
        turns.TURNS,
    ],
)
@given(said=ANY_JSON)
def test_a_devices_answer_is_valid_or_refused_in_one_sentence(check, said):
    problem = ""
    try:
        answers.from_device(check, said, "it")
    except errors.ProtocolError as error:
        problem = str(error)
    assert problem == "" or problem.startswith("what the device says of it makes no sense: ")


def test_a_handle_is_of_its_kind():
    assert answers.handle("text", str, "it") == "text"
    with pytest.raises(errors.ProtocolError, match="no such object"):
        answers.handle(1, str, "it")


@pytest.mark.parametrize("name", ["SessionTimeout", "MemoryLimit", "PathError", "DeadlineExceeded"])
def test_an_error_of_the_session_is_raised_by_its_name(name):
    error = error_frame(type=name, message="why")
    assert type(error) is getattr(errors, name)
    assert str(error) == "why"


@pytest.mark.parametrize("name", ["Busy", "ModelError", "ValueError", "RpcsysError"])
def test_an_error_of_the_users_code_has_its_message_and_traceback(name):
    error = error_frame(type=name, message="why", traceback="line 1\n\x1b[2J", retryable=True, fault="device")
    assert type(error) is getattr(errors, name if name in ("Busy", "ModelError") else "RemoteError")
    assert (error.type, error.retryable, error.fault) == (name, True, "device")
    assert error.remote_traceback == "line 1\n\\x1b[2J"


def test_an_error_of_no_call_ends_the_session():
    assert type(error_frame(0, type="ValueError", message="why")) is errors.SessionLost
    assert type(error_frame(0, type="Busy", message="why")) is errors.Busy


def test_a_long_message_is_cut():
    assert len(error_frame(type="ValueError", message="x" * 100_000).args[0]) == answers.MAX_TEXT
