"""The memory of Python arrays."""

from __future__ import annotations

import array
import ctypes
import gc
import mmap
import weakref

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from rpcsys.errors import NativeError
from rpcsys.ffi.memory import Memory, address_of, flat, locate
from rpcsys.wire.tensor import Tensor

TYPES = st.sampled_from(["bool", "int8", "uint16", "int32", "uint64", "float16", "float32", "complex128"])


@given(TYPES, st.lists(st.integers(1, 5), max_size=4), st.data())
def test_arrays_of_numpy(dtype: str, shape: list[int], data: st.DataObject) -> None:
    steps = tuple(slice(None, None, data.draw(st.sampled_from([1, 2, -1]))) for _ in shape)
    value = np.zeros(shape, dtype)[(..., *steps)]
    memory = locate(value)
    assert memory is not None
    assert (memory.address, memory.dtype, memory.shape) == (value.ctypes.data, dtype, value.shape)
    if memory.strides is None:
        assert value.flags.c_contiguous
    else:
        assert memory.strides == tuple(stride // value.itemsize for stride in value.strides)


@pytest.mark.parametrize("code", "bBhHiIlLqQfd")
def test_buffers_have_numpys_type_names(code: str) -> None:
    value = array.array(code, [1, 2, 3])
    memory = locate(value)
    assert memory is not None
    assert (memory.address, memory.dtype, memory.shape) == (value.buffer_info()[0], np.dtype(code).name, (3,))
    assert (memory.strides, memory.readonly) == (None, False)


def test_read_only_arrays() -> None:
    frozen = np.zeros(3)
    frozen.flags.writeable = False
    for value, readonly in ((b"abc", True), (bytearray(3), False), (mmap.mmap(-1, 8), False), (frozen, True)):
        memory = locate(value)
        assert memory is not None
        assert memory.readonly is readonly


def test_rpcsys_tensors() -> None:
    for data in (bytearray(8), np.zeros(8, "uint8")):
        memory = locate(Tensor("bfloat16", (2, 2), data))
        assert memory is not None
        assert (memory.address, memory.dtype, memory.shape) == (address_of(memoryview(data)), "bfloat16", (2, 2))


def test_a_memory_describes_itself() -> None:
    memory = Memory(4711, "int8", (1,), None, False, None)
    assert locate(memory) is memory


@pytest.mark.parametrize("value", [None, 3, "text", [1, 2], {}, object()])
def test_other_values_are_no_arrays(value: object) -> None:
    assert locate(value) is None


@pytest.mark.parametrize(
    "value",
    [Tensor("strings", (1,), ["x"]), np.zeros(2, ">i4"), memoryview(np.zeros(2, "i4,f4")), (ctypes.c_char_p * 2)()],
)
def test_unsupported_element_types_are_refused(value: object) -> None:
    with pytest.raises(NativeError) as caught:
        locate(value)
    assert caught.value.kind == "TypeError"


def test_a_flat_view_keeps_its_owner() -> None:
    owner = np.arange(8, dtype="uint8")
    gone = weakref.ref(owner)
    view = flat(owner.ctypes.data, 8, owner)
    del owner
    gc.collect()
    assert bytes(view) == bytes(range(8))
    del view
    gc.collect()
    assert gone() is None
