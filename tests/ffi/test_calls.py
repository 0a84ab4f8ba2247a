"""Calls in both directions: results, errors, values, and no leaks."""

from __future__ import annotations

import ctypes
import enum
import gc
import math
import threading
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, calls
from rpcsys.ffi.abi import DType
from rpcsys.ffi.calls import Device
from rpcsys.ffi.library import Object
from rpcsys.ffi.module import Library
from tests.native import bare

pytestmark = pytest.mark.usefixtures("tvm_ffi")


def test_calls(native: Library) -> None:
    assert native.function("add")(2, 3) == 5
    assert native.function("add")(0.5, 1.0) == 1.5


def test_an_error_has_kind_and_message(native: Library) -> None:
    with pytest.raises(NativeError, match="two numbers of one type") as caught:
        native.function("add")(2, 3.0)
    assert caught.value.kind == "ValueError"
    with pytest.raises(NativeError, match=r"silent failed with status -1"):
        native.function("silent")()


def test_a_python_exception_passes_through_native_code() -> None:
    def deep():
        raise LookupError("nothing there")

    with pytest.raises(NativeError, match="nothing there") as caught:
        calls.wrap(deep)()
    assert caught.value.kind == "LookupError"
    assert "in deep" in caught.value.backtrace
    inner = calls.wrap(deep)
    outer = calls.wrap(lambda value: inner() or value)
    with pytest.raises(NativeError, match="nothing there") as caught:
        outer(1)
    assert caught.value.kind == "LookupError"


def test_a_wrong_number_of_arguments_is_an_error() -> None:
    with pytest.raises(NativeError, match="positional argument"):
        calls.wrap(lambda: None)(1)


def test_a_global_function_is_registered_and_replaced() -> None:
    calls.register("rpcsys.test.one", lambda: 1)
    assert calls.get_global("rpcsys.test.one")() == 1
    calls.register("rpcsys.test.one", lambda: 2)
    assert calls.get_global("rpcsys.test.one")() == 2
    calls.get_global("ffi.FunctionRemoveGlobal")("rpcsys.test.one")
    with pytest.raises(NativeError, match=r"rpcsys\.test\.one"):
        calls.get_global("rpcsys.test.one")


def test_closures_cross() -> None:
    add_to = calls.wrap(lambda left: lambda right: left + right)
    assert add_to(10)(5) == 15
    assert calls.wrap(lambda function, value: function(value))(lambda value: value * 2, 21) == 42


def references(native: Object) -> int:
    """The number of strong references, in Python and native code together."""
    return abi.Header.from_address(native.handle).counts & 0xFFFFFFFF


def test_a_function_is_released_with_its_last_reference() -> None:
    class Callable:
        def __call__(self):
            return None

    value = Callable()
    gone = weakref.ref(value)
    gc.collect()
    before = len(calls._callbacks)
    native = calls.wrap(value)
    del value
    gc.collect()
    assert gone() is not None
    assert len(calls._callbacks) == before + 1
    assert references(native) == 1
    del native
    gc.collect()
    assert gone() is None
    assert len(calls._callbacks) == before


def test_references_are_counted() -> None:
    made = calls.get_global("ffi.Array").raw(1, 2, 3)
    assert type(made) is Object
    assert references(made) == 1
    kept = calls.wrap(lambda value: value)
    kept.raw(made)
    assert references(made) == 1
    again = kept.raw(made)
    assert references(made) == 1  # a tuple was made of it on the way
    assert references(again) == 1


def test_calls_from_other_threads(native: Library) -> None:
    add, failed = native.function("add"), []

    def work(number: int) -> None:
        for index in range(300):
            if add(number, index) != number + index:
                failed.append((number, index))
            with pytest.raises(NativeError, match="one type"):
                add(number, 0.5)

    threads = [threading.Thread(target=work, args=(number,)) for number in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failed == []


# ------------------------------------------------------------------ values

SCALARS = (
    st.none()
    | st.booleans()
    | st.integers(-(1 << 63), (1 << 63) - 1)
    | st.floats(allow_nan=False)
    | st.text(max_size=20)
    | st.binary(max_size=20)
)
VALUES = st.recursive(
    SCALARS,
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.lists(inner, max_size=3).map(tuple)
        | st.dictionaries(st.text(max_size=9), inner, max_size=3)
    ),
    max_leaves=8,
)


