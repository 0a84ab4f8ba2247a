"""The session process, frame by frame: valid frames, as `rpcsys.client` sends them, and invalid ones."""

from __future__ import annotations

import json
import os
import signal
import threading
from pathlib import Path

import numpy as np
import pytest

from rpcsys.server.session import session
from rpcsys.stream import Ended
from rpcsys.wire import frames
from rpcsys.wire.values import InOut, Out, Ref
from tests.device import Device


@pytest.fixture(scope="module")
def shared(speedups):
    """One device for all tests that leave a session unchanged."""
    with Device() as device:
        yield device.raw()


@pytest.fixture
def fresh(speedups):
    with Device() as device:
        yield device


def result(raw, call_id):
    frame = raw.receive()
    assert (frame.kind, frame.call_id) == (frames.RESULT, call_id), frame.fields()
    return frame.get("r")


def error(raw, call_id):
    frame = raw.receive()
    assert (frame.kind, frame.call_id) == (frames.ERROR, call_id), frame
    return frame.fields()


def test_every_result_says_what_its_function_took(shared):
    """In C and in Python: from a cached head or not, alone or in a row, of a plain result or another one."""
    calls = [("testing.echo", [1]), ("testing.echo", [[1]]), ("testing.echo", [np.zeros(9)]), ("testing.sleep", [0.05])]
    for number, (name, args) in enumerate(calls * 3, 1):
        shared.call(number, name, *args)
    for number, (name, _) in enumerate(calls * 3, 1):
        frame = shared.receive()
        assert (frame.kind, frame.call_id) == (frames.RESULT, number), frame.fields()
        assert (50_000 if name == "testing.sleep" else 1) <= frame.deadline_ms < 60_000_000


# ---------------------------------------------------------------- the beginning and the end


def test_hello_describes_the_server():
    with Device(limit_s=500) as device:
        frame = device.opened().receive()
        reply = frame.fields()
        assert (frame.kind, reply["version"], reply["key"], reply["limit_s"]) == (frames.HELLO, 1, "key", 500)
        assert reply["pid"] == device.process.pid
        assert reply["window"]["calls"] == 256
        assert 1 << 20 <= reply["window"]["bytes"] <= 256 << 20
        assert reply["devices"] == ["cpu:0"]
        assert ".onnx" in reply["capabilities"]["loads"]


@pytest.mark.parametrize("kind", [frames.CALL, frames.PING, frames.GOODBYE])
def test_a_session_begins_with_hello(fresh, kind):
    raw = fresh.opened()
    raw.receive()
    raw.send(kind, 1)
    reply = error(raw, 0)
    assert (reply["type"], reply["message"]) == ("ProtocolError", "a session begins with HELLO")
    assert raw.ended()
    assert fresh.reports() == [{"served": "lost"}]


@pytest.mark.slow
def test_a_client_that_sends_nothing_is_dropped(fresh):
    raw = fresh.opened()
    raw.receive()
    assert error(raw, 0)["type"] == "ProtocolError"
    assert fresh.reports() == [{"served": "lost"}]


def test_a_rehearsal_leaves_no_state():
    """It runs in a process that serves a client later."""

    def state():
        return (
            sorted(os.listdir("/proc/self/fd")),
            threading.active_count(),
            os.getcwd(),
            signal.getsignal(signal.SIGUSR1),
        )

    session.rehearse()
    before = state()
    session.rehearse()
    assert state() == before


def test_goodbye_closes_the_session(fresh):
    raw = fresh.raw()
    raw.send(frames.GOODBYE)
    assert raw.ended()
    assert fresh.reports() == [{"served": "closed"}]


def test_a_closed_connection_is_reported_as_lost(fresh):
    fresh.raw().sock.close()
    assert fresh.reports() == [{"served": "lost"}]


def test_a_connection_closed_within_a_frame_is_reported_as_lost(fresh):
    raw = fresh.raw()
    raw.sock.sendall(frames.pack(frames.PING, 1)[0][:20])
    raw.sock.close()
    assert fresh.reports() == [{"served": "lost"}]


def test_a_connection_closed_before_its_results_is_reported_as_lost(fresh):
    raw = fresh.raw()
    raw.call(1, "test.zeros", 16 << 20)
    raw.sock.recv(1)
    raw.sock.close()
    assert fresh.reports() == [{"served": "lost"}]


