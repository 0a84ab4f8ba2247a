"""Requests in JSON as a server reads them, the sentences of refusals, and answers in JSON."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.http import InferInput, InferRequestedOutput
from tritonclient.http import InferResult as TheirAnswer
from tritonclient.http._utils import _get_inference_request

from rpcsys.wire.inference import InferenceError, InferTensor, pack_bytes, request_to_json, response_from_json
from rpcsys.wire.inference_requests import (
    BinarySpan,
    InferRequest,
    Region,
    RequestedOutput,
    bytes_of,
    grpc_code,
    match_inputs,
    match_outputs,
    request_from_json,
    request_without_json,
    response_to_json,
    strings_of,
)
from tests.wire.test_inference import json_values

X: dict[str, Any] = {"name": "x", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": 64}}
SHARED = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 64}


def parse(value: Any, size: int = 64) -> InferRequest:
    return request_from_json(json.loads(json.dumps(value)), "m", "3", size)


# ---------------------------------------------------------------- requests


def test_a_request() -> None:
    s = {"name": "s", "datatype": "BYTES", "shape": [2], "parameters": {"binary_data_size": 11}}
    j = {"name": "j", "datatype": "INT8", "shape": [2, 1], "data": [[1], [2]]}
    r = {"name": "r", "datatype": "FP32", "shape": [16], "parameters": SHARED}
    outputs = [
        {"name": "a"},
        {"name": "b", "parameters": {"binary_data": False, "classification": 3, "more": [1]}},
        {"name": "c", "parameters": SHARED},
    ]
    parameters = {
        "binary_data_output": True,
        "timeout": 7,
        "priority": 2,
        "triton_enable_empty_final_response": True,
        "a": 1,
    }
    value = {"id": "1", "inputs": [X, j, s, r], "outputs": outputs, "parameters": parameters, "more": None}
    assert parse(value, 75) == InferRequest(
        "m",
        "3",
        "1",
        [
            InferTensor("x", "FP32", (1, 16), BinarySpan(0, 64)),
            InferTensor("j", "INT8", (2, 1), [[1], [2]]),
            InferTensor("s", "BYTES", (2,), BinarySpan(64, 11)),
            InferTensor("r", "FP32", (16,), Region("r", 8, 64)),
        ],
        [RequestedOutput("a", True), RequestedOutput("b", False, 3), RequestedOutput("c", True, 0, Region("r", 8, 64))],
        binary_output=True,
        timeout_us=7,
        priority=2,
        final=True,
        binary_bytes=75,
    )
    assert parse({"inputs": [X]}) == InferRequest(
        "m", "3", None, [InferTensor("x", "FP32", (1, 16), BinarySpan(0, 64))], [], binary_bytes=64
    )


def test_what_nvidias_client_sends() -> None:
    x, s = InferInput("x", [1, 2], "FP32"), InferInput("s", [2], "BYTES")
    x.set_data_from_numpy(np.array([[1, 2]], "f4"), binary_data=True)
    s.set_data_from_numpy(np.array(["a", "é"], object), binary_data=False)
    outputs = [InferRequestedOutput("y", binary_data=True), InferRequestedOutput("z", binary_data=False, class_count=2)]
    body, size = _get_inference_request([x, s], "7", outputs, 0, False, False, 1, 9, {"more": "text"})
    request = request_from_json(json.loads(body[:size]), "m", "", len(body) - size)
    assert request.inputs == [
        InferTensor("x", "FP32", (1, 2), BinarySpan(0, 8)),
        InferTensor("s", "BYTES", (2,), ["a", "é"]),
    ]
    assert request.outputs == [RequestedOutput("y", True), RequestedOutput("z", False, 2)]
    assert (request.id, request.priority, request.timeout_us) == ("7", 1, 9)


def test_what_our_client_sends() -> None:
    tensors = [InferTensor("x", "INT16", (2,), b"\1\0\2\0")]
    assert parse(request_to_json(tensors, ["y"], binary=True), 4) == InferRequest(
        "m",
        "3",
        None,
        [InferTensor("x", "INT16", (2,), BinarySpan(0, 4))],
        [RequestedOutput("y", True)],
        True,
        binary_bytes=4,
    )
    assert parse(request_to_json(tensors, [], binary=False), 0).inputs[0].data == [1, 2]


def test_a_long_time_is_as_good_as_for_ever() -> None:
    assert parse({"inputs": [X], "parameters": {"timeout": 2**64}}).timeout_us == 2**40


@pytest.mark.parametrize(
    ("change", "sentence"),
    [
        ({"parameters": {"binary_data_size": 63}}, "input 'x' takes 64 bytes, and binary_data_size is 63"),
        (
            {"parameters": {**SHARED, "shared_memory_byte_size": 63}},
            "input 'x' takes 64 bytes, and shared_memory_byte_size is 63",
        ),
        ({"parameters": {}}, "input 'x' has no data"),
        ({"data": [1]}, "input 'x' has its data twice"),
        ({"parameters": {**SHARED, "binary_data_size": 64}}, "input 'x' has its data twice"),
        ({"parameters": {}, "data": 1.5}, "the data of input 'x' is no list"),
        (
            {"parameters": {}, "data": [1.5], "datatype": "BF16"},
            "input 'x': BF16 has no form in JSON; send it as binary data",
        ),
        ({"datatype": "FP8"}, "input 'x' has the unknown datatype 'FP8'"),
        ({"datatype": None}, "input 'x' has the unknown datatype None"),
        ({"shape": 16}, "input 'x' needs a shape: a list of at most 64 extents"),
        ({"shape": [1] * 65}, "input 'x' needs a shape: a list of at most 64 extents"),
        ({"shape": [-1, 16]}, "an extent of input 'x' must be a whole number from 0 on, not -1"),
        ({"shape": [1.0, 16]}, "an extent of input 'x' must be a whole number from 0 on, not 1.0"),
        ({"shape": [True, 16]}, "an extent of input 'x' must be a whole number from 0 on, not True"),
        ({"shape": [2**40, 2]}, f"input 'x' would have {2**41} elements"),
        ({"name": 3}, "an input has no name"),
        ({"parameters": 3}, "the parameters of input 'x' must be a JSON object"),
        (
            {"parameters": {"binary_data_size": -1}},
            "input 'x': binary_data_size must be a whole number from 0 on, not -1",
        ),
        ({"parameters": {**SHARED, "shared_memory_region": 3}}, "input 'x': shared_memory_region must be a name"),
        (
            {"parameters": {"shared_memory_region": "r"}},
            "input 'x': shared_memory_byte_size must be a whole number from 0 on, not None",
        ),
    ],
)
def test_an_input_that_cannot_be_meant(change: dict[str, Any], sentence: str) -> None:
    with pytest.raises(InferenceError) as caught:
        parse({"inputs": [{**X, **change}]})
    assert str(caught.value) == sentence
    assert caught.value.status == 400


@pytest.mark.parametrize(
    ("value", "sentence"),
    [
        ([], "a request must be a JSON object"),
        ({}, "'inputs' must be a list of tensors"),
        ({"inputs": {}}, "'inputs' must be a list of tensors"),
        ({"inputs": [3]}, "an input must be a JSON object"),
        ({"inputs": [X, X]}, "input 'x' is given twice"),
        ({"inputs": []}, "the inputs announce 0 bytes of binary data, and 64 came"),
        ({"inputs": [X], "id": 7}, "'id' must be a text"),
        ({"inputs": [X], "parameters": []}, None),
        ({"inputs": [X], "parameters": [1]}, "'parameters' must be a JSON object"),
        ({"inputs": [X], "parameters": {"timeout": -1}}, "'timeout' must be a whole number from 0 on"),
        ({"inputs": [X], "parameters": {"priority": "1"}}, "'priority' must be a whole number from 0 on"),
        ({"inputs": [X], "parameters": {"binary_data_output": 1}}, "'binary_data_output' must be true or false"),
        ({"inputs": [X], "parameters": {"sequence_id": 0, "sequence_start": False}}, None),
        (
            {"inputs": [X], "parameters": {"sequence_id": 4}},
            "'m' keeps nothing between calls: it has no sequences (sequence_id)",
        ),
        ({"inputs": [X], "outputs": {"y": 1}}, "'outputs' must be a list"),
        ({"inputs": [X], "outputs": ["y"]}, "an output must be a JSON object"),
        ({"inputs": [X], "outputs": [{}]}, "an output has no name"),
        ({"inputs": [X], "outputs": [{"name": "y"}, {"name": "y"}]}, "an output is wanted twice"),
        ({"inputs": [X], "outputs": [{"name": "y"}] * 5000}, "5000 outputs are wanted, and at most 4096 can be"),
        (
            {"inputs": [X], "outputs": [{"name": "y", "parameters": {"classification": -1}}]},
            "output 'y': classification must be a whole number from 0 on, not -1",
        ),
    ],
)
def test_a_request_that_cannot_be_meant(value: Any, sentence: str | None) -> None:
    if sentence is None:
        assert parse(value)
        return
    with pytest.raises(InferenceError) as caught:
        parse(value)
    assert str(caught.value) == sentence


@given(json_values, st.integers(0, 4))
def test_any_json_is_a_request_or_refused(value: Any, size: int) -> None:
    for request in (
        value,
        {"inputs": value},
        {"inputs": [value]},
        {"inputs": [], "outputs": value},
        {"inputs": [], "parameters": value},
    ):
        try:
            parsed = request_from_json(request, "m", "", size)
        except InferenceError:
            continue
        assert sum(tensor.data.size for tensor in parsed.inputs if type(tensor.data) is BinarySpan) == size


# ---------------------------------------------------------------- bodies without JSON


@pytest.mark.parametrize(
    ("shape", "size", "came"),
    [((-1, 16), 128, (2, 16)), ((-1, -1), 12, (1, 3)), ((4, -1), 32, (4, 2)), ((2,), 8, (2,)),
     ((-1, -1, 3), 24, (1, 2, 3)), ((-1,), 0, (0,))],
)  # fmt: skip
def test_a_body_without_json(shape: tuple[int, ...], size: int, came: tuple[int, ...]) -> None:
    request = request_without_json("m", "3", InferTensor("x", "FP32", shape, None), size)
    assert request.inputs == [InferTensor("x", "FP32", came, BinarySpan(0, size))]
    assert request.binary_output
    assert request.binary_bytes == size


@pytest.mark.parametrize(
    ("datatype", "shape", "size", "words"),
    [
        ("BYTES", (1,), 8, "a request without JSON is for an input of numbers, and 'x' of 'm' is BYTES"),
        ("FP32", (-1, -1, -1), 8, "'m' has several free extents: say the shape of 'x' in JSON"),
        ("FP32", (3, -1, -1), 8, "'m' has several free extents"),
        ("FP32", (-1, 16), 65, "input 'x' takes 64 bytes, and binary_data_size is 65"),
        ("FP32", (2,), 4, "input 'x' takes 8 bytes, and binary_data_size is 4"),
        ("FP32", (0, -1), 4, "input 'x' takes 0 bytes, and binary_data_size is 4"),
    ],
)
def test_a_body_without_json_that_says_no_shape(datatype: str, shape: tuple[int, ...], size: int, words: str) -> None:
    with pytest.raises(InferenceError, match=words):
        request_without_json("m", "3", InferTensor("x", datatype, shape, None), size)


# ---------------------------------------------------------------- what the model has


MODEL = [InferTensor("x", "FP32", (-1, 16), None), InferTensor("n", "INT8", (), None)]
N = {"name": "n", "datatype": "INT8", "shape": [], "data": [1]}


def test_inputs_come_in_the_models_order() -> None:
    assert [tensor.name for tensor in match_inputs(parse({"inputs": [N, X]}), MODEL)] == ["x", "n"]


@pytest.mark.parametrize(
    ("inputs", "sentence"),
    [
        ([X], "expected 2 inputs but got 1 inputs for model 'm': 'n' is missing"),
        ([X, N, {**N, "name": "q"}], "unexpected inference input 'q' for model 'm'"),
        ([{**X, "datatype": "INT32"}, N], "inference input 'x' data-type is 'INT32', but model 'm' expects 'FP32'"),
        ([{**X, "shape": [16]}, N], "unexpected shape for input 'x' for model 'm'. Expected [-1,16], got [16]"),
        ([{**X, "shape": [16, 1]}, N], "unexpected shape for input 'x' for model 'm'. Expected [-1,16], got [16,1]"),
    ],
)
def test_inputs_that_the_model_has_not(inputs: list[Any], sentence: str) -> None:
    with pytest.raises(InferenceError) as caught:
        match_inputs(parse({"inputs": inputs}), MODEL)
    assert str(caught.value) == sentence


def test_outputs_that_are_wanted() -> None:
    assert match_outputs(parse({"inputs": [X]}), ["a", "b"]) == [
        (0, RequestedOutput("a", False)),
        (1, RequestedOutput("b", False)),
    ]
    wanted = parse({"inputs": [X], "outputs": [{"name": "b", "parameters": {"binary_data": True}}]})
    assert match_outputs(wanted, ["a", "b"]) == [(1, RequestedOutput("b", True))]
    with pytest.raises(InferenceError, match="unexpected inference output 'b' for model 'm'; it has a, c"):
        match_outputs(wanted, ["a", "c"])


# ---------------------------------------------------------------- answers


def test_nvidias_client_reads_our_answer() -> None:
    outputs = [
        InferTensor("y", "FP32", (1, 2), BinarySpan(0, 8)),
        InferTensor("s", "BYTES", (2,), ["a", "é"]),
        InferTensor("z", "INT64", (1,), BinarySpan(8, 8)),
        InferTensor("r", "FP32", (1,), Region("region", 8, 4)),
    ]
    answer = response_to_json("m", "3", outputs, "7", final=True)
    text, binary = json.dumps(answer).encode(), np.array([1, 2], "f4").tobytes() + (5).to_bytes(8, "little")
    theirs = TheirAnswer.from_response_body(text + binary, header_length=len(text))
    assert theirs.as_numpy("y").tolist() == [[1.0, 2.0]]
    assert theirs.as_numpy("s").tolist() == ["a", "é"]
    assert theirs.as_numpy("z").tolist() == [5]
    assert theirs.get_output("r")["parameters"] == {
        **SHARED,
        "shared_memory_region": "region",
        "shared_memory_byte_size": 4,
    }
    response = theirs.get_response()
    assert (response["model_name"], response["model_version"], response["id"]) == ("m", "3", "7")
    assert response["parameters"] == {"triton_final_response": True}


def test_our_client_reads_our_answer() -> None:
    answer = response_to_json(
        "m", "3", [InferTensor("y", "INT8", (2,), BinarySpan(0, 2)), InferTensor("z", "BOOL", (1,), [True])]
    )
    assert answer["model_version"] == "3"
    assert response_from_json(answer, b"\1\2") == [
        InferTensor("y", "INT8", (2,), b"\1\2"),
        InferTensor("z", "BOOL", (1,), b"\1"),
    ]


@given(st.lists(st.text(max_size=5), max_size=5))
def test_strings(texts: list[str]) -> None:
    elements = [text.encode() for text in texts]
    data = pack_bytes(elements)
    strings = strings_of(memoryview(data), len(texts), "x")
    assert strings == np.array(list(map(len, elements)), "<u8").tobytes() + b"".join(elements)
    assert bytes_of(memoryview(strings), len(texts)) == data


@pytest.mark.parametrize(
    ("data", "words"),
    [
        (pack_bytes([b"a", b"b"]), "x has 2 elements, and its shape says 1"),
        (pack_bytes([b"\xc3"]), "x has an element that is not UTF-8, which strings of a model have to be"),
        (pack_bytes([b"a"])[:-1], "x ends in the middle of an element"),
    ],
)
def test_strings_that_are_none(data: bytes, words: str) -> None:
    with pytest.raises(InferenceError, match=words):
        strings_of(data, 1, "x")


@pytest.mark.parametrize(
    ("status", "code"),
    [(400, 3), (404, 5), (413, 8), (405, 12), (501, 12), (500, 13), (503, 14), (504, 4), (499, 1), (418, 2)],
)
def test_each_status_has_a_code_in_grpc(status: int, code: int) -> None:
    assert grpc_code(InferenceError("", status)) == code
