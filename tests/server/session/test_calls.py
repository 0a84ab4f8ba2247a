"""Answering a call: from its frame to the frame of its result; objects that are kept between calls."""

from __future__ import annotations

import time

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import ProtocolError, RemoteArgumentError, RemoteFunctionError
from rpcsys.module.module import Module
from rpcsys.server.session import calls as calls_module
from rpcsys.server.session.calls import Calls, Objects, ThreadMemory, keep_arrays, to_function
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.values import InOut, Out, Ref


def fill(target):
    target[:] = 7


class Table(Calls):
    """Calls whose functions come from a table."""

    def __init__(self):
        super().__init__(Objects(), ThreadMemory())
        self.resolved = []
        self.functions = {"echo": lambda *args: args, "fill": fill, "none": lambda: None, "one": lambda x: x}

    def resolve(self, target):
        self.resolved.append(target)
        return self.functions[target] if type(target) is str else self.objects.get(target)

    def module(self, id):
        return self.objects.get(id)


@pytest.fixture
def table():
    return Table()


reader = FrameReader()


def sent(fields) -> frames.Frame:
    (frame,) = reader.feed(b"".join(map(bytes, frames.encode(frames.CALL, 9, fields))))
    return frame


def result(table, **fields):
    (frame,) = FrameReader().feed(b"".join(map(bytes, table.answer(sent(fields)))))
    assert (frame.kind, frame.call_id) == (frames.RESULT, 9)
    return frame


@pytest.mark.parametrize("more", [{}, {"a": [[]]}, {"keep": True}], ids=["plain", "with a list", "kept"])
def test_a_result_says_what_its_function_took(table, more):
    table.functions["slow"] = lambda *args: time.sleep(0.05)
    for _ in range(2):  # with and without a cached head
        assert 50_000 <= result(table, f="slow", **{"a": [], **more}).deadline_ms < 60_000_000


def test_a_time_below_a_microsecond_is_said(monkeypatch):
    monkeypatch.setattr(calls_module.time, "perf_counter", lambda: 5.0)
    assert calls_module.took_us(5.0) == 1
    assert calls_module.took_us(-5000.0) == 2**32 - 1  # more than the field holds


scalars = st.none() | st.booleans() | st.integers(-(2**60), 2**60) | st.floats(allow_nan=False) | st.text(max_size=9)
arrays = st.integers(0, 5).map(lambda size: np.arange(size, dtype="int32"))


def plain(value):
    """Convert a value into one that can be compared."""
    if isinstance(value, (list, tuple)):
        return [plain(item) for item in value]
    return value.tolist() if hasattr(value, "tolist") else value


@given(st.lists(scalars | arrays | st.lists(scalars | arrays, max_size=3), max_size=4))
def test_a_repeated_call_has_the_same_answer(args):
    """The first call of a form leaves a function in the cache, which runs the second."""
    table = Table()
    for _ in range(2):
        assert plain(result(table, f="echo", a=args).get("r")) == plain(args)


def test_a_function_is_looked_up_once_but_an_object_each_time(table):
    for _ in range(3):
        result(table, f="none", a=[])
    assert table.resolved == ["none"]
    ref = table.objects.keep(lambda: 5, {})
    assert [result(table, f=ref.id, a=[]).get("r") for _ in range(3)] == [5] * 3
    table.objects.free([ref.id])
    with pytest.raises(RemoteFunctionError, match="there is no object 1"):
        result(table, f=ref.id, a=[])


def test_a_streamed_target_gets_the_frame_each_time(table):
    seen = []
    table.streamed["upload"] = lambda frame: seen.append(frame) or []
    frame = sent({"f": "upload", "a": ["name"]})
    assert table.answer(frame) == []
    assert table.answer(frame) == []
    assert seen == [frame, frame]


def test_arguments_that_are_written_into_are_returned(table):
    given_array = np.zeros(3, "uint8")
    frame = result(table, f="fill", a=[InOut(given_array)])
    assert frame.get("w")[0].tolist() == [7] * 3
    assert result(table, f="fill", a=[Out((2,), "float32")]).get("w")[0].tolist() == [7.0, 7.0]


def test_a_kept_array_is_returned_as_a_ref(table):
    kept, number = result(table, f="echo", a=[np.ones(2), 5], keep=True).get("r")
    assert (kept.about["shape"], number) == ([2], 5)
    assert result(table, f="one", a=[kept]).get("r").tolist() == [1, 1]


def test_main_runs_with_inputs_by_name(table):
    main = Module("test", {"main": lambda x: x * 2}, inputs=[{"name": "x"}], outputs=[{"name": "y"}])
    ref = table.objects.keep(main, {})
    assert result(table, f=[ref.id, "main"], k={"x": 4}).get("r") == {"y": 8}
    assert result(table, f=[ref.id, "main"], k={"x": 4}, outputs=["y"]).get("r") == {"y": 8}
    for fields, error in (
        ({"f": "echo", "k": {}}, ProtocolError),
        ({"f": [ref.id, "other"], "k": {}}, ProtocolError),
        ({"f": [ref.id, "main"], "k": [1]}, RemoteArgumentError),
        ({"f": [ref.id, "main"], "k": {"x": 1}, "outputs": [5]}, RemoteArgumentError),
        ({"f": "echo", "a": 5}, ProtocolError),
    ):
        with pytest.raises(error):
            result(table, **fields)


def test_the_number_of_objects_is_limited(monkeypatch):
    monkeypatch.setattr(calls_module, "MAX_OBJECTS", 2)
    objects = Objects()
    first = objects.keep("a", {})
    objects.keep("b", {})
    with pytest.raises(RemoteArgumentError, match="keeps 2 objects already"):
        objects.keep("c", {})
    objects.free([first.id, first.id, "x", None, 10**9])
    assert objects.keep("c", {}).id == 3  # numbers are not used again
    objects.free(None)


@pytest.mark.parametrize("id", [1, None, "x", [], {}])
def test_an_unknown_object_is_refused(id):
    with pytest.raises(RemoteFunctionError, match="there is no object"):
        Objects().get(id)


def test_memory_lists_the_largest_objects(monkeypatch):
    monkeypatch.setattr(calls_module, "MAX_LISTED", 2)
    objects = Objects()
    for size in (1, 30, 20):
        keep_arrays(np.zeros(size, "uint8"), objects)
    objects.keep(len, {"is": "function", "name": "len", "more": "that is not listed"})
    memory = objects.memory()
    assert (memory["objects"], memory["bytes"]) == (4, 51)
    assert memory["kept"] == [
        {"id": 2, "bytes": 30, "is": "array", "dtype": "uint8", "shape": [30]},
        {"id": 3, "bytes": 20, "is": "array", "dtype": "uint8", "shape": [20]},
    ]


def test_nested_values_are_converted():
    objects, written = Objects(), []
    ref = objects.keep("kept", {})
    given_value = {"a": [Ref(ref.id, {}), (1, Out((2,), "uint8"))]}
    made = to_function(given_value, objects, ThreadMemory().pool, written)
    assert made["a"][0] == "kept"
    assert made["a"][1][1] is written[0]
