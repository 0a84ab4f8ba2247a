"""Arrays: their memory, their descriptions, and that none is copied."""

from __future__ import annotations

import array
import gc
import mmap

import numpy as np
import pytest

from rpcsys.errors import NativeError
from rpcsys.ffi import calls, tensors
from rpcsys.ffi.abi import dtype_name, dtype_of
from rpcsys.ffi.memory import address_of, locate
from rpcsys.wire.tensor import Tensor as WireTensor

pytestmark = pytest.mark.usefixtures("tvm_ffi")

FLOAT, INT, UINT, BFLOAT, COMPLEX, BOOL = 2, 0, 1, 4, 5, 6


def echo(value):
    return calls.wrap(lambda argument: argument)(value)


def described(native, value) -> list[int]:
    out = np.zeros(16, "int64")
    native.function("describe")(value, out)
    return out.tolist()


ARRAYS = [
    (array.array("f", [1, 2, 3]), FLOAT, 32, [3]),
    (memoryview(bytes(range(6))), UINT, 8, [6]),
    (memoryview(bytearray(24)).cast("B").cast("d", [1, 3]), FLOAT, 64, [1, 3]),
    (mmap.mmap(-1, 4096), UINT, 8, [4096]),
    (np.zeros((2, 3, 4), "int16"), INT, 16, [2, 3, 4]),
    (np.zeros((), "float16"), FLOAT, 16, []),
    (np.zeros((2, 0), "complex64"), COMPLEX, 64, [2, 0]),
    (np.ones(3, bool), BOOL, 8, [3]),
    (WireTensor("bfloat16", (2, 2), bytearray(8)), BFLOAT, 16, [2, 2]),
    (WireTensor("float32", (2,), np.zeros(8, "uint8")), FLOAT, 32, [2]),
]


@pytest.mark.parametrize(("value", "code", "bits", "shape"), ARRAYS)
def test_the_array_that_native_code_receives(native, value, code, bits, shape) -> None:
    seen = described(native, value)
    strides = [int(np.prod(shape[axis + 1 :])) for axis in range(len(shape))]
    assert seen[:6] == [len(shape), code, bits, 1, 0, 1]
    assert seen[6 : 6 + len(shape)] == shape
    if 0 not in shape:
        assert seen[6 + len(shape) : 6 + 2 * len(shape)] == strides


def test_a_strided_array_keeps_its_strides(native) -> None:
    assert described(native, np.zeros((4, 6), "float32")[::2, ::3])[6:10] == [2, 2, 12, 3]


def test_nothing_is_copied(native) -> None:
    x, y = aligned(32), aligned(32)
    x[:] = np.arange(32)
    native.function("double_it")(x, y)
    assert y.tolist() == (2 * np.arange(32)).tolist()
    for value in (array.array("i", [1, 2]), np.ones((2, 2)), memoryview(bytearray(3)), b"x" * 3):
        memory = locate(value)
        back = echo(memory)
        assert address_of(back.data) == memory.address


def aligned(count: int):
    block = np.zeros(count + 16, "float32")
    start = -block.ctypes.data % 64 // 4
    return block[start : start + count]


def test_memory_lives_as_long_as_native_code_holds_it() -> None:
    block = bytearray(b"\1" * 1024)
    kept = echo(memoryview(block))
    assert len(tensors._exported) == 1
    with pytest.raises(BufferError):
        block.clear()  # exported: it must not go away
    data = kept.data
    del kept
    gc.collect()
    assert len(tensors._exported) == 1  # the view of the memory keeps it, too
    assert bytes(data) == block
    del data
    gc.collect()
    assert len(tensors._exported) == 0
    block.clear()


def test_a_tensor_of_native_code_in_python() -> None:
    back = echo(np.arange(6, dtype="float32").reshape(2, 3))
    assert (back.dtype, back.shape, back.device) == ("float32", (2, 3), "cpu:0")
    assert back.data.format == "B"
    assert np.frombuffer(back.data, "float32").tolist() == [0, 1, 2, 3, 4, 5]
    strided = echo(np.arange(24, dtype="int32").reshape(4, 6)[1:, ::2])
    assert strided.data.cast("i").tolist() == np.arange(24).reshape(4, 6)[1:, ::2].ravel().tolist()
    assert bytes(echo(np.zeros((3, 0))).data) == b""
    assert bytes(echo(np.array(7, "uint8")).data) == b"\7"


class Capsules:
    """Another library's array, with DLPack as its only interface."""

    def __init__(self, value, old: bool = False) -> None:
        self.value = value
        self.old = old

    def __dlpack__(self, **options):
        if self.old and options:
            raise TypeError("unexpected keyword argument")
        return self.value.__dlpack__(**options)


@pytest.mark.parametrize("old", [False, True])
def test_dlpack_into_native_code(native, old: bool) -> None:
    value = np.arange(6, dtype="float64").reshape(2, 3)
    back = echo(Capsules(value, old))
    assert address_of(back.data) == value.ctypes.data
    assert described(native, Capsules(value, old))[:4] == [2, FLOAT, 64, 1]
    with pytest.raises(NativeError, match="no DLPack capsule"):
        echo(type("Odd", (), {"__dlpack__": lambda self, **options: object()})())


def test_dlpack_out_of_native_code() -> None:
    value = np.arange(6, dtype="float32").reshape(2, 3)
    back = echo(value)
    assert back.__dlpack_device__() == (1, 0)
    other = np.from_dlpack(back)
    other[0, 0] = 9
    assert value[0, 0] == 9
    address = value.ctypes.data
    del value, back
    gc.collect()
    assert other.ctypes.data == address
    assert other.tolist() == [[9, 1, 2], [3, 4, 5]]
    with pytest.raises(BufferError):
        echo(other).__dlpack__(copy=True)


def test_a_capsule_that_is_never_taken_releases_its_array() -> None:
    before = len(tensors._exported)
    for version in (None, (1, 0)):
        back = echo(np.ones(3))
        capsule = back.__dlpack__(max_version=version)
        del back
        gc.collect()
        assert len(tensors._exported) == before + 1
        del capsule
        gc.collect()
        assert len(tensors._exported) == before


@pytest.mark.parametrize(
    "value",
    [
        np.array(["text"]),
        np.array([object()]),
        np.zeros(2, ">f4"),
        np.zeros(2, "datetime64[s]"),
        WireTensor("int4", (2,), bytearray(2)),
        WireTensor("strings", (1,), ["x"]),
        memoryview(np.zeros(2, "i4,f4")),
    ],
)
def test_element_types_that_native_code_does_not_support(value) -> None:
    with pytest.raises(NativeError) as caught:
        echo(value)
    assert caught.value.kind == "TypeError"


def test_names_of_element_types() -> None:
    assert dtype_name(dtype_of("float32x8")) == "float32x8"
    for name in ("bool", "uint8", "float8_e5m2", "complex128", "bfloat16", "handle"):
        assert dtype_name(dtype_of(name)) == name
    assert dtype_name(type(dtype_of("bool"))(17, 4, 1)) == "custom[17]4"