NONSENSE = [
    ("bytes", b"GET / HTTP/1.1\r\nHost: device\r\n\r\n" * 1000, "kind"),
    ("kind", frames.HEADER.pack(0, 99, 0, 0, 0, 1, 0), "kind 99"),
    ("head", frames.HEADER.pack(1 << 30, frames.CALL, 0, 0, 0, 1, 0), "a head of"),
    ("body", frames.HEADER.pack(0, frames.CALL, 0, 0, 0, 1, 1 << 62), "a body of"),
    ("later", frames.pack(frames.PING, 1)[0] + b"\0" * 24, "kind 0"),
    ("json", frames.HEADER.pack(3, frames.CALL, 0, 0, 0, 1, 0) + b"{x}", "not JSON"),
    ("result", frames.pack(frames.RESULT, 1, b'{"r":1}')[0], "a client does not send RESULT"),
    ("hello", frames.encode(frames.HELLO, 0, {"version": 1})[0], "a client does not send HELLO"),
    ("pong", frames.pack(frames.PONG, 1)[0], "a client does not send PONG"),
]


@pytest.mark.parametrize(("data", "message"), [row[1:] for row in NONSENSE], ids=[row[0] for row in NONSENSE])
def test_invalid_frames_get_an_error_and_end_the_session(data, message):
    with Device() as device:
        raw = device.raw()
        raw.stream.send([data])
        frame = raw.receive()
        while frame.kind == frames.PONG:
            frame = raw.receive()
        reply = frame.fields()
        assert (frame.kind, frame.call_id) == (frames.ERROR, 0)
        assert (reply["type"], reply["fault"]) == ("ProtocolError", "network")
        assert message in reply["message"]
        assert raw.ended()
        assert device.reports() == [{"served": "lost"}]


# ---------------------------------------------------------------- calls


def test_a_call_gets_its_result(shared):
    shared.call(1, "testing.echo", 5)
    shared.call(2, "testing.echo", "text", b"bytes")
    shared.call(3, "testing.nop")
    assert result(shared, 1) == 5
    assert result(shared, 2) == ("text", b"bytes")
    assert result(shared, 3) is None


def test_calls_run_in_the_order_sent_and_ids_may_be_anything(shared):
    ids = [7, 3, 3, 0xFFFFFFFF, 0]
    for number, call_id in enumerate(ids):
        shared.call(call_id, "testing.echo", number)
    assert [result(shared, call_id) for call_id in ids] == list(range(5))


@pytest.mark.parametrize("target", ["none", "session.none", None, 99, True, {}, [], [1], [99, "main"], {"@x": 1}, 1.5])
def test_an_unknown_target_is_refused(shared, target):
    shared.call(1, target)
    assert error(shared, 1)["type"] == "RemoteFunctionError"


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({"f": "testing.echo", "a": 5}, "ProtocolError"),
        ({"f": "testing.echo", "k": {}}, "ProtocolError"),
        ({"f": "session.upload", "a": []}, "ProtocolError"),
        ({"f": "session.upload", "a": [1]}, "ProtocolError"),
        ({"f": "session.download", "a": ["a", "b"]}, "ProtocolError"),
        ({"f": "testing.echo", "a": [Ref(12345)]}, "RemoteFunctionError"),
        ({"f": "testing.sleep"}, "RemoteArgumentError"),
        ({"f": "testing.nop", "a": [Out((1 << 45,), "uint8")]}, "LimitExceeded"),
        ({}, "RemoteFunctionError"),
    ],
)
def test_an_invalid_call_fails_alone(shared, fields, kind):
    shared.send(frames.CALL, 1, fields)
    assert error(shared, 1)["type"] == kind
    shared.call(2, "testing.echo", "still here")
    assert result(shared, 2) == "still here"


def test_a_users_exception_has_a_traceback(shared):
    shared.call(1, "testing.fail", "of the user")
    reply = error(shared, 1)
    assert (reply["type"], reply["message"], reply["fault"]) == ("RuntimeError", "of the user", "user")
    assert "in _fail" in reply["traceback"]


def test_an_exception_is_freed_once_it_is_reported(shared):
    """And with it, without a collection, the arguments of its call."""
    for call_id in range(5):
        shared.call(call_id, "test.divide", 1, 0)
        error(shared, call_id)
    shared.call(5, "test.division_errors")
    assert result(shared, 5) == 0


