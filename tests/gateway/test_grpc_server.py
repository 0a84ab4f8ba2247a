"""gRPC: methods, errors, streams, deadlines and cancelled calls, by grpcio's client with messages as bytes."""

from __future__ import annotations

import asyncio
import queue
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from rpcsys.errors import ConfigError, PortRangeError
from rpcsys.gateway import grpc_server
from rpcsys.gateway.config import GatewayConfig
from rpcsys.gateway.grpc_server import _refusal, open_grpc
from rpcsys.link.admission import Admission
from rpcsys.wire.inference import InferTensor
from rpcsys.wire.inference_messages import request_to_message, response_from_message
from rpcsys.wire.inference_tables import HEALTH, INFERENCE, METHODS
from rpcsys.wire.protobuf import decode, encode
from tests.gateway.running import MODELS, WAIT_S, GatewayBench
from tests.gateway.transcripts import place

grpc = pytest.importorskip("grpc")


@pytest.fixture
def channel(bench: GatewayBench) -> Iterator[Any]:
    with grpc.insecure_channel(f"127.0.0.1:{bench.grpc.port}") as made:
        yield made


def call(channel: Any, method: str, /, **fields: Any) -> dict[str, Any]:
    path = method if method.startswith("/") else INFERENCE + method
    tables = METHODS[path]
    told = channel.unary_unary(path)(encode(tables.request, fields), timeout=WAIT_S)
    return decode(tables.response, told)


def message(model: str = "uint8", datatype: str = "UINT8", data: bytes = b"abc", **more: Any) -> bytes:
    return b"".join(request_to_message(model, "", [InferTensor("x", datatype, (1, len(data)), data)], **more))


def infer(channel: Any, sent: bytes, timeout: float = WAIT_S) -> bytes:
    told: bytes = channel.unary_unary(f"{INFERENCE}ModelInfer")(sent, timeout=timeout)
    return told


def refused(function: Any, *arguments: Any, code: str, words: str = "", **fields: Any) -> None:
    with pytest.raises(grpc.RpcError) as caught:
        function(*arguments, **fields)
    assert caught.value.code().name == code
    assert words in caught.value.details()


def test_what_is_told(channel: Any) -> None:
    assert call(channel, "ServerLive") == {"live": True}
    assert call(channel, "ServerReady") == {"ready": True}
    assert call(channel, "ServerMetadata")["name"] == "rpcsys"
    assert call(channel, "ModelReady", name="uint8") == {"ready": True}
    assert call(channel, "ModelReady", name="none") == {"ready": False}
    assert call(channel, "ModelMetadata", name="uint8", version="1")["versions"] == ["1"]
    assert call(channel, "ModelConfig", name="strings")["config"]["input"][0]["data_type"] == "TYPE_STRING"
    assert {row["name"] for row in call(channel, "RepositoryIndex")["models"]} == set(MODELS)
    assert call(channel, f"{HEALTH}Check", service="uint8") == call(channel, f"{HEALTH}Check") == {"status": "SERVING"}
    infer(channel, message())
    assert call(channel, "ModelStatistics", name="uint8")["model_stats"][0]["inference_count"] == 1


def test_a_call(bench: GatewayBench, channel: Any) -> None:
    for _ in range(2):
        (output,) = response_from_message(infer(channel, message()))
        assert (output.name, output.datatype, output.shape, bytes(output.data)) == ("y", "UINT8", (1, 3), b"abc")
    bench.await_true(lambda: bench.service.memory.taken == 0)


