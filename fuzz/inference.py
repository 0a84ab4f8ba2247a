"""What strangers send to a gateway: HTTP/1.1, and the Open Inference Protocol's requests and answers."""

from __future__ import annotations

import json
import random
from typing import Any

from rpcsys.errors import ProtocolError
from rpcsys.wire import protobuf
from rpcsys.wire.http1 import CHUNKED, ChunkReader, HttpError, HttpLimits, find_head, make_request, parse_response
from rpcsys.wire.http1_requests import make_response, parse_request
from rpcsys.wire.inference import InferenceError, InferTensor, from_values, response_from_json, to_values
from rpcsys.wire.inference_messages import (
    raw_prefix,
    request_from_message,
    request_to_message,
    response_from_message,
    response_head,
    split_request,
)
from rpcsys.wire.inference_requests import (
    BinarySpan,
    Region,
    match_inputs,
    match_outputs,
    request_from_json,
    strings_of,
)
from rpcsys.wire.inference_tables import METHODS

DOCUMENTED = (ProtocolError, InferenceError)
_LIMITS = HttpLimits(head=4096, fields=32, body=1 << 16)

# ---------------------------------------------------------------- HTTP/1.1

_HOST = b"Host: h:8000\r\n"
_CHUNKED = b"Transfer-Encoding: chunked\r\n\r\n5;a=b\r\nhello\r\n1\r\n!\r\n0\r\nA: b\r\n\r\n"
_HEALTH = b"GET /v2/health/live?a=b HTTP/1.1\r\n" + _HOST + b"\r\n"
HTTP_REQUESTS = (
    _HEALTH,
    b"\r\nHEAD http://h/v2 HTTP/1.0\r\nConnection: keep-alive\r\nA: \t b \r\nA: c\r\n\r\n",
    make_request("POST", "/v2/models/m/infer", "h", [("Inference-Header-Content-Length", 2)], 5) + b"{}abc" + _HEALTH,
    b"POST /v2/models/m/infer HTTP/1.1\r\n" + _HOST + b"Expect: 100-continue\r\n" + _CHUNKED + _HEALTH,
)
HTTP_ANSWERS = (
    make_response(200, 5, [("Content-Type", "application/json")]) + b"hello",
    b"HTTP/1.1 100 Continue\r\n\r\n" + make_response(503, 0, [("Retry-After", 1)], keep_alive=False),
    b"HTTP/1.1 200 OK\r\n" + _CHUNKED,
    b"HTTP/1.0 404 Not Found\r\n\r\nup to the end",
)


def feed_http_requests(data: bytes, rng: random.Random) -> None:
    _feed_http(data, rng, lambda head: parse_request(head, _LIMITS).length)


def feed_http_answers(data: bytes, rng: random.Random) -> None:
    _feed_http(data, rng, lambda head: parse_response(head, _LIMITS).length)


def _feed_http(data: bytes, rng: random.Random, length_of: Any) -> None:
    """All messages of a connection, each body in pieces."""
    stream, at = bytearray(data), 0
    while (found := find_head(stream, at, len(stream), _LIMITS)) is not None:
        head = bytes(stream[found[0] : found[1]])
        length, at = length_of(head), found[1]
        assert head.count(b"\n") == head.count(b"\r\n") == head.count(b"\r"), "a line without its end was taken"
        if length == CHUNKED:
            reader = ChunkReader(_LIMITS)
            while at < len(stream) and not reader.done:
                at += reader.feed(stream[at : at + rng.choice((1, 7, 1000))])
            assert len(reader.body) <= _LIMITS.body + 2
        elif length >= 0:
            at += length
        else:
            return
    if at < len(stream) and rng.random() < 0.5:
        raise HttpError("the connection ended inside a head")


# ---------------------------------------------------------------- JSON

_BINARY_BYTES = 64
_X = {"name": "x", "datatype": "FP32", "shape": [1, 16], "parameters": {"binary_data_size": _BINARY_BYTES}}
_REGION = {"shared_memory_region": "r", "shared_memory_offset": 8, "shared_memory_byte_size": 64}
_TENSORS: tuple[dict[str, Any], ...] = (
    _X,
    {"name": "x", "datatype": "FP32", "shape": [2, 2], "data": [[1, 2.5], [-3, 1e10]]},
    {"name": "s", "datatype": "BYTES", "shape": [2], "data": ["a", "\u00e9"]},
    {"name": "n", "datatype": "UINT64", "shape": [1], "data": [2**64 - 1]},
)
_MORE = {
    "id": "7",
    "parameters": {"timeout": 5, "priority": 1, "binary_data_output": True},
    "outputs": [
        {"name": "y", "parameters": {"classification": 2, "binary_data": False}},
        {"name": "z", "parameters": _REGION},
    ],
}
JSON_REQUESTS = (
    *(json.dumps({"inputs": [tensor], **_MORE}).encode() for tensor in _TENSORS),
    json.dumps({"inputs": [{**_X, "parameters": _REGION}, _TENSORS[1] | {"name": "b", "datatype": "FP64"}]}).encode(),
)
JSON_ANSWERS = tuple(json.dumps({"model_name": "m", "outputs": [tensor]}).encode() for tensor in _TENSORS)


