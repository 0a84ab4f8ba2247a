"""Functions of a session that are timed in turns."""

from __future__ import annotations

import threading
from concurrent.futures import CancelledError

import pytest

from rpcsys.client import turns
from rpcsys.errors import (
    Cancelled,
    NotSupported,
    ProtocolError,
    RemoteArgumentError,
    RemoteError,
    RemoteFunctionError,
    UsageError,
)
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from tests.client.test_remote import A, B, model, model_file  # noqa: F401 - fixtures


def test_modules_functions_and_arguments(shared, model):  # noqa: F811
    nop, kept = shared.get_function("testing.nop"), shared.array(A)
    report = shared.time_turns([(model, [A, B]), (model["main"], [kept, B]), (nop, [])], [2, 0, 1, 0], [1, 2, 1000])
    assert len(report["seconds"]) == 4
    assert all(0 < seconds < 1 for seconds in report["seconds"])
    assert report["board"]["before"]["load"] >= 0
    assert shared.submit_turns([(nop, [])], [0], [1], 1.0).result().keys() == report.keys()


def test_errors_of_the_device(shared):
    nop, fail = shared.get_function("testing.nop"), shared.get_function("testing.fail")
    with pytest.raises(RemoteArgumentError, match="order has places"):
        shared.time_turns([(nop, [])], [1], [1])
    with pytest.raises(RemoteError, match="asked to fail"):
        shared.time_turns([(nop, []), (fail, [])], [0, 1], [1, 1])
    with pytest.raises(UsageError, match="not a str"):
        shared.time_turns([("testing.nop", [])], [0], [1])


def test_a_freed_module_is_an_error(shared, model_file):  # noqa: F811
    loaded = shared.load_module(model_file)
    function = loaded["main"]
    shared._channel.free(loaded._id)
    with pytest.raises(RemoteFunctionError, match="no object"):
        shared.time_turns([(function, [A, B])], [0], [1])


def test_an_older_server_is_named(session):
    del session.info["capabilities"]["turns"]
    with pytest.raises(NotSupported, match="times no functions in turns; update rpcsys there"):
        session.time_turns([(session.get_function("testing.nop"), [])], [0], [1])


def test_a_measurement_can_be_cancelled(session):
    sleep = session.get_function("testing.sleep")
    future = session.submit_turns([(sleep, [0.01])], [0] * 10_000, [1], 600.0)
    threading.Timer(0.5, future.cancel).start()
    with pytest.raises((Cancelled, CancelledError)):
        future.result(timeout=20)
    assert session.get_function("testing.echo")(1) == 1


GOOD = {
    **{name: [0.1] for name in ("seconds", "own_cpu", "thread_cpu", "others_cpu", "waited", "switches")},
    "board": {"before": {}, "after": {}},
}


@pytest.mark.parametrize(
    "answer",
    [
        None,
        {},
        {**GOOD, "seconds": []},
        {**GOOD, "seconds": [-0.1]},
        {**GOOD, "waited": ["x"]},
        {**GOOD, "board": 5},
        {**GOOD, "board": {"before": [], "after": {}}},
        {name: value * 2 if isinstance(value, list) else value for name, value in GOOD.items()},
    ],
)
def test_an_invalid_answer_is_refused(session, answer):
    with pytest.raises(ProtocolError, match="makes no sense"):
        turns.told(session._result, 1, result(answer))


def test_a_valid_answer_is_returned(session):
    assert turns.told(session._result, 1, result(GOOD)) == GOOD


def result(answer):
    (frame,) = FrameReader().feed(b"".join(frames.encode(frames.RESULT, 1, {"r": answer})))
    return frame