def test_errors(channel: Any) -> None:
    for sent, code, words in (
        (message("none"), "NOT_FOUND", "'none' is not found"),
        (message(datatype="INT8"), "INVALID_ARGUMENT", "expects 'UINT8'"),
        (message(outputs=["z"]), "INVALID_ARGUMENT", "'z'"),
        (b"\xff\xff", "INVALID_ARGUMENT", ""),
        (message()[:-1], "INVALID_ARGUMENT", ""),
    ):
        refused(infer, channel, sent, code=code, words=words)
    refused(call, channel, "ModelMetadata", name="none", code="NOT_FOUND")
    refused(call, channel, f"{HEALTH}Check", service="none", code="NOT_FOUND")
    refused(call, channel, "LogSettings", code="UNIMPLEMENTED")
    refused(call, channel, "CudaSharedMemoryRegister", code="UNIMPLEMENTED")
    refused(call, channel, "SystemSharedMemoryRegister", name="r", key="none", byte_size=1, code="INVALID_ARGUMENT")
    refused(channel.unary_unary(f"{INFERENCE}Fly"), b"", code="UNIMPLEMENTED")


def test_requests_that_are_refused_count_as_failures_of_their_model(bench: GatewayBench, channel: Any) -> None:
    bad = [message(datatype="INT8"), message(outputs=["z"]), message()[:-1], message("none"), b"\xff\xff"]
    for sent in bad:
        with pytest.raises(grpc.RpcError):
            infer(channel, sent)
    list(channel.stream_stream(f"{INFERENCE}ModelStreamInfer")(iter(bad)))
    (row,) = call(channel, "ModelStatistics", name="uint8")["model_stats"]
    assert row["inference_stats"]["fail"]["count"] == 6
    assert bench.run(lambda: bench.service.backend.state.statistics("uint8").failures) == {"OTHER": 6}


def test_a_model_is_taken_out_and_in_again(channel: Any) -> None:
    call(channel, "RepositoryModelUnload", model_name="uint8")
    assert call(channel, "ModelReady", name="uint8") == {"ready": False}
    call(channel, "RepositoryModelLoad", model_name="uint8")
    assert call(channel, "ModelReady", name="uint8") == {"ready": True}
    refused(call, channel, "RepositoryModelLoad", model_name="none", code="NOT_FOUND")


def watched(channel: Any, service: str = "") -> Any:
    """A Watch, and what gives its next status."""
    tables = METHODS[f"{HEALTH}Watch"]
    stream = channel.unary_stream(f"{HEALTH}Watch")(encode(tables.request, {"service": service}), timeout=WAIT_S)
    return stream, lambda: decode(tables.response, next(stream))["status"]


def test_a_watch_tells_each_change(bench: GatewayBench, channel: Any) -> None:
    stream, status = watched(channel, "uint8")
    assert status() == "SERVING"
    call(channel, "RepositoryModelUnload", model_name="uint8")
    assert status() == "NOT_SERVING"
    call(channel, "RepositoryModelLoad", model_name="uint8")
    assert status() == "SERVING"
    where = place(MODELS.index("uint8"))
    bench.hosts.down.add(where)
    bench.run(lambda: bench.hosts.kill(where))
    assert status() == "NOT_SERVING"
    bench.hosts.down.remove(where)
    assert status() == "SERVING"
    stream.cancel()
    bench.await_true(lambda: not bench.service.backend.watchers)


def test_a_watch_of_the_server_and_of_what_is_unknown(bench: GatewayBench, channel: Any) -> None:
    watches = [watched(channel, name) for name in ("", "inference.GRPCInferenceService", "none")]
    assert [status() for _, status in watches] == ["SERVING", "SERVING", "SERVICE_UNKNOWN"]
    bench.run(bench.service.methods.stop)
    for stream, status in watches:
        assert status() == "NOT_SERVING"
        assert list(stream) == []  # it ends with the gateway
        assert stream.code() is grpc.StatusCode.OK
    bench.await_true(lambda: not bench.service.backend.watchers)
    broken = channel.unary_stream(f"{HEALTH}Watch")(b"\xff", timeout=WAIT_S)
    with pytest.raises(grpc.RpcError) as caught:
        next(broken)
    assert caught.value.code() is grpc.StatusCode.INVALID_ARGUMENT


