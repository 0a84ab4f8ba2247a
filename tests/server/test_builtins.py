"""The functions that come with a server, with every wrong number and type of arguments: one line, and the session goes on."""

from __future__ import annotations

import contextlib

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys import errors
from rpcsys.server.session import user_code
from rpcsys.wire import frames
from rpcsys.wire.values import Ref
from tests.device import Device

FUNCTIONS = (
    *("session.has_function", "session.load_module", "session.listdir", "session.remove", "session.offer"),
    *("session.memory", "session.put", "session.get", "session.run", "session.time", "session.functions"),
    *("testing.echo", "testing.nop", "testing.sleep"),
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([".", "../x", "a\0b", "\ud800", "x.so", "testing.nop", "session.time", user_code.VERSION])
    | st.binary(max_size=20)
    | st.just(np.zeros(3))
)
values = st.recursive(
    plain,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(
            st.text(max_size=5) | st.sampled_from(["number", "repeat", "min_repeat_ms"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)
#: What would rightly take long.
short = values.filter(
    lambda value: not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-3 < value <= 1e6
)


@pytest.fixture(scope="module")
def raw():
    with Device(allow_pickle=True) as device:
        yield device.raw()


def answer(raw, fields):
    raw.send(frames.CALL, 1, fields)
    frame = raw.receive()
    raw.send(frames.PING, 2)
    assert raw.receive().kind == frames.PONG
    return frame


def one_line(frame):
    """Whether an answer is a RESULT, or an error of ours on one line, and no traceback."""
    if frame.kind == frames.RESULT:
        return True
    said = frame.fields()
    message = said["message"]
    return (
        frame.kind == frames.ERROR
        and isinstance(getattr(errors, said["type"], None), type)
        and said["traceback"] == ""
        and 0 < len(message) == len(message.splitlines()[0])
    )


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(function=st.sampled_from(FUNCTIONS), args=st.lists(short, max_size=4))
def test_wrong_arguments_are_one_line(raw, function, args):
    frame = answer(raw, {"f": function, "a": args})
    assert one_line(frame), frame.fields()


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(["f", "a", "k", "outputs", "keep", "encode"]), values))
def test_calls_of_any_form_are_one_line(raw, fields):
    with contextlib.suppress(errors.ValueNotSupported):
        if type(fields.get("f")) is not str:
            assert one_line(answer(raw, fields))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        ("session.time", ["testing.nop", [], {"min_repeat_ms": 10**400}]),
        ("session.time", ["testing.nop", [], {"cooldown_s": float("nan")}]),
        ("session.time", ["testing.nop", 5, {}]),
        ("session.time", [["testing.nop", 5], [], {}]),
        ("session.time", [{}, [], {}]),
        ("session.listdir", [5]),
        ("session.remove", []),
        ("session.load_module", [None]),
        ("session.has_function", [[1, 2]]),
        ("session.has_function", ["x" * 100_000]),
        ("session.get", [Ref(77)]),
        ("session.put", []),
        ("session.run", [user_code.VERSION, b"no pickle"]),
        ("session.run", [user_code.VERSION, cloudpickle.dumps(5)]),
        ("session.run", [user_code.VERSION]),
        ("session.offer", ["x", True, "0" * 64]),
        ("testing.sleep", ["x"]),
        ("testing.sleep", [-1]),
        ("testing.sleep", [float("inf")]),
        ("testing.fail", [1, 2]),
        ([99, 5], []),
        ([[], "main"], []),
        (None, []),
        ({"x": 1}, []),
    ],
)
def test_wrong_arguments_by_name(raw, function, args):
    frame = answer(raw, {"f": function, "a": args})
    assert frame.kind == frames.ERROR
    assert one_line(frame), frame.fields()
