"""What a reply of rpcsys/1 is for clients of the protocol."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.gateway.calls import Outcome
from rpcsys.gateway.outcomes import outcome_of
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.tensor import Tensor

X = Tensor("float32", (2,), bytes(8))
NAMES = Tensor("strings", (2,), ["a", "b"])


def replied(kind: int, fields: dict[str, Any], reader: FrameReader | None = None, took: int = 0) -> Outcome:
    pieces = frames.encode(kind, 5, fields, deadline_ms=took)
    (frame,) = (reader or FrameReader()).feed(b"".join(map(bytes, pieces)))
    return outcome_of(frame)


@pytest.mark.parametrize("result", [(X, NAMES), [X, NAMES]])
def test_outputs_are_arrays_in_order(result: Any) -> None:
    outcome = replied(frames.RESULT, {"r": result}, took=1234)
    assert outcome.error is None
    assert outcome.form is not None
    assert outcome.form.outputs == (("float32", (2,)), ("strings", (2,)))
    assert [len(buffer) for buffer in outcome.buffers] == [8, 18]
    assert outcome.compute_us == 1234


def test_one_array_is_one_output() -> None:
    outcome = replied(frames.RESULT, {"r": X})
    assert outcome.form is not None
    assert outcome.form.outputs == (("float32", (2,)),)


def test_equal_results_have_one_form() -> None:
    reader = FrameReader()
    first, second = (replied(frames.RESULT, {"r": X}, reader) for _ in range(2))
    assert first.form is second.form


@pytest.mark.parametrize("result", [None, 1.5, "text", (X, 2), [[X]], {"y": X}])
def test_a_result_that_is_no_array_is_an_error(result: Any) -> None:
    error = replied(frames.RESULT, {"r": result}).error
    assert error is not None
    assert error.status == 500
    assert "is no array" in str(error)


@pytest.mark.parametrize(
    ("fields", "status", "text"),
    [
        ({"type": "KeyError", "message": "no such\nrow", "fault": "user"}, 400, "no such row"),
        ({"type": "OSError", "message": "disk", "fault": "device"}, 500, "disk"),
        ({"type": "RemoteArgumentError", "message": "wrong"}, 400, "wrong"),
        ({"type": "Busy", "message": "all run", "retryable": True}, 503, "all run"),
        ({"type": "DeadlineExceeded", "message": "0.1 s"}, 504, "the deadline was exceeded: 0.1 s"),
        ({"type": "MemoryLimit", "message": "too much"}, 500, "too much"),
        ({}, 400, "the device gave no message"),
    ],
)
def test_errors_are_the_devices_own_sentences(fields: dict[str, Any], status: int, text: str) -> None:
    error = replied(frames.ERROR, fields).error
    assert error is not None
    assert (error.status, str(error)) == (status, text)


_json = st.recursive(
    st.none() | st.booleans() | st.integers(-9, 9) | st.text(max_size=3),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner, max_size=3),
)


@given(st.sampled_from([frames.RESULT, frames.ERROR]), st.dictionaries(st.sampled_from(["r", "w", "type"]), _json))
def test_any_reply_is_an_outcome(kind: int, fields: dict[str, Any]) -> None:
    outcome = replied(kind, fields)
    assert (outcome.form is None) == (outcome.error is not None)
