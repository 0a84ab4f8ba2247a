"""The functions of a session, called frame by frame, also with every wrong number and type of arguments."""

from __future__ import annotations

import contextlib

import cloudpickle
import numpy as np
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from rpcsys import errors
from rpcsys.server.session import registry
from rpcsys.server.session.calls import Objects, ThreadMemory
from rpcsys.server.session.directory import Directory
from rpcsys.server.session.exec_calls import ExecCalls, refusal
from rpcsys.server.session.files import Files
from rpcsys.server.session.operations import PYTHON, Operations
from rpcsys.wire import frames
from rpcsys.wire.values import InOut, Out, Ref
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


def test_has_function_names_the_functions_there_are(call):
    assert call("session.has_function", "testing.echo") is None
    assert call("session.has_function", "session.listdir") is None
    kind, message = call("session.has_function", "lab.none")
    assert kind == "RemoteFunctionError"
    assert message.startswith("the device has no function 'lab.none'; it has ")
    assert "testing.echo" in message


def test_functions_lists_all_names(call):
    assert set(call("session.functions")) >= set(registry.names())


def test_arrays_are_kept_and_returned(call):
    array = np.arange(6).reshape(2, 3)
    kept = call("session.put", array)
    assert kept.about == {"is": "array", "dtype": "int64", "shape": [2, 3]}
    assert call("session.get", kept).tolist() == array.tolist()
    assert call("testing.echo", kept, [kept])[1][0].tolist() == array.tolist()


@pytest.mark.parametrize("value", [5, "text", b"bytes", None, [np.ones(2)], {"a": np.ones(2)}])
def test_put_refuses_other_values_than_arrays(call, value):
    kind, message = call("session.put", value)
    assert (kind, message) == (
        "RemoteArgumentError", f"session.array takes an array, not a {type(value).__name__}",
    )  # fmt: skip


@pytest.mark.parametrize("value", [np.float32(2), np.zeros((0, 3)), np.array(["a", "b"], object), np.ones(3, "M8[s]")])
def test_put_takes_arrays_of_all_kinds(call, value):
    assert np.array_equal(call("session.get", call("session.put", value)).numpy(), value)


def test_time_returns_results_and_the_boards_state(call):
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
def test_time_of_a_failing_call_is_its_error(call, arguments, kind):
    assert call("session.time", *arguments)[0] == kind


def test_returned_functions_are_kept(call):
    counter = call("test.counter", 5)
    assert counter["name"] == "counter"
    assert counter["add"].about == {"is": "function", "name": "more"}
    assert [call(counter["add"].id, by) for by in (1, 10)] == [6, 16]


def test_an_array_is_no_function_and_a_function_no_module(call):
    array, function = call("session.put", np.ones(1)), call("test.kept", "x")
    assert call(array.id) == ("RemoteFunctionError", f"object {array.id} of this session is no function")
    assert call([function.id, "main"]) == ("RemoteFunctionError", f"object {function.id} of this session is no module")


@pytest.mark.parametrize("name", ["none.onnx", "../none.onnx"])
def test_a_missing_module_is_refused(call, name):
    assert call("session.load_module", name)[0] in ("RemoteFileError", "PathError")


# ---------------------------------------------------------------- functions that clients send


def ran(raw, *args):
    raw.call(1, "session.run", *args)
    frame = raw.receive()
    return frame.get("r") if frame.kind == frames.RESULT else (frame.get("type"), frame.get("message"))


def test_without_permission_nothing_is_unpickled(tmp_path):
    def leave_a_trace():
        (tmp_path / "trace").touch()

    class Trap:
        def __reduce__(self):
            return leave_a_trace, ()

    with Device() as device:
        kind, message = ran(device.raw(), PYTHON, cloudpickle.dumps(Trap()))
        assert (kind, message.partition(";")[2]) == ("RemoteFunctionError", " start it with --allow-pickle if they may")
    assert not (tmp_path / "trace").exists()


def test_a_function_of_another_python_is_refused():
    with Device(allow_pickle=True) as device:
        assert ran(device.raw(), "2.7", b"")[1] == (
            f"a function of Python 2.7 cannot run in Python {PYTHON}, which this device has"
        )


