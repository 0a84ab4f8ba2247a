"""Tensors as bytes and as JSON values, and what a client says and hears."""

from __future__ import annotations

import json
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.utils import deserialize_bytes_tensor, serialize_byte_tensor

from rpcsys.wire.inference import (
    DATATYPES,
    NAMES,
    WIDTHS,
    InferenceError,
    InferTensor,
    from_values,
    pack_bytes,
    request_to_json,
    response_from_json,
    to_values,
    unpack_bytes,
)

FIXED = sorted(WIDTHS)
elements = st.lists(st.binary(max_size=6), max_size=6)


def dtype_of(datatype: str) -> Any:
    return np.dtype(ml_dtypes.bfloat16 if datatype == "BF16" else DATATYPES[datatype])


def test_each_datatype_has_a_dtype_of_the_same_size() -> None:
    assert len(DATATYPES) == len(NAMES) == 14
    assert {datatype: dtype_of(datatype).itemsize for datatype in DATATYPES if datatype != "BYTES"} == WIDTHS


@given(elements)
def test_elements_of_bytes_are_as_in_the_field(given_elements: list[bytes]) -> None:
    data = pack_bytes(given_elements)
    assert unpack_bytes(memoryview(data), "x") == given_elements
    array = np.array(given_elements, object)
    assert data == (serialize_byte_tensor(array).item() if given_elements else b"")
    assert list(deserialize_bytes_tensor(data)) == given_elements


@given(elements, st.data())
def test_a_cut_element_is_refused(given_elements: list[bytes], drawn: st.DataObject) -> None:
    data = pack_bytes(given_elements)
    size = drawn.draw(st.integers(0, len(data)))
    whole = {len(pack_bytes(given_elements[:most])) for most in range(len(given_elements) + 1)}
    if size in whole:
        assert pack_bytes(unpack_bytes(data[:size], "input 'x'")) == data[:size]
    else:
        with pytest.raises(InferenceError, match=r"^input 'x' ends in the middle of an element$"):
            unpack_bytes(data[:size], "input 'x'")


