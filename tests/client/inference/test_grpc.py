"""Calls over gRPC, to a server of grpcio's whose answers a test chooses."""

from __future__ import annotations

import sys
import threading
from concurrent import futures
from unittest import mock

import grpc
import numpy as np
import pytest

from rpcsys.client.inference import InferenceModel
from rpcsys.client.inference.urls import parse_urls
from rpcsys.errors import (
    Busy,
    DeadlineExceeded,
    ProtocolError,
    RemoteArgumentError,
    RemoteError,
    RemoteFunctionError,
    ServerUnreachable,
    SessionLost,
    UsageError,
)
from rpcsys.module.kinds.remote import remote
from rpcsys.wire import protobuf
from rpcsys.wire.inference import InferTensor
from rpcsys.wire.inference_messages import raw_prefix, request_from_message, response_head, split_request
from rpcsys.wire.inference_tables import INFERENCE, METHODS
from tests.client.inference.scripted import MODEL, WAIT_S

X = np.arange(8, dtype="f4").reshape(2, 4)


def doubled(message: bytes, context: grpc.ServicerContext) -> bytes:
    head, raw = split_request(message)
    request = request_from_message(head, [len(view) for view in raw])
    (x,) = request.inputs
    y = (2 * np.frombuffer(raw[0], "f4")).tobytes()
    output = InferTensor("y", "FP32", x.shape, y)
    return response_head(request.model, "1", [output]) + raw_prefix(len(y)) + y


class GrpcServer(grpc.GenericRpcHandler):
    def __init__(self) -> None:
        self.infer = doubled
        self.asked: list[str] = []
        options = [("grpc.max_receive_message_length", 64 << 20), ("grpc.max_send_message_length", -1)]
        self._server = grpc.server(futures.ThreadPoolExecutor(8), [self], options=options)
        self.port = self._server.add_insecure_port("127.0.0.1:0")
        self.url = f"grpc://127.0.0.1:{self.port}/m"
        self._server.start()

    def service(self, details):
        name = details.method.replace(INFERENCE, "")
        self.asked.append(name)
        said = {
            "ServerLive": lambda message, context: b"\x08\x01",
            "ModelMetadata": lambda message, context: protobuf.encode(METHODS[details.method].response, MODEL),
            "ModelInfer": self.infer,
        }
        return grpc.unary_unary_rpc_method_handler(said[name]) if name in said else None

    def close(self) -> None:
        self._server.stop(0).wait(WAIT_S)


@pytest.fixture
def server():
    made = GrpcServer()
    yield made
    made.close()


def aborting(code: grpc.StatusCode, said: str = "why"):
    return lambda message, context: context.abort(code, said)


def test_arrays_go_and_come(server) -> None:
    with remote(server.url) as far:
        for _ in range(3):
            y = far(X)
            assert np.array_equal(y, 2 * X)
            assert (y.dtype, y.flags.writeable, y.flags.aligned) == (np.float32, True, True)
        calls = [far.submit(X + number) for number in range(20)]
        assert all(np.array_equal(call.result(WAIT_S), 2 * (X + number)) for number, call in enumerate(calls))
        assert far.figures().opened == 1
    assert server.asked[:2] == ["ServerLive", "ModelMetadata"]


def test_a_large_array_goes_and_comes(server) -> None:
    x = np.ones((1 << 20, 4), "f4")
    with remote(server.url, inputs=[{"name": "x"}], outputs=[{"name": "y"}]) as far:
        assert np.array_equal(far(x), 2 * x)
        with pytest.raises(RemoteError, match="larger than max"):
            far(np.ones((5 << 20, 4), "f4"))  # at once: it would be too long again
    assert "ModelMetadata" not in server.asked


CODE = grpc.StatusCode


@pytest.mark.parametrize(
    ("code", "error"),
    [
        (CODE.INVALID_ARGUMENT, RemoteArgumentError), (CODE.NOT_FOUND, RemoteFunctionError), (CODE.UNAVAILABLE, Busy),
        (CODE.RESOURCE_EXHAUSTED, Busy), (CODE.DEADLINE_EXCEEDED, DeadlineExceeded), (CODE.INTERNAL, RemoteError),
        (CODE.UNKNOWN, RemoteError), (CODE.UNIMPLEMENTED, RemoteError),
    ],
)  # fmt: skip
def test_a_refusal_is_an_error_with_the_url(server, code, error) -> None:
    server.infer = aborting(code, "why\n\x1b[31m")
    model = InferenceModel(parse_urls(server.url)[0], [], [], WAIT_S)
    with pytest.raises(error, match=f"{server.url}: why") as caught:
        model.call(X)
    model.close()
    assert type(caught.value) is error
    assert str(caught.value).isprintable()


def test_a_server_that_went_away_is_a_lost_connection(server) -> None:
    model = InferenceModel(parse_urls(server.url)[0], [], [], WAIT_S)
    server.close()
    with pytest.raises(SessionLost, match=server.url):
        model.call(X)
    model.close()
    with pytest.raises(ServerUnreachable, match=str(server.port)):
        InferenceModel(parse_urls(server.url)[0], [], [], WAIT_S)


def test_a_deadline_is_held(server) -> None:
    over = threading.Event()
    server.infer = lambda message, context: (over.wait(WAIT_S), b"")[1]
    with remote(server.url, deadline_s=0.3) as far, pytest.raises(DeadlineExceeded):
        far(X)
    over.set()


def test_closing_ends_a_call(server) -> None:
    begun, over = threading.Event(), threading.Event()
    server.infer = lambda message, context: (begun.set(), over.wait(WAIT_S), b"")[2]
    model = InferenceModel(parse_urls(server.url)[0], [], [], WAIT_S)
    with futures.ThreadPoolExecutor(1) as threads:
        future = threads.submit(model.call, X)
        begun.wait(WAIT_S)
        model.close()
        with pytest.raises(SessionLost):
            future.result(WAIT_S)
        over.set()


@pytest.mark.parametrize("answer", [b"", b"\xff", b"\x2a\x00", bytes(99)])
def test_what_is_no_answer_is_a_documented_error(server, answer) -> None:
    server.infer = lambda message, context: answer
    with remote(server.url) as far, pytest.raises(ProtocolError, match=server.url):
        far(X)


def test_without_grpcio_it_says_what_to_install(server) -> None:
    with mock.patch.dict(sys.modules, {"grpc": None}), remote(server.url) as far:
        with pytest.raises(UsageError, match=r"pip install 'rpcsys\[gateway\]'"):
            far(X)