def test_without_cloudpickle_the_error_names_the_package():
    with Device(allow_pickle=True, hide=("cloudpickle",)) as device:
        raw = device.raw()
        assert "no cloudpickle; there: python3 -m pip install" in ran(raw, PYTHON, b"x")[1]


def test_only_functions_can_be_run():
    with Device(allow_pickle=True) as device:
        raw = device.raw()
        assert "takes a function, not a list" in ran(raw, PYTHON, cloudpickle.dumps([1]))[1]
        assert "cannot be loaded (UnpicklingError" in ran(raw, PYTHON, b"no pickle")[1]
        assert ran(raw, PYTHON, cloudpickle.dumps(lambda: 5)) == 5


def test_a_missing_module_of_the_client_is_named(monkeypatch):
    import sys
    import types

    mine = types.ModuleType("mine_alone")
    exec("def f(): return 1", mine.__dict__)
    monkeypatch.setitem(sys.modules, "mine_alone", mine)
    with Device(allow_pickle=True) as device:
        kind, message = ran(device.raw(), PYTHON, cloudpickle.dumps(mine.f))
    assert kind == "RemoteFunctionError"
    assert "needs the module 'mine_alone'" in message
    assert "register_pickle_by_value" in message


@pytest.mark.parametrize("allowed", [True, False])
def test_hello_reports_the_permission(allowed):
    with Device(allow_pickle=allowed) as device, device.session() as session:
        assert session.info["capabilities"]["pickle"] is allowed
        assert session.info["capabilities"]["python"] == PYTHON


# ---------------------------------------------------------------- wrong arguments: one line, and the session continues


