"""Values, there and back through native code."""

from __future__ import annotations

import ctypes
import enum
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import NativeError
from rpcsys.ffi import abi, functions
from rpcsys.ffi.values import Device, DType

pytestmark = pytest.mark.usefixtures("tvm_ffi")

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
    """Through a native function object: there as an argument, back as a result."""
    return functions.wrap(lambda argument: argument)(value)


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


def test_what_is_no_utf8_survives() -> None:
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


def test_numbers_of_numpy_are_numbers() -> None:
    for value in (np.float32(1.5), np.int8(-3), np.bool_(True), np.uint64(7)):
        assert echo(value) == value.item()
        assert type(echo(value)) is type(value.item())


def test_subclasses_are_what_they_extend() -> None:
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
def test_what_has_no_form_is_named(value) -> None:
    with pytest.raises(NativeError) as caught:
        echo(value)
    assert "\n" not in str(caught.value)


def test_shapes_come_as_tuples() -> None:
    assert functions.get_global("ffi.Shape")(2, 3, 4) == (2, 3, 4)