def _loads(data: bytes) -> Any:
    try:
        return json.loads(data)
    except (ValueError, RecursionError) as error:
        raise InferenceError(f"no JSON: {error}") from None


def feed_json_requests(data: bytes, rng: random.Random) -> None:
    size = _BINARY_BYTES if b"binary_data_size" in data else 0
    request = request_from_json(_loads(data), "m", "3", size)
    for tensor in request.inputs:
        if type(tensor.data) is list:
            made = from_values(tensor.datatype, tensor.data, tensor.name)
            if tensor.datatype == "BYTES":
                strings_of(made, len(tensor.data), tensor.name)
            else:
                assert from_values(tensor.datatype, to_values(tensor.datatype, made, ""), "") == made
    match_outputs(request, ["y", "z"])
    match_inputs(request, [*request.inputs[1:], *request.inputs[:1]])


def feed_json_answers(data: bytes, rng: random.Random) -> None:
    response_from_json(_loads(data), bytes(_BINARY_BYTES if b"binary_data_size" in data else 0))


# ---------------------------------------------------------------- messages

_INPUTS = [InferTensor("x", "INT8", (2, 2), b"abcd"), InferTensor("s", "BYTES", (1,), b"\1\0\0\0a")]
_CONTENTS = b"\x2a\x12\x0a\x01x\x12\x04INT8\x1a\x01\x02\x2a\x04\x12\x02\x01\x02"
MESSAGE_REQUESTS = (
    b"".join(request_to_message("m", "3", _INPUTS, ["y"], "7", {"timeout": 5, "priority": 1, "a": True, "b": 1.5})),
    b"".join(request_to_message("m", "", [InferTensor("r", "INT8", (4,), Region("region", 8, 4))])),
    b"\x0a\x01m" + _CONTENTS,
)
MESSAGE_ANSWERS = (
    response_head("m", "3", _INPUTS, "7", final=True) + raw_prefix(4) + b"abcd" + raw_prefix(5) + b"\1\0\0\0a",
    response_head("m", "3", []) + _CONTENTS,
)
_CONFIG = {"name": "m", "max_batch_size": 8, "input": [{"name": "x", "data_type": "TYPE_FP32", "dims": [-1, 16]}]}
_CONTROL = {"model_name": "m", "parameters": {"a": {"bool_param": True}}}
_TABLES = sorted(METHODS)
#: The place of a method among all, twice that for its answer and one more, before the message.
MESSAGES = tuple(
    bytes((2 * _TABLES.index(f"/inference.GRPCInferenceService/{name}") + part,))
    + protobuf.encode(METHODS[f"/inference.GRPCInferenceService/{name}"][part], value)
    for name, part, value in (
        ("ModelMetadata", 0, {"name": "m", "version": "3"}),
        ("ModelConfig", 1, {"config": {**_CONFIG, "version_policy": {"latest": {"num_versions": 1}}}}),
        ("RepositoryModelLoad", 0, _CONTROL),
        ("SystemSharedMemoryRegister", 0, {"name": "r", "key": "/r", "offset": 8, "byte_size": 2**40}),
        ("ModelStatistics", 1, {"model_stats": [{"name": "m", "batch_stats": [{"batch_size": 2}]}]}),
    )
)


def feed_message_requests(data: bytes, rng: random.Random) -> None:
    head, raw = split_request(data)
    assert len(head) + sum(map(len, raw)) <= len(data)
    request = request_from_message(head, [len(view) for view in raw], 1 << 16)
    assert request.binary_bytes <= sum(map(len, raw))
    assert sum(type(tensor.data) is BinarySpan for tensor in request.inputs) == len(raw)


def feed_message_answers(data: bytes, rng: random.Random) -> None:
    response_from_message(data)


def feed_messages(data: bytes, rng: random.Random) -> None:
    """Any message of the protocol: what is read can be written, and is then read alike."""
    which = data[0] if data else 0
    table = METHODS[_TABLES[which // 2 % len(_TABLES)]][which % 2]
    written = protobuf.encode(table, protobuf.decode(table, data[1:]))
    assert protobuf.encode(table, protobuf.decode(table, written)) == written


#: Name, valid inputs, and what feeds them, for each parser.
PARSERS = (
    ("http-requests", HTTP_REQUESTS, feed_http_requests),
    ("http-answers", HTTP_ANSWERS, feed_http_answers),
    ("inference-json", JSON_REQUESTS, feed_json_requests),
    ("inference-json-answers", JSON_ANSWERS, feed_json_answers),
    ("inference-messages", MESSAGE_REQUESTS, feed_message_requests),
    ("inference-message-answers", MESSAGE_ANSWERS, feed_message_answers),
    ("protobuf", MESSAGES, feed_messages),
)