def test_an_exception_without_text_is_reported(shared):
    shared.call(1, "test.mute")
    assert error(shared, 1)["message"] == "an exception whose text cannot be made"


def test_an_endless_recursion_is_an_error(shared):
    shared.call(1, "test.endless")
    reply = error(shared, 1)
    assert reply["type"] == "RecursionError"
    assert len(reply["traceback"]) <= 64000


def test_a_result_that_cannot_be_sent_is_an_error(shared):
    shared.call(1, "test.unsendable")
    reply = error(shared, 1)
    assert reply["type"] == "ValueNotSupported"
    assert reply["traceback"] == ""


def test_out_and_inout_are_returned_in_order(shared):
    given = np.arange(3, dtype="u1")
    targets = {"list": [InOut(given), Out((2,), "float32")], "one": InOut(np.zeros(4, "i1"))}
    shared.call(1, "testing.nop", targets, Out((0, 3), "int64"), given)
    written = shared.receive().get("w")
    assert [(tensor.dtype, tensor.shape) for tensor in written] == [
        ("uint8", (3,)), ("float32", (2,)), ("int8", (4,)), ("int64", (0, 3)),
    ]  # fmt: skip
    assert written[0].tolist() == [0, 1, 2]
    assert written[1].tolist() == [0.0, 0.0]


def test_memory_for_outputs_is_zeroed(shared):
    secret = np.full(3 << 20, 0x5A, "u1")
    shared.call(1, "testing.nop", secret)
    shared.call(2, "testing.nop", Out((3 << 20,), "uint8"))
    assert result(shared, 1) is None
    (fresh_memory,) = shared.receive().get("w")
    assert not np.frombuffer(fresh_memory.data, "u1").any()


def test_kept_objects_are_freed_by_a_free_frame(shared):
    shared.call(1, "test.kept", "one")
    shared.call(2, "test.kept", "two")
    one, two = result(shared, 1), result(shared, 2)
    assert (one.about["is"], one.id != two.id) == ("function", True)
    shared.call(3, one.id, "arg")
    assert result(shared, 3) == ("one", ["arg"])
    shared.send(frames.FREE, 0, {"ids": [one.id, one.id, 10**9, "x", None]})
    shared.send(frames.FREE, 0, {"ids": 5})
    shared.call(4, "test.dropped")
    assert result(shared, 4) == ["one"]
    shared.call(5, one.id)
    assert error(shared, 5)["type"] == "RemoteFunctionError"
    shared.call(6, two.id)
    assert result(shared, 6) == ("two", [])


def test_arrays_of_a_result_are_kept_on_request(shared):
    array = np.ones((2, 3))
    for call_id, keep in ((1, True), (2, False)):
        shared.send(frames.CALL, call_id, {"f": "testing.echo", "a": [array, [array, 1]], "keep": keep})
    first, (second, one) = result(shared, 1)
    assert (first.about, one) == ({"is": "array", "dtype": "float64", "shape": [2, 3]}, 1)
    assert second.id != first.id
    shared.call(3, "testing.echo", first)
    plain, _ = result(shared, 2)
    assert plain.tolist() == result(shared, 3).tolist() == array.tolist()


def test_a_named_tuple_is_kept_as_a_tuple(shared):
    shared.send(frames.CALL, 1, {"f": "test.named", "a": [np.ones(2), 5], "keep": True})
    first, second = result(shared, 1)
    assert (first.about["shape"], second) == ([2], 5)


def test_a_ping_between_calls_is_answered(shared):
    shared.send(frames.PING, 77)
    frame = shared.receive()
    assert (frame.kind, frame.call_id) == (frames.PONG, 77)


def test_cancelling_an_answered_call_changes_nothing(shared):
    shared.call(1, "testing.nop")
    assert result(shared, 1) is None
    shared.send(frames.CANCEL, 1)
    shared.call(2, "testing.nop")
    assert result(shared, 2) is None


def test_large_arrays_are_pipelined_both_ways(shared):
    """A client sends all calls before it waits for a result: both ends read while they cannot send."""
    size, calls = 2 << 20, 20
    for call_id in range(calls):
        shared.call(call_id, "testing.echo", np.full(size, call_id, "u1"))
    for call_id in range(calls):
        data = result(shared, call_id).numpy()
        assert data.size == size
        assert (data == call_id).all()