FUNCTIONS = (
    *("session.has_function", "session.load_module", "session.listdir", "session.remove", "session.offer"),
    *("session.memory", "session.put", "session.get", "session.run", "session.time", "session.functions"),
    *("testing.echo", "testing.nop", "testing.sleep", "session.time_turns", "session.measure"),
    "session.profile",
)
plain = (
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.just(10**400)
    | st.floats()
    | st.text(max_size=20)
    | st.sampled_from([".", "../x", "a\0b", "\ud800", "x.so", "testing.nop", "session.time", PYTHON])
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
#: Values without the numbers that would make a sleep long.
short = values.filter(
    lambda value: not isinstance(value, (int, float)) or isinstance(value, bool) or not 1e-3 < value <= 1e6
)


@pytest.fixture(scope="module")
def permissive():
    with Device(allow_pickle=True) as device:
        yield device.raw()


def answer(permissive, fields):
    permissive.send(frames.CALL, 1, fields)
    frame = permissive.receive()
    permissive.send(frames.PING, 2)
    assert permissive.receive().kind == frames.PONG
    return frame


def one_line(frame):
    """Whether an answer is a RESULT, or one of our errors on one line without a traceback."""
    if frame.kind == frames.RESULT:
        return True
    fields = frame.fields()
    message = fields["message"]
    return (
        frame.kind == frames.ERROR
        and isinstance(getattr(errors, fields["type"], None), type)
        and fields["traceback"] == ""
        and 0 < len(message) == len(message.splitlines()[0])
    )


@settings(deadline=None, max_examples=400, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(function=st.sampled_from(FUNCTIONS), args=st.lists(short, max_size=4))
def test_wrong_arguments_give_one_line(permissive, function, args):
    frame = answer(permissive, {"f": function, "a": args})
    assert one_line(frame), frame.fields()


@settings(deadline=None, max_examples=200, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(fields=st.dictionaries(st.sampled_from(["f", "a", "k", "outputs", "keep", "encode"]), values))
def test_calls_of_any_form_give_one_line(permissive, fields):
    with contextlib.suppress(errors.ValueNotSupported):
        if type(fields.get("f")) is not str:
            assert one_line(answer(permissive, fields))


@pytest.mark.parametrize(
    ("function", "args"),
    [
        ("session.time", ["testing.nop", [], {"min_repeat_ms": 10**400}]),
        ("session.time", ["testing.nop", [], {"cooldown_s": float("nan")}]),
        ("session.time", ["testing.nop", 5, {}]),
        ("session.time", [["testing.nop", 5], [], {}]),
        ("session.time", [{}, [], {}]),
        ("session.time_turns", [[["testing.nop", []]], [0], [1], True]),
        ("session.time_turns", [[["testing.nop", []]], [0], [1]]),
        ("session.time_turns", [[[[1, "main"], []]], [0], [1], 1]),
        ("session.time_turns", [[["testing.nop", 5]], [0], [1], 1.0]),
        ("session.time_turns", [[[{}, []]], [0], [1], 1.0]),
        ("session.time_turns", [5, [0], [1], 1.0]),
        ("session.profile", [["testing.nop"], [], {}]),
        ("session.profile", [[1, 2], [], {}]),
        ("session.profile", [[99, "main"], [], {}]),
        ("session.profile", ["testing.nop", [], {}]),
        ("session.listdir", [5]),
        ("session.remove", []),
        ("session.load_module", [None]),
        ("session.has_function", [[1, 2]]),
        ("session.has_function", ["x" * 100_000]),
        ("session.get", [Ref(77)]),
        ("session.put", []),
        ("session.run", [PYTHON, b"no pickle"]),
        ("session.run", [PYTHON, cloudpickle.dumps(5)]),
        ("session.run", [PYTHON]),
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
def test_listed_wrong_arguments_give_one_line(permissive, function, args):
    frame = answer(permissive, {"f": function, "a": args})
    assert frame.kind == frames.ERROR
    assert one_line(frame), frame.fields()


#: What each function of a session does for one who may load models only: whether it takes code is what counts.
FOR_GUESTS = {
    **dict.fromkeys(
        ("session.has_function", "session.functions", "session.memory", "session.devices", "session.time"), "as always"
    ),
    **dict.fromkeys(("session.listdir", "session.remove", "session.offer", "session.board_state"), "as always"),
    **dict.fromkeys(("session.time_turns", "session.profile"), "as always"),
    **dict.fromkeys(("session.tree", "session.make_folders", "session.write", "session.place"), "as always"),
    **dict.fromkeys(("session.upload", "session.download", "session.put", "session.get"), "as always"),
    **dict.fromkeys(("session.load_module", "session.run", "session.measure"), "no code"),
    **dict.fromkeys(("session.exec", "session.forward"), "no code"),
}


def test_who_may_load_models_only_runs_no_code(tmp_path):
    """A new function of a session has no entry, and fails this test."""
    files = Files(None, Directory(str(tmp_path)))
    programs = ExecCalls(None, "", refusal({"allow_exec": True, "models_only": True}))
    known = Operations(Objects(), ThreadMemory(), files, programs, allow_pickle=True, models_only=True)
    assert {*known.streamed, *known._named} == set(FOR_GUESTS)
    pickled = cloudpickle.dumps(lambda: "code ran")
    with Device(allow_pickle=True, allow_exec=True, models_only=True) as device, device.session() as session:
        for name in ("code.so", "code.pkl", "code.ONNX", "code.onnx.so", "code"):
            session.upload(pickled, name)
            with pytest.raises(errors.RemoteFunctionError, match="code = false"):
                session.load_module(name)
        session.upload(pickled, "code.onnx")
        with pytest.raises(errors.ModelError):
            session.load_module("code.onnx")
        with pytest.raises(errors.RemoteFunctionError, match="code = false"):
            session.run(len, "x")
        with pytest.raises(errors.RemoteFunctionError, match="code = false"):
            session.get_function("session.measure")(pickled, "main", [], {})
        for start in (lambda: session.exec(["true"]), lambda: session.forward(80)):
            with pytest.raises(errors.ExecNotAllowed, match="code = false"):
                start()
        for target in ("session.run", "session.load_module"):
            arguments = [PYTHON, pickled] if target == "session.run" else ["code.so"]
            with pytest.raises(errors.RpcsysError, match="code = false"):
                session.get_function("session.time")(target, arguments, {"number": 1, "repeat": 1})
            with pytest.raises(errors.RpcsysError, match="code = false"):
                session.get_function("session.time_turns")([[target, arguments]], [0], [1], 1.0)
