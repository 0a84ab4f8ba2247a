"""Requests and answers as messages, against the stubs of NVIDIA's client; raw contents are never copied."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from tritonclient.grpc import InferInput, InferRequestedOutput, InferResult, service_pb2
from tritonclient.grpc._utils import _get_inference_request

from rpcsys.errors import ProtocolError
from rpcsys.wire.inference import DATATYPES, WIDTHS, InferenceError, InferTensor, pack_bytes
from rpcsys.wire.inference_messages import (
    model_of,
    raw_prefix,
    request_from_message,
    request_to_message,
    response_from_message,
    response_head,
    split_request,
    stream_error,
    stream_prefix,
)
from rpcsys.wire.inference_requests import BinarySpan, InferRequest, Region, RequestedOutput

TheirRequest, TheirAnswer = service_pb2.ModelInferRequest, service_pb2.ModelInferResponse
Contents = service_pb2.InferTensorContents


def parse(message: bytes) -> InferRequest:
    head, raw = split_request(message)
    return request_from_message(head, [len(view) for view in raw])


def theirs(**fields: Any) -> bytes:
    """A request for one input, by their stubs."""
    given_fields = {"name": "x", "datatype": "INT16", "shape": [2], **fields}
    request = TheirRequest(model_name="m", inputs=[given_fields])
    return bytes(request.SerializeToString(deterministic=True))  # it may be a part of a test's name


# ---------------------------------------------------------------- requests


def test_the_model_is_known_of_what_cannot_be_read() -> None:
    message = theirs()
    assert model_of(message) == model_of(message[:-1]) == model_of(b"\x08\x01" + message) == "m"
    assert model_of(b"\x0a\x02\xff\xff") == "\ufffd\ufffd"
    for none in (b"", message[:2], b"\xff\xff", b"\x08\x01"):
        assert model_of(none) == ""


@given(st.binary(max_size=100))
def test_the_model_of_arbitrary_bytes_is_a_text(message: bytes) -> None:
    assert type(model_of(message)) is str


def test_what_nvidias_client_sends() -> None:
    x, s, r = InferInput("x", [1, 2], "FP32"), InferInput("s", [2], "BYTES"), InferInput("r", [4], "INT8")
    x.set_data_from_numpy(np.array([[1, 2]], "f4"))
    s.set_data_from_numpy(np.array(["a", "é"], object))
    r.set_shared_memory("region", 4, offset=8)
    y, z = InferRequestedOutput("y"), InferRequestedOutput("z", class_count=2)
    y.set_shared_memory("out", 12)
    request = _get_inference_request("m", [r, x, s], "3", "7", [y, z], 0, False, False, 1, 9, {"more": "text"})
    request.parameters["triton_enable_empty_final_response"].bool_param = True  # as its stream does
    message = request.SerializeToString()
    head, raw = split_request(message)
    strings = pack_bytes([b"a", "é".encode()])
    assert [bytes(view) for view in raw] == [np.array([1, 2], "f4").tobytes(), strings]
    assert request_from_message(head, [8, len(strings)]) == InferRequest(
        "m",
        "3",
        "7",
        [
            InferTensor("r", "INT8", (4,), Region("region", 8, 4)),
            InferTensor("x", "FP32", (1, 2), BinarySpan(0, 8)),
            InferTensor("s", "BYTES", (2,), BinarySpan(8, len(strings))),
        ],
        [RequestedOutput("y", True, 0, Region("out", 0, 12)), RequestedOutput("z", True, 2)],
        binary_output=True,
        timeout_us=9,
        priority=1,
        final=True,
        binary_bytes=8 + len(strings),
    )


def test_raw_contents_are_views_and_heads_are_equal() -> None:
    tensor = InferTensor("x", "INT8", (3,), b"abc")
    message = bytearray(b"".join(request_to_message("m", "", [tensor])))
    head, (view,) = split_request(message)
    message[-1] = ord("X")
    assert bytes(view) == b"abX"
    assert split_request(bytes(message)).head == head
    assert b"ab" not in head


@given(st.lists(st.binary(max_size=9), max_size=4), st.text(max_size=9))
def test_a_message_is_split_wherever_its_raw_contents_are(raw: list[bytes], name: str) -> None:
    first, last = TheirRequest(model_name=name).SerializeToString(), TheirRequest(id="7").SerializeToString()
    middle = [TheirRequest(raw_input_contents=[piece]).SerializeToString() for piece in raw]
    pieces = [first, *middle, last, *middle]
    head, views = split_request(b"".join(pieces))
    assert head == first + last
    assert [bytes(view) for view in views] == raw * 2


@given(st.data())
def test_our_client_says_to_their_server_what_it_means(data: st.DataObject) -> None:
    names = data.draw(st.lists(st.text(max_size=4), unique=True, max_size=3))
    tensors = []
    for name in names:
        datatype = data.draw(st.sampled_from(sorted(WIDTHS)))
        shape = tuple(data.draw(st.lists(st.integers(0, 3), max_size=3)))
        tensors.append(InferTensor(name, datatype, shape, bytes(int(np.prod(shape)) * WIDTHS[datatype])))
    parameters = {"timeout": 5, "priority": 2, "a": True, "b": "text", "c": 1.5}
    message = b"".join(request_to_message("m", "3", tensors, ["y"], "7", parameters))
    read = TheirRequest.FromString(message)
    assert (read.model_name, read.model_version, read.id) == ("m", "3", "7")
    assert [(t.name, t.datatype, tuple(t.shape)) for t in read.inputs] == [tensor[:3] for tensor in tensors]
    assert list(read.raw_input_contents) == [tensor.data for tensor in tensors]
    assert [output.name for output in read.outputs] == ["y"]
    assert read.parameters["timeout"].int64_param == 5
    assert read.parameters["priority"].uint64_param == 2
    assert (read.parameters["a"].bool_param, read.parameters["b"].string_param, read.parameters["c"].double_param) == (
        True,
        "text",
        1.5,
    )
    ours = parse(message)
    assert [tensor[:3] for tensor in ours.inputs] == [tensor[:3] for tensor in tensors]
    assert (ours.timeout_us, ours.priority, ours.outputs) == (5, 2, [RequestedOutput("y", True)])


FIELDS = {
    **dict.fromkeys(("INT8", "INT16", "INT32"), "int_contents"),
    **dict.fromkeys(("UINT8", "UINT16", "UINT32"), "uint_contents"),
    "INT64": "int64_contents",
    "UINT64": "uint64_contents",
    "FP32": "fp32_contents",
    "FP64": "fp64_contents",
}


@pytest.mark.parametrize("datatype", FIELDS)
@given(data=st.data())
def test_contents_that_are_not_raw_become_bytes(datatype: str, data: st.DataObject) -> None:
    dtype = np.dtype(DATATYPES[datatype])
    if dtype.kind == "f":
        numbers = st.floats(width=32, allow_nan=False)
    else:
        numbers = st.integers(int(np.iinfo(dtype).min), int(np.iinfo(dtype).max))
    values = data.draw(st.lists(numbers, max_size=5))
    message = theirs(datatype=datatype, shape=[len(values)], contents={FIELDS[datatype]: values})
    assert parse(message).inputs[0] == InferTensor("x", datatype, (len(values),), np.array(values, dtype).tobytes())


def test_contents_of_truths_and_of_bytes() -> None:
    assert parse(theirs(datatype="BOOL", contents={"bool_contents": [True, False]})).inputs[0].data == b"\1\0"
    elements = [b"a", b"\xff\0"]
    assert parse(theirs(datatype="BYTES", contents={"bytes_contents": elements})).inputs[0].data == pack_bytes(elements)


def test_no_elements_need_no_contents() -> None:
    assert parse(theirs(shape=[0])).inputs[0].data == b""
    assert parse(theirs(shape=[0], contents={})).inputs[0].data == b""


SHARED = {"shared_memory_region": {"string_param": "r"}, "shared_memory_byte_size": {"int64_param": 4}}


@pytest.mark.parametrize(
    ("message", "sentence"),
    [
        (theirs(), "input 'x' takes 4 bytes, and its size is 0"),
        (theirs(contents={"int_contents": [1]}), "input 'x' takes 4 bytes, and its size is 2"),
        (theirs(contents={"int_contents": [1, 2**15]}), "the data of input 'x' has a value that is no INT16"),
        (theirs(contents={"int64_contents": [1, 2]}), "input 'x' is INT16, whose elements have to be in int_contents"),
        (
            theirs(datatype="FP16", contents={"fp32_contents": [1, 2]}),
            "input 'x': FP16 has no contents; send it as raw contents",
        ),
        (theirs(datatype="FP8"), "input 'x' has the unknown datatype 'FP8'"),
        (theirs(shape=[-1]), "an extent of input 'x' must be a whole number from 0 on, not -1"),
        (theirs(parameters=SHARED, contents={"int_contents": [1, 2]}), "input 'x' has contents beside its other data"),
        (
            theirs() + TheirRequest(raw_input_contents=[b"abc"]).SerializeToString(),
            "input 'x' takes 4 bytes, and its raw size is 3",
        ),
        (
            theirs() + TheirRequest(raw_input_contents=[b"abcd", b""]).SerializeToString(),
            "2 raw contents came, more than there are inputs for them",
        ),
        (
            theirs() + theirs(name="y") + TheirRequest(raw_input_contents=[b"abcd"]).SerializeToString(),
            "input 'y' has no data: only 1 raw contents came",
        ),
        (
            theirs() * 2 + TheirRequest(raw_input_contents=[b"abcd", b"abcd"]).SerializeToString(),
            "input 'x' is given twice",
        ),
        (
            theirs(shape=[0]) + TheirRequest(parameters={"sequence_id": {"string_param": "a"}}).SerializeToString(),
            "'m' keeps nothing between calls: it has no sequences (sequence_id)",
        ),
        (
            theirs(shape=[0]) + TheirRequest(parameters={"timeout": {"string_param": "a"}}).SerializeToString(),
            "'timeout' must be a whole number from 0 on",
        ),
    ],
)
def test_a_request_that_cannot_be_meant(message: bytes, sentence: str) -> None:
    with pytest.raises(InferenceError) as caught:
        parse(message)
    assert str(caught.value) == sentence
    assert caught.value.status == 400


def test_contents_that_are_not_raw_have_a_limit() -> None:
    head = theirs(datatype="INT8", shape=[1000], contents={"int_contents": [1] * 1000})
    assert request_from_message(head, [], len(head)).inputs[0].data == b"\1" * 1000
    with pytest.raises(InferenceError, match="send tensors as raw_input_contents") as caught:
        request_from_message(head, [], len(head) - 1)
    assert caught.value.status == 413


def test_raw_contents_are_counted() -> None:
    with pytest.raises(ProtocolError, match="more than 65536 raw contents"):
        split_request(b"\x3a\0" * 70000)


@given(st.binary(max_size=60))
def test_any_bytes_are_a_request_or_refused(data: bytes) -> None:
    tensor = b"\x0a\x01x\x12\x04INT8" + data
    for message in (data, b"\x2a%c%b" % (len(tensor), tensor), theirs() + data):
        for read in (parse, response_from_message):
            try:
                read(message)
            except (ProtocolError, InferenceError):
                continue
        try:
            head, raw = split_request(message)
        except ProtocolError:
            continue
        assert len(head) + sum(map(len, raw)) <= len(message)


@given(st.integers(0, 200), st.data())
def test_a_cut_request_is_a_shorter_one_or_refused(size: int, data: st.DataObject) -> None:
    message = b"".join(
        request_to_message("m", "3", [InferTensor("x", "INT8", (3,), b"abc")] * 2, ["y"], "7", {"timeout": 5})
    )
    try:
        parse(message[: min(size, len(message) - 1)])
    except (ProtocolError, InferenceError):
        return


# ---------------------------------------------------------------- answers


def answer(outputs: list[InferTensor], **more: Any) -> bytes:
    data = [b"" if type(output.data) is Region else output.data for output in outputs]
    return b"".join(
        [response_head("m", "3", outputs, **more), *(part for raw in data for part in (raw_prefix(len(raw)), raw))]
    )


def test_nvidias_client_reads_our_answer() -> None:
    strings = pack_bytes([b"a", "é".encode()])
    outputs = [
        InferTensor("r", "FP32", (1,), Region("region", 8, 4)),
        InferTensor("y", "FP32", (1, 2), np.array([1, 2], "f4").tobytes()),
        InferTensor("s", "BYTES", (2,), strings),
        InferTensor("b", "BF16", (1,), np.array([1.5], ml_dtypes.bfloat16).tobytes()),
        InferTensor("e", "INT8", (0,), b""),
    ]
    message = answer(outputs, id="7", final=True)
    read = TheirAnswer.FromString(message)
    assert (read.model_name, read.model_version, read.id) == ("m", "3", "7")
    assert read.parameters["triton_final_response"].bool_param
    result = InferResult(read)
    assert result.as_numpy("y").tolist() == [[1.0, 2.0]]
    assert result.as_numpy("s").tolist() == [b"a", "é".encode()]
    assert result.as_numpy("b").tolist() == [1.5]
    assert result.as_numpy("e").tolist() == []
    assert result.get_output("r").parameters["shared_memory_offset"].int64_param == 8
    ours = response_from_message(message)
    assert [(output.name, output.shape) for output in ours] == [(output.name, output.shape) for output in outputs]
    assert [output.data for output in ours] == [output.data for output in outputs]
    assert ours[1].data.obj is message, "it is not copied"


def test_an_answer_with_contents() -> None:
    """As MLServer gives it."""
    outputs = [
        {"name": "y", "datatype": "INT64", "shape": [2, 1], "contents": {"int64_contents": [-1, 2**40]}},
        {"name": "s", "datatype": "BYTES", "shape": [1], "contents": {"bytes_contents": [b"a"]}},
    ]
    assert response_from_message(TheirAnswer(outputs=outputs).SerializeToString()) == [
        InferTensor("y", "INT64", (2, 1), np.array([-1, 2**40]).tobytes()),
        InferTensor("s", "BYTES", (1,), pack_bytes([b"a"])),
    ]


def test_empty_contents_beside_raw_ones_are_none() -> None:
    """MLServer answers so."""
    answer = service_pb2.ModelInferResponse(raw_output_contents=[bytes(8)])
    output = answer.outputs.add(name="y", datatype="FP32", shape=[2])
    output.contents.SetInParent()
    assert response_from_message(answer.SerializeToString()) == [InferTensor("y", "FP32", (2,), bytes(8))]


def test_answers_of_a_stream() -> None:
    message = answer([InferTensor("y", "INT8", (2,), b"ab")])
    read = service_pb2.ModelStreamInferResponse.FromString(stream_prefix(len(message)) + message)
    assert read.infer_response == TheirAnswer.FromString(message)
    assert not read.error_message
    failed = service_pb2.ModelStreamInferResponse.FromString(stream_error("no", "7"))
    assert (failed.error_message, failed.infer_response.id) == ("no", "7")