def echo(value):
    """Pass a value through a native function: in as an argument, back as a result."""
    return calls.wrap(lambda argument: argument)(value)


@given(VALUES)
def test_round_trip(value) -> None:
    back = echo(value)
    assert back == value
    assert type(back) is type(value)


@pytest.mark.parametrize("length", [0, 1, 7, 8, 9, 100_000])
def test_strings_small_and_long(length: int) -> None:
    assert echo("ä" * length) == "ä" * length
    assert echo(b"\0" * length) == b"\0" * length
    assert echo("\0" * length) == "\0" * length


def test_strings_that_are_not_utf8_are_preserved() -> None:
    text = b"\xff\xfe and more than eight".decode("utf-8", "surrogateescape")
    assert echo(text) == text


def test_types_and_devices() -> None:
    for name in ("float32", "int8", "bfloat16", "bool", "float8_e4m3fn", "float32x4", "uint64x65535"):
        back = echo(DType(name))
        assert back == name
        assert type(back) is DType
    assert echo(Device(2, 3)) == Device(2, 3)
    assert echo(ctypes.c_void_p(4711)).value == 4711
    assert echo(bytearray(b"0123456789")) == b"0123456789"


def test_numpy_scalars_are_numbers() -> None:
    for value in (np.float32(1.5), np.int8(-3), np.bool_(True), np.uint64(7)):
        assert echo(value) == value.item()
        assert type(echo(value)) is type(value.item())


def test_subclasses_are_passed_as_their_base_class() -> None:
    assert echo(enum.IntEnum("Colour", "RED").RED) == 1
    assert math.isnan(echo(math.nan))


def test_types_by_their_numbers(native) -> None:
    kind = native.function("type")
    seen = [kind(value) for value in (None, 1, True, 1.0, "small", "not so small", b"s", b"not so small")]
    assert seen == [abi.NONE, abi.INT, abi.BOOL, abi.FLOAT, abi.SMALL_STR, abi.RAW_STR, abi.SMALL_BYTES, abi.BYTE_ARRAY]
    assert kind(np.zeros(3)) == abi.TENSOR
    assert kind(lambda: None) == abi.FUNCTION
    assert [kind(()), kind([]), kind({})] == [abi.ARRAY, abi.LIST, abi.MAP]


@pytest.mark.parametrize("value", [1 << 63, object(), 1j, {1, 2}, DType("float33")])
def test_the_error_names_a_type_without_a_native_form(value) -> None:
    with pytest.raises(NativeError) as caught:
        echo(value)
    assert "\n" not in str(caught.value)


def test_shapes_become_tuples() -> None:
    assert calls.get_global("ffi.Shape")(2, 3, 4) == (2, 3, 4)


# ------------------------------------------------------------------ leaks

LEAK = """
import array, gc, os, sys
from rpcsys.errors import NativeError
from rpcsys.ffi import calls, library, tensors
from rpcsys.ffi.module import Library
library.use(sys.argv[1])
native = Library(sys.argv[2]) if library.api() else None
x, y = (array.array("f", bytes(4 * 1024)) for _ in range(2))
echo, describe, add = calls.wrap(lambda value: value), native.function("describe"), native.function("add")
out = array.array("q", bytes(128))
fail = calls.wrap(lambda: 1 / 0)

def work(count):
    for index in range(count):
        describe(x, out)
        echo("a string that needs an object of its own")
        echo(b"bytes that need an object of their own")
        if not index % 10:
            echo((x, [1, "two"], {"three": y}))
            echo(x).data
            echo(lambda: None)
            for bad in (fail, lambda: add(1, 2.0)):
                try:
                    bad()
                except NativeError:
                    pass

def resident():
    gc.collect()
    with open("/proc/self/statm") as file:
        return int(file.read().split()[1]) * os.sysconf("SC_PAGE_SIZE")

work(5000)
before = resident()
work(100_000)
print(resident() - before, len(tensors._exported), len(calls._callbacks))
"""


@pytest.mark.slow
def test_no_leak_in_100_000_calls(board, functions_so, tvm_libraries, record_property) -> None:
    grown, lent, held = map(int, bare(board, LEAK, tvm_libraries, functions_so).split())
    record_property("bytes grown in 100,000 rounds", grown)
    assert lent == 0
    assert held == 2  # the two that the script itself keeps
    assert grown < 1 << 20