def test_arguments_are_aligned_writable_numpy_arrays(shared):
    shared.call(1, "test.types", np.ones(3), np.float32(1), np.array(["a"], object), [np.ones(1)], None, "s")
    assert result(shared, 1) == [
        "numpy.ndarray", "numpy.ndarray", "numpy.ndarray", "builtins.list", "builtins.NoneType", "builtins.str",
    ]  # fmt: skip
    shared.call(2, "test.fill", np.ones(3, "u1"), 9)
    assert result(shared, 2) == b"\1\1\1"


def test_results_of_one_shape_may_differ_in_the_order_of_their_elements(shared):
    array = np.arange(9.0).reshape(3, 3)
    for call_id, transposed in enumerate([False, False, True, True, False]):
        shared.call(call_id, "test.transposed", array, transposed)
        assert (result(shared, call_id).numpy() == (array.T if transposed else array)).all()


# ---------------------------------------------------------------- the end from inside


def test_exit_in_a_function_is_reported(fresh):
    raw = fresh.raw()
    raw.call(1, "test.exit", 3)
    reply = error(raw, 0)
    assert reply["type"] == "SessionLost"
    assert reply["message"] == "a function on the device ended its process (SystemExit(3))"
    assert raw.ended()
    assert fresh.reports() == [{"outcome": "ended", "why": reply["message"]}]


def test_keyboard_interrupt_in_a_function_is_reported(fresh):
    raw = fresh.raw()
    raw.call(1, "test.interrupt")
    reply = error(raw, 0)
    assert "KeyboardInterrupt" in reply["message"]
    assert fresh.reports() == [{"outcome": "ended", "why": reply["message"]}]


def test_a_killed_process_ends_the_connection(fresh):
    raw = fresh.raw()
    os.kill(fresh.process.pid, signal.SIGKILL)
    with pytest.raises(Ended):
        raw.receive()


# ---------------------------------------------------------------- without numpy


def test_a_device_without_numpy_serves_arrays():
    with Device(hide=("numpy", "onnxruntime", "ml_dtypes")) as device:
        raw = device.opened()
        reply = raw.receive().fields()
        assert (reply["capabilities"]["numpy"], ".onnx" in reply["capabilities"]["loads"]) == (False, False)
        raw.send(frames.HELLO, 0, {"version": 1})
        array = np.arange(6, dtype="f4").reshape(2, 3)
        raw.call(1, "testing.echo", array)
        assert result(raw, 1).tolist() == array.tolist()
        raw.call(2, "test.types", array)
        assert result(raw, 2) == ["rpcsys.wire.tensor.Tensor"]
        raw.call(3, "test.fill", Out((4,), "uint8"), 7)
        frame = raw.receive()
        assert frame.get("w")[0].tolist() == [7] * 4
        raw.send(frames.CALL, 4, {"f": "testing.echo", "a": [array], "keep": True})
        kept = result(raw, 4)
        raw.call(5, "session.get", kept)
        assert result(raw, 5).tolist() == array.tolist()
        raw.call(6, "test.zeros", 3 << 20)
        assert result(raw, 6).nbytes == 3 << 20
        raw.call(7, "testing.echo", np.array(["a", "b"], object))
        assert result(raw, 7).tolist() == ["a", "b"]


def test_numpy_is_not_imported_before_it_is_used(fresh):
    """A session must not load numpy before the first array."""
    raw = fresh.raw()  # held: the process ends with its connection, and its maps with it
    raw.call(1, "testing.nop")
    assert result(raw, 1) is None
    mapped = Path(f"/proc/{fresh.process.pid}/maps").read_text(encoding="utf-8")
    assert "libc" in mapped
    assert "numpy" not in mapped


def test_reports_are_lines_of_json(fresh):
    raw = fresh.raw(limit_s=100)
    raw.send(frames.GOODBYE)
    assert fresh.reports() == [{"limit_s": 100.0}, {"served": "closed"}]


@pytest.mark.parametrize("asked", [0, -1, float("inf"), float("nan"), True, "5", None, [1]])
def test_an_invalid_limit_is_ignored(fresh, asked):
    raw = fresh.raw(limit_s=asked)
    raw.call(1, "testing.nop")
    assert result(raw, 1) is None
    raw.send(frames.GOODBYE)
    assert json.dumps(fresh.reports()) == '[{"served": "closed"}]'
