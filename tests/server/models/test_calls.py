"""The calls of a deployed module, from frame to frame."""

from __future__ import annotations

import zlib

import numpy as np
import pytest

from rpcsys.module.module import Module
from rpcsys.server.models.calls import ModuleCalls
from rpcsys.server.session.outgoing import exception_frame
from rpcsys.wire import frames
from rpcsys.wire.encoding import Encoded
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.values import Out, Ref


def scaled(x, factor=2):
    return x * factor


def fill(out):
    out[:] = 7


@pytest.fixture
def calls():
    functions = {"main": scaled, "fill": fill, "nothing": lambda: None, "lambda": lambda: scaled, "fail": lambda: 1 / 0}
    described = [{"name": "x", "dtype": "float32", "shape": [None]}]
    return ModuleCalls(Module("test", functions, inputs=described, outputs=[{**described[0], "name": "y"}]))


def answer(calls: ModuleCalls, **fields) -> frames.Frame:
    (call,) = FrameReader().feed(b"".join(map(bytes, frames.encode(frames.CALL, 5, fields))))
    try:
        pieces = calls.answer(call)
    except Exception as error:
        pieces = exception_frame(5, error)
    (frame,) = FrameReader().feed(b"".join(map(bytes, pieces)))
    assert frame.call_id == 5
    return frame


def result(calls: ModuleCalls, **fields):
    frame = answer(calls, **fields)
    assert frame.kind == frames.RESULT, frame
    return frame


X = np.arange(3, dtype="float32")


def test_main_runs_by_position_and_by_name(calls):
    assert result(calls, f=[0, "main"], a=[X]).get("r").tolist() == [0, 2, 4]
    assert result(calls, f=[0, "main"], a=[X, 3]).get("r").tolist() == [0, 3, 6]
    assert result(calls, f=[0, "main"], k={"x": X}, outputs=["y"]).get("r")["y"].tolist() == [0, 2, 4]
    assert result(calls, f=[0, "nothing"], a=[]).get("r") is None


def test_outputs_that_are_written_into_are_returned(calls):
    frame = result(calls, f=[0, "fill"], a=[Out((4,), "float32")])
    assert frame.get("w")[0].tolist() == [7] * 4


def test_results_can_be_encoded(calls):
    frame = result(calls, f=[0, "main"], a=[X], encode={"0": "float16"})
    assert frame.parsed.head["r"]["@"] == "encoded"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"f": [0, "other"], "a": []}, "RemoteFunctionError"),
        ({"f": [1, "main"], "a": []}, "RemoteFunctionError"),
        ({"f": "session.listdir", "a": ["."]}, "RemoteFunctionError"),
        ({"f": "main", "a": [1]}, "RemoteFunctionError"),
        ({"f": 0, "a": [1]}, "RemoteFunctionError"),
        ({"f": [0, ["main"]], "a": []}, "RemoteFunctionError"),
        ({"a": [1]}, "RemoteFunctionError"),
        ({"f": [0, "main"], "a": 1}, "ProtocolError"),
        ({"f": [0, "fill"], "k": {}}, "ProtocolError"),
        ({"f": [0, "main"], "a": [Ref(1)]}, "RemoteFunctionError"),
        ({"f": [0, "main"], "a": [X], "keep": True}, "RemoteArgumentError"),
        ({"f": [0, "lambda"], "a": []}, "RemoteArgumentError"),
        ({"f": [0, "fail"], "a": []}, "ZeroDivisionError"),
        ({"f": [0, "main"], "k": {"z": X}}, "RemoteArgumentError"),
    ],
)
def test_invalid_calls_get_an_error(calls, fields, kind):
    frame = answer(calls, **fields)
    assert (frame.kind, frame.get("type")) == (frames.ERROR, kind)


def test_arguments_that_are_made_here_must_fit_the_model(calls):
    """They are refused before memory is allocated: these need more than there is."""
    for made in (Out((1 << 50,), "uint8"), Out((1 << 40, 3), "float32")):
        for fields in ({"a": [made]}, {"k": {"x": made}}):
            frame = answer(calls, f=[0, "main"], **fields)
            assert frame.get("type") == "RemoteArgumentError"
            assert "input 'x' wants float32 [None], and got" in frame.get("message")


@pytest.mark.parametrize(
    "made",
    [
        Out((1 << 30,), "uint8"),
        Encoded("zlib", "float32", (1 << 28,), zlib.compress(bytes(1 << 20))),
        Encoded("int8", "float64", (1 << 27,), b"1"),
        np.array([""] * 20_000, dtype=object),
    ],
)
def test_arguments_that_are_made_here_count_for_the_window(made):
    calls = ModuleCalls(Module("test", {"fill": fill, "main": scaled}), 1 << 20)
    frame = answer(calls, f=[0, "fill"], a=[made])
    assert (frame.get("type"), frame.get("fault")) == ("RemoteArgumentError", "user")
    assert "(at most 1048576, as if they were sent)" in frame.get("message")
    assert result(calls, f=[0, "fill"], a=[Out((4,), "float32")]).get("w")[0].tolist() == [7] * 4
