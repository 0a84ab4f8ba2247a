"""gRPC's methods as messages; tests/gateway/test_grpc_server.py calls them over the network."""

from __future__ import annotations

import pytest

from rpcsys.errors import ProtocolError
from rpcsys.gateway.methods import INFER, LOAD, STREAM, WATCH, as_inference_error, stream_answer
from rpcsys.wire.inference import InferenceError
from rpcsys.wire.inference_tables import METHODS
from rpcsys.wire.protobuf import decode
from tests.gateway.running import GatewayBench


def test_every_method_is_served(bench: GatewayBench) -> None:
    assert {*bench.service.methods.unary, INFER, STREAM, LOAD, WATCH} == METHODS.keys()


def test_bytes_that_are_no_message(bench: GatewayBench) -> None:
    for path in sorted(bench.service.methods.unary):
        with pytest.raises(ProtocolError):
            bench.run(lambda path=path: bench.service.methods.answer(path, b"\xff"))


def test_answers_of_streams() -> None:
    table = METHODS[STREAM].response
    assert decode(table, stream_answer(InferenceError("no"))) == {
        "error_message": "no",
        "infer_response": decode(table, b"\x12\x00")["infer_response"],
    }
    assert decode(table, stream_answer(b"\x0a\x01m"))["infer_response"]["model_name"] == "m"
    error = InferenceError("no", 404)
    assert as_inference_error(error) is error
    assert as_inference_error(ProtocolError("cut")).status == 400
