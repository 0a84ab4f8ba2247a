"""Bytes that complete an ONNX model, read by protobuf."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

onnx = pytest.importorskip("onnx")

from rpcsys.module.kinds import onnx_proto  # noqa: E402 - only where onnx is


@given(
    st.text(), st.sampled_from(sorted(onnx_proto.NUMBERS)), st.lists(st.integers(0, 1 << 40), max_size=5), st.text(),
    st.integers(0, 1 << 50), st.integers(0, 1 << 50),
)  # fmt: skip
def test_appending_a_weight_changes_nothing_else(name, dtype, shape, location, offset, size):
    before = onnx.helper.make_model(
        onnx.helper.make_graph([], "g", [], [], [onnx.helper.make_tensor("first", 1, (1,), [1.0])]), ir_version=9
    )
    added = onnx_proto.external_weight(name, dtype, shape, location, offset, size)
    after = onnx.load_from_string(before.SerializeToString() + added)
    second = after.graph.initializer[1]
    assert (second.name, list(second.dims), second.data_type) == (name, shape, onnx_proto.NUMBERS[dtype])
    places = {entry.key: entry.value for entry in second.external_data}
    assert places == {"location": location, "offset": str(offset), "length": str(size)}
    assert second.data_location == onnx.TensorProto.EXTERNAL
    del after.graph.initializer[1]
    assert after == before


@given(st.text(), st.lists(st.integers(0, 200), max_size=3), st.integers(0, 300))
def test_the_head_of_a_weight_comes_before_its_bytes(name, shape, size):
    before = onnx.helper.make_model(onnx.helper.make_graph([], "g", [], []), ir_version=9)
    whole = before.SerializeToString() + onnx_proto.head_of_weight(name, 3, shape, size) + bytes(size)
    (weight,) = onnx.load_from_string(whole).graph.initializer
    assert (weight.name, list(weight.dims), weight.data_type, weight.raw_data) == (name, shape, 3, bytes(size))


def test_numbers_are_those_of_onnx():
    for name, number in onnx_proto.NUMBERS.items():
        assert onnx.helper.tensor_dtype_to_np_dtype(number).name == name
