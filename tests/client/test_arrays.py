"""Arrays of arguments and results, without a device."""

from __future__ import annotations

import numpy as np
import pytest

from rpcsys.client import arrays
from rpcsys.errors import ValueNotSupported
from rpcsys.wire import frames
from rpcsys.wire.reader import FrameReader
from rpcsys.wire.tensor import Tensor, as_tensor
from rpcsys.wire.values import Ref


@pytest.mark.parametrize(("shape", "dtype"), [(3, "float32"), ([3], np.float32), ((3,), np.dtype("f4"))])
def test_empty_takes_any_shape_and_dtype(shape, dtype):
    out = arrays.empty(shape, dtype)
    assert (out.shape, out.dtype) == ((3,), "float32")


def test_without_numpy_a_dtype_is_a_name(monkeypatch):
    monkeypatch.setattr(arrays, "np", None)
    assert arrays.empty(1, "uint8").dtype == "uint8"
    with pytest.raises(ValueNotSupported, match="name one such as 'float32'"):
        arrays.empty(1, np.float32)


def test_a_received_value_is_converted_for_the_user():
    tensor = as_tensor(np.arange(3))
    seen = arrays.to_user({"a": [tensor, (Ref(7), "x")]}, lambda ref: ref.id)
    assert seen["a"][0].tolist() == [0, 1, 2]
    assert seen["a"][1] == (7, "x")


@pytest.mark.parametrize("value", [3, "text", None, np.arange(4, dtype="f4")])
def test_a_result_is_made_from_its_head(value):
    (frame,) = FrameReader().feed(b"".join(map(bytes, frames.encode(frames.RESULT, 1, {"r": value}))))
    make = arrays.result_maker(frame.parsed.head["r"])
    assert np.array_equal(make(frame), value)


def test_a_result_of_a_ref_or_a_list_has_no_maker():
    assert arrays.result_maker({"@": "ref", "id": 1}) is False
    assert arrays.result_maker([1, 2]) is False


def test_outputs_in_the_order_of_the_device():
    first, second, third = arrays.empty(1), arrays.inout(np.zeros(1)), arrays.empty(2)
    assert arrays.outputs_of([1, first, [second, {"x": third}]]) == [first, second, third]


@pytest.mark.parametrize("target", [np.zeros(3, "u1"), memoryview(bytearray(3))])
def test_a_written_array_is_copied_back(target):
    arrays.write_back(target, Tensor("uint8", (3,), b"\1\2\3"))
    assert bytes(target) == b"\1\2\3"


def test_read_only_memory_is_not_changed():
    arrays.write_back(memoryview(b"abc"), Tensor("uint8", (3,), b"\1\2\3"))
    target = np.zeros(3, "u1")
    target.flags.writeable = False
    arrays.write_back(target, Tensor("uint8", (3,), b"\1\2\3"))
    assert not target.any()
