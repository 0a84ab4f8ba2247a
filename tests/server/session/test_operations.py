"""The functions that make up a session, called frame by frame."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.server.session import registry
from rpcsys.wire import frames
from rpcsys.wire.values import InOut, Out
from tests.device import Device


@pytest.fixture(scope="module")
def raw():
    with Device() as device:
        yield device.raw()


@pytest.fixture
def call(raw):
    def call(function, *args):
        raw.call(1, function, *args)
        frame = raw.receive()
        if frame.kind == frames.ERROR:
            return frame.get("type"), frame.get("message")
        assert frame.kind == frames.RESULT
        return frame.get("r")

    return call


def test_has_function(call):
    assert call("session.has_function", "testing.echo") is None
    assert call("session.has_function", "session.listdir") is None
    kind, message = call("session.has_function", "lab.none")
    assert kind == "RemoteFunctionError"
    assert message.startswith("the device has no function 'lab.none'; it has ")
    assert "testing.echo" in message


def test_functions(call):
    assert set(call("session.functions")) >= set(registry.names())


def test_arrays_stay_and_come_back(call):
    array = np.arange(6).reshape(2, 3)
    kept = call("session.put", array)
    assert kept.about == {"is": "array", "dtype": "int64", "shape": [2, 3]}
    assert call("session.get", kept).tolist() == array.tolist()
    assert call("testing.echo", kept, [kept])[1][0].tolist() == array.tolist()


@pytest.mark.parametrize("value", [5, "text", b"bytes", None, [np.ones(2)], {"a": np.ones(2)}])
def test_only_arrays_are_put(call, value):
    kind, message = call("session.put", value)
    assert (kind, message) == (
        "RemoteArgumentError", f"session.array takes an array, not a {type(value).__name__}",
    )  # fmt: skip


@pytest.mark.parametrize("value", [np.float32(2), np.zeros((0, 3)), np.array(["a", "b"], object), np.ones(3, "M8[s]")])
def test_arrays_of_all_kinds_are_put(call, value):
    assert np.array_equal(call("session.get", call("session.put", value)).numpy(), value)


def test_time(call):
    answer = call("session.time", "testing.nop", [1, np.ones(3)], {"number": 2, "repeat": 3})
    assert len(answer["results"]) == 3
    assert all(0 < seconds < 1 for seconds in answer["results"])
    assert answer["board"].keys() == {"before", "after"}
    assert type(answer["warnings"]) is list
    kept = call("test.kept", "timed")
    assert len(call("session.time", kept.id, [], {})["results"]) == 1
    for written in (Out((4,), "uint8"), InOut(np.ones(4, "u1"))):
        answer = call("session.time", "test.fill", [written, 1], {"number": 1, "cache_flush_bytes": 1 << 20})
        assert len(answer["results"]) == 1


@pytest.mark.parametrize(
    ("arguments", "kind"),
    [
        (("none", [], {}), "RemoteFunctionError"),
        (("testing.fail", ["timed"], {}), "RuntimeError"),
        (("testing.nop", [], {"number": 0}), "RemoteArgumentError"),
        (([1, "main"], [], {}), "RemoteFunctionError"),
    ],
)
def test_time_of_what_fails(call, arguments, kind):
    assert call("session.time", *arguments)[0] == kind


def test_a_function_that_returns_functions(call):
    said = call("test.counter", 5)
    assert said["name"] == "counter"
    assert said["add"].about == {"is": "function", "name": "more"}
    assert [call(said["add"].id, by) for by in (1, 10)] == [6, 16]


def test_an_array_is_no_function_and_a_function_no_module(call):
    array, function = call("session.put", np.ones(1)), call("test.kept", "x")
    assert call(array.id) == ("RemoteFunctionError", f"object {array.id} of this session is no function")
    assert call([function.id, "main"]) == ("RemoteFunctionError", f"object {function.id} of this session is no module")


@pytest.mark.parametrize("name", ["none.onnx", "../none.onnx"])
def test_a_module_that_is_not_there(call, name):
    assert call("session.load_module", name)[0] in ("RemoteFileError", "PathError")