def test_deadlines_and_cancelled_calls_end_on_the_host(bench: GatewayBench, channel: Any) -> None:
    bench.hosts.mute = True
    refused(infer, channel, message(), 0.1, code="DEADLINE_EXCEEDED")
    assert bench.hosts.cancelled.wait(WAIT_S)
    bench.hosts.cancelled.clear()
    refused(infer, channel, message(parameters={"timeout": 20_000}), code="DEADLINE_EXCEEDED", words="the deadline")
    under_way = channel.unary_unary(f"{INFERENCE}ModelInfer").future(message())
    bench.await_true(lambda: bench.service.memory.taken == len(message()))
    bench.hosts.cancelled.clear()
    under_way.cancel()
    assert bench.hosts.cancelled.wait(WAIT_S)
    bench.await_true(lambda: bench.service.memory.taken == 0)


def test_a_stream_answers_in_order_and_goes_on_after_an_error(bench: GatewayBench, channel: Any) -> None:
    count = 200
    bad = {7, 50}
    sent = [message("none") if number in bad else message(id=str(number)) for number in range(count)]
    table = METHODS[f"{INFERENCE}ModelStreamInfer"].response
    told = [decode(table, each) for each in channel.stream_stream(f"{INFERENCE}ModelStreamInfer")(iter(sent))]
    for number, each in enumerate(told):
        assert ("not found" in each["error_message"]) is (number in bad)
        assert number in bad or each["infer_response"]["id"] == str(number)
    assert len(told) == count
    bench.await_true(lambda: bench.service.memory.taken == 0)


def test_a_stream_that_is_cancelled_leaves_nothing(bench: GatewayBench, channel: Any) -> None:
    bench.hosts.mute = True
    requests: queue.Queue[bytes | None] = queue.Queue()
    for _ in range(5):
        requests.put(message())
    stream = channel.stream_stream(f"{INFERENCE}ModelStreamInfer")(iter(requests.get, None))
    codes: list[str] = []

    def read() -> None:
        try:
            next(stream)
        except grpc.RpcError:
            codes.append(stream.code().name)

    reader = threading.Thread(target=read)
    reader.start()
    bench.await_true(lambda: bench.service.memory.taken == 5 * len(message()))
    stream.cancel()
    requests.put(None)
    reader.join(WAIT_S)
    assert codes == ["CANCELLED"]
    assert bench.hosts.cancelled.wait(WAIT_S)
    bench.await_true(lambda: bench.service.memory.taken == 0)


def test_a_message_that_is_too_long_is_refused(channel: Any) -> None:
    refused(infer, channel, message(data=bytes(9 << 20)), code="RESOURCE_EXHAUSTED")


def test_there_is_room_for_messages_or_it_is_said(bench: GatewayBench, channel: Any) -> None:
    bench.run(lambda: bench.service.memory.add(bench.service.memory.limit))
    refused(infer, channel, message(), code="UNAVAILABLE", words="memory")
    bench.run(lambda: bench.service.memory.give_back(bench.service.memory.limit))
    assert infer(channel, message())


def test_who_is_served() -> None:
    admission = Admission()
    for peer in (
        "ipv4:127.0.0.1:500",
        "ipv6:%5B::1%5D:500",
        "ipv4:10.1.2.3:1",
        "unix:",
        "ipv6:%5B::ffff:10.1.2.3%5D:1",
    ):
        assert not _refusal(admission, peer)
    assert "--admit" in _refusal(admission, "ipv4:8.8.8.8:500")


def test_it_is_off_or_says_what_is_missing(bench: GatewayBench, monkeypatch: pytest.MonkeyPatch) -> None:
    service = bench.service

    def opened(**more: Any) -> Any:
        return asyncio.run(open_grpc(GatewayConfig(**more), service.methods, service.admission))

    assert opened(grpc_port=0) is None
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(PortRangeError, match="--grpc-port"):
        opened(host="127.0.0.1", grpc_port=taken.getsockname()[1])
    monkeypatch.setattr(grpc_server.importlib.util, "find_spec", lambda name: None)
    assert opened() is None
    with pytest.raises(ConfigError, match="pip install grpcio"):
        opened(grpc_port=8001)