@pytest.mark.parametrize("datatype", FIXED)
@given(data=st.data())
def test_json_values_are_read_back(datatype: str, data: st.DataObject) -> None:
    width, dtype = WIDTHS[datatype], dtype_of(datatype)
    raw = data.draw(st.binary(max_size=5 * width).map(lambda raw: raw[: len(raw) // width * width]))
    if datatype == "BOOL":
        raw = bytes(byte & 1 for byte in raw)
    array = np.frombuffer(raw, dtype)
    values = to_values(datatype, memoryview(raw), "x")
    if np.isfinite(array.astype("f8")).all():
        assert values == array.astype("f8" if dtype.kind == "V" else dtype).tolist()
        assert from_values(datatype, json.loads(json.dumps(values)), "x") == raw


def test_whole_numbers_keep_64_bits() -> None:
    numbers = [2**64 - 1, 2**53 + 1]
    assert to_values("UINT64", from_values("UINT64", numbers, "x"), "x") == numbers
    assert to_values("INT64", from_values("INT64", [-(2**63), -(2**53) - 1], "x"), "x") == [-(2**63), -(2**53) - 1]


@pytest.mark.parametrize(
    ("datatype", "values", "array"),
    [
        ("INT32", [[1, 2], [3, 4]], np.array([1, 2, 3, 4], "i4")),
        ("INT32", [1.0, -2], np.array([1, -2], "i4")),
        ("FP16", [[[1.5]]], np.array([1.5], "f2")),
        ("FP32", [], np.array([], "f4")),
        ("FP32", [[], []], np.array([], "f4")),
        ("FP64", [1, 2.5], np.array([1, 2.5])),
        ("BOOL", [True, 0, 1], np.array([True, False, True])),
        ("BF16", [1.5, -2], np.array([1.5, -2], ml_dtypes.bfloat16)),
    ],
)
def test_values_flat_and_nested(datatype: str, values: list[Any], array: Any) -> None:
    assert from_values(datatype, values, "x") == array.tobytes()


def test_texts_are_elements_of_bytes() -> None:
    assert from_values("BYTES", [["a", "é"], ["", "b"]], "x") == pack_bytes([b"a", "é".encode(), b"", b"b"])
    assert to_values("BYTES", pack_bytes(["é".encode()]), "x") == ["é"]
    with pytest.raises(InferenceError, match="x has an element that is not UTF-8"):
        to_values("BYTES", pack_bytes([b"\xff"]), "x")


def test_nesting_may_be_deep() -> None:
    values: Any = [1]
    for _ in range(5000):
        values = [values]
    assert from_values("INT8", values, "x") == b"\1"


@pytest.mark.parametrize(
    ("datatype", "values"),
    [
        *[
            ("INT8", values)
            for values in ([128], [-129], [1.5], ["1"], [None], [1, [2]], [[1], 2], {}, None, 1, "1", [{}])
        ],
        *[("UINT64", values) for values in ([-1], [2**64], [1e30])],
        *[("FP32", values) for values in ([1e39], ["1"], [[1], [[2]]], [None])],
        *[("FP16", values) for values in ([65520.0], [10**400])],
        *[("BOOL", values) for values in ([2], [0.5], ["true"], [None], [[True], 1], [{}])],
        *[("BYTES", values) for values in ([1], ["a", ["b"]], [["a"], "b"], "ab", ["\ud800"])],
    ],
)
def test_values_of_another_type_are_refused(datatype: str, values: Any) -> None:
    with pytest.raises(InferenceError, match=f"the data of input 'x' is no list of {datatype}"):
        from_values(datatype, values, "input 'x'")


def tensor(
    name: str = "x", datatype: str = "INT16", shape: tuple[int, ...] = (2,), data: bytes = b"\1\0\2\0"
) -> InferTensor:
    return InferTensor(name, datatype, shape, data)


def test_a_request() -> None:
    assert request_to_json([tensor()], [], binary=True, parameters={"timeout": 5}) == {
        "inputs": [{"name": "x", "datatype": "INT16", "shape": (2,), "parameters": {"binary_data_size": 4}}],
        "parameters": {"binary_data_output": True, "timeout": 5},
    }
    assert request_to_json([tensor()], ["y"], binary=False) == {
        "inputs": [{"name": "x", "datatype": "INT16", "shape": (2,), "data": [1, 2]}],
        "outputs": [{"name": "y", "parameters": {"binary_data": False}}],
        "parameters": {"binary_data_output": False},
    }


def test_an_answer() -> None:
    value = {
        "outputs": [
            {"name": "a", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}},
            {"name": "b", "datatype": "FP32", "shape": [1, 1], "data": [[1.5]], "parameters": None},
            {"name": "c", "datatype": "BYTES", "shape": [1], "parameters": {"binary_data_size": 5}},
        ]
    }
    binary = memoryview(b"\1\0\2\0" + pack_bytes([b"a"]))
    outputs = response_from_json(value, binary)
    assert [(output.name, output.shape, bytes(output.data)) for output in outputs] == [
        ("a", (2,), b"\1\0\2\0"),
        ("b", (1, 1), b"\0\0\xc0\x3f"),
        ("c", (1,), pack_bytes([b"a"])),
    ]
    assert outputs[0].data.obj is binary.obj, "it is not copied"


GOOD = {"name": "a", "datatype": "INT16", "shape": [2], "parameters": {"binary_data_size": 4}}


@pytest.mark.parametrize(
    "change",
    [{"shape": [3]}, {"shape": [-1, -2]}, {"shape": [2.0]}, {"shape": 2}, {"shape": [True, 2]}, {"datatype": "FP8"},
     {"datatype": None}, {"parameters": {}}, {"parameters": 3}, {"parameters": {}, "data": [1]},
     {"datatype": "BYTES", "parameters": {"binary_data_size": 3}},
     *({"parameters": {"binary_data_size": size}} for size in (5, -4, "4", 4.0, True))],
)  # fmt: skip
def test_an_answer_that_is_none(change: dict[str, Any]) -> None:
    assert response_from_json({"outputs": [GOOD]}, bytes(4))
    with pytest.raises(InferenceError, match="outputs"):
        response_from_json({"outputs": [{**GOOD, **change}]}, bytes(4))


json_values = st.recursive(
    st.one_of(st.none(), st.booleans(), st.integers(), st.floats(), st.sampled_from(["x", "FP32", "BYTES"])),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3),
        st.dictionaries(
            st.sampled_from(
                [
                    "outputs",
                    "inputs",
                    "name",
                    "datatype",
                    "shape",
                    "data",
                    "parameters",
                    "binary_data_size",
                    "id",
                    "timeout",
                ]
            ),
            inner,
            max_size=5,
        ),
    ),
    max_leaves=20,
)


@given(json_values, st.binary(max_size=4))
def test_any_json_is_an_answer_or_refused(value: Any, binary: bytes) -> None:
    for answer in (value, {"outputs": value}, {"outputs": [value]}):
        try:
            outputs = response_from_json(answer, binary)
        except InferenceError:
            continue
        assert all(type(output) is InferTensor for output in outputs)
