"""The protocol's paths."""

from __future__ import annotations

import contextlib
import json
import os
import socket
import struct
import threading
from typing import Any

import pytest

import rpcsys
from rpcsys.wire.inference import pack_bytes
from tests.gateway.running import MODELS, GatewayBench, in_binary, in_json, infer_path, request

SHARED = "/v2/systemsharedmemory"


def test_the_server(bench: GatewayBench) -> None:
    assert bench.ask("GET", "/v2/health/live").json == {"live": True}
    assert bench.ask("GET", "/v2/health/ready").json == {"ready": True}
    told = bench.ask("GET", "/v2").json
    assert (told["name"], told["version"]) == ("rpcsys", rpcsys.__version__)
    assert "system_shared_memory" in told["extensions"]


@pytest.mark.parametrize("below", ["", "/versions/1", "/versions/0001-aaaaaaaaaaaa"])
def test_a_model(bench: GatewayBench, below: str) -> None:
    path = f"/v2/models/float32{below}"
    assert bench.ask("GET", path).json == {
        "name": "float32",
        "versions": ["1"],
        "platform": "onnxruntime_onnx",
        "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, -1]}],
        "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, -1]}],
    }
    assert bench.ask("GET", f"{path}/ready").json == {"name": "float32", "ready": True}
    assert bench.ask("GET", f"{path}/config").json["input"] == [
        {"name": "x", "data_type": "TYPE_FP32", "dims": [-1, -1]}
    ]
    assert bench.ask("POST", f"{path}/infer", in_json("FP32", (1, 1), [1])).status == 200
    (row,) = bench.ask("GET", f"{path}/stats").json["model_stats"]
    assert (row["name"], row["inference_count"], row["inference_stats"]["success"]["count"]) == ("float32", 1, 1)
    assert row["last_inference"] > 1_600_000_000_000


def test_the_index(bench: GatewayBench) -> None:
    for body in (b"", b"{}", b'{"ready": true}'):
        rows = bench.ask("POST", "/v2/repository/index", body).json
        assert {row["name"]: row["state"] for row in rows} == dict.fromkeys(MODELS, "READY")
    assert len(bench.ask("GET", "/v2/models/stats").json["model_stats"]) == len(MODELS)


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "words"),
    [
        ("GET", "/", b"", 404, "/v2"),
        ("GET", "/v2/models/none", b"", 404, "'none' is not found"),
        ("POST", infer_path("none"), b"{}", 404, "'none' is not found"),
        ("GET", "/v2/models/uint8/versions/7", b"", 404, "version 1 is served"),
        ("GET", infer_path("uint8"), b"", 405, "POST"),
        ("POST", "/v2", b"", 405, "GET"),
        ("DELETE", "/v2/models/uint8", b"", 405, "GET"),
        ("GET", "/v2/logging", b"", 501, "not set"),
        ("POST", "/v2/models/uint8/trace/setting", b"", 501, "not set"),
        ("POST", "/v2/cudasharedmemory/region/r/register", b"{}", 501, "CUDA"),
        ("POST", infer_path("uint8"), b"{", 400, "JSON"),
        ("POST", infer_path("uint8"), b"", 400, "JSON"),
        ("POST", infer_path("uint8"), in_json("UINT8", (1, 2), [1]), 400, "has 1 elements"),
        ("POST", infer_path("uint8"), in_json("UINT8", (2,), [1, 2]), 400, "unexpected shape"),
        ("POST", infer_path("bfloat16"), in_json("BF16", (1, 1), [1]), 400, "binary"),
        ("POST", infer_path("uint8"), b'{"inputs": [' + b" " * (1 << 20) + b"]}", 413, "--max-json"),
        ("POST", "/v2/repository/index", b"[]", 400, "object"),
    ],
)
def test_errors(bench: GatewayBench, method: str, path: str, body: bytes, status: int, words: str) -> None:
    told = bench.ask(method, path, body)
    assert (told.status, list(told.json)) == (status, ["error"])
    assert words in told.json["error"]
    assert (status != 405) or told.fields["allow"] == words


def failures(bench: GatewayBench, model: str = "uint8") -> int:
    (row,) = bench.ask("GET", f"/v2/models/{model}/stats").json["model_stats"]
    return int(row["inference_stats"]["fail"]["count"])


def test_requests_that_are_refused_count_as_failures_of_their_model(bench: GatewayBench) -> None:
    path = infer_path("uint8")
    chunked = b"1000000\r\n" + bytes(16 << 20)
    tried = [
        (400, b"{"),
        (400, in_json("INT8", (1, 1), [1])),
        (400, in_json("UINT8", (1,), [1])),
        (413, b'{"inputs": [' + b" " * (1 << 20) + b"]}"),
        (413, bytes(9 << 20)),
        (400, in_json("UINT8", (1, 1), [1]), "Inference-Header-Content-Length: x"),
        (400, in_json("UINT8", (1, 1), [1]), "Content-Encoding: gzip"),
        (400, bytes(1 << 20), "Content-Encoding: gzip"),  # long enough to be unpacked beside the loop
    ]
    for number, (status, body, *fields) in enumerate(tried, 1):
        assert (bench.ask("POST", path, body, *fields).status, failures(bench)) == (status, number), body[:40]
    with bench.connect() as client:
        client.sock.sendall(request("POST", path, b"", "Transfer-Encoding: chunked"))
        threading.Thread(target=send_all, args=(client.sock, chunked)).start()
        assert client.reply().status == 413
    assert failures(bench) == len(tried) + 1
    assert bench.ask("POST", "/v2/models/uint8/versions/9/infer", in_json("UINT8", (1, 1), [1])).status == 404
    assert bench.ask("GET", path).status == 405
    assert bench.ask("POST", path, in_json("UINT8", (1, 1), [1])).status == 200
    assert (failures(bench), failures(bench, "int64")) == (len(tried) + 1, 0)


def send_all(sock: socket.socket, data: bytes) -> None:
    with contextlib.suppress(OSError):  # the gateway hangs up before the end
        sock.sendall(data)


def test_a_binary_part_has_the_size_that_is_said(bench: GatewayBench) -> None:
    body, field = in_binary("UINT8", (1, 5), b"abcde")
    size = int(field.split(":")[1])
    for changed, words in ((body[:-1], "4 came"), (body + b"x", "6 came"), (body[: size - 1], "the body has")):
        told = bench.ask("POST", infer_path("uint8"), changed, field)
        assert (told.status, words in told.json["error"]) == (400, True), told.json
    assert bench.ask("POST", infer_path("uint8"), body, "Inference-Header-Content-Length: x").status == 400


def test_a_body_may_be_the_only_input(bench: GatewayBench) -> None:
    data = struct.pack("<3f", 1, 2, 3)
    told = bench.ask("POST", infer_path("float32"), data, "Inference-Header-Content-Length: 0")
    assert (told.status, told.body[-12:]) == (200, data)
    assert json.loads(told.body[:-12])["outputs"][0]["shape"] == [1, 3]
    assert bench.ask("POST", infer_path("float32"), data[:-1], "Inference-Header-Content-Length: 0").status == 400
    assert bench.ask("POST", infer_path("strings"), data, "Inference-Header-Content-Length: 0").status == 400


def test_strings_both_ways(bench: GatewayBench) -> None:
    told = bench.ask("POST", infer_path("strings"), in_json("BYTES", (1, 2), ["a", "äöü"]))
    assert told.json["outputs"][0]["data"] == ["a", "äöü"]
    packed = pack_bytes([b"a", b""])
    body, field = in_binary("BYTES", (1, 2), packed)
    assert bench.ask("POST", infer_path("strings"), body, field).body.endswith(packed)


def test_a_deadline(bench: GatewayBench) -> None:
    bench.hosts.mute = True
    told = bench.ask("POST", infer_path("uint8"), in_json("UINT8", (1, 1), [1], parameters={"timeout": 20_000}))
    assert (told.status, "the deadline was exceeded" in told.json["error"]) == (504, True)


def test_no_host(bench: GatewayBench) -> None:
    where = next(iter(bench.hosts.streams))
    for place in bench.hosts.streams:
        bench.hosts.down.add(place)
    assert where is not None
    for place in list(bench.hosts.streams):
        bench.hosts.kill(place)
    bench.await_true(lambda: bench.service.backend.state.replicas == 0)
    told = bench.ask("POST", infer_path("uint8"), in_json("UINT8", (1, 1), [1], parameters={"timeout": 20_000}))
    assert told.status == 504  # it waits for one, for 5 s at most
    assert bench.ask("GET", "/v2/models/uint8/ready").status == 503


def test_a_model_is_taken_out_and_in_again(bench: GatewayBench) -> None:
    control = "/v2/repository/models/uint8"
    assert bench.ask("POST", f"{control}/unload").status == 200
    assert bench.ask("POST", infer_path("uint8"), in_json("UINT8", (1, 1), [1])).status == 404
    assert bench.ask("POST", f"{control}/load").status == 200
    assert bench.ask("POST", infer_path("uint8"), in_json("UINT8", (1, 1), [1])).status == 200
    assert bench.ask("POST", "/v2/repository/models/none/load").status == 404


def test_shared_memory(bench: GatewayBench) -> None:
    key = f"rpcsys-test-{os.getpid()}"
    path = f"/dev/shm/{key}"
    with open(path, "xb") as file:
        file.write(b"abcde" + bytes(5))
    try:
        asked = json.dumps({"key": f"/{key}", "offset": 0, "byte_size": 10}).encode()
        assert bench.ask("POST", f"{SHARED}/region/r/register", asked).status == 200
        assert bench.ask("GET", f"{SHARED}/status").json == [
            {"name": "r", "key": f"/{key}", "offset": 0, "byte_size": 10}
        ]
        assert bench.ask("GET", f"{SHARED}/region/other/status").status == 404
        given: dict[str, Any] = {"name": "x", "datatype": "UINT8", "shape": [1, 5]}
        given["parameters"] = {"shared_memory_region": "r", "shared_memory_byte_size": 5}
        wanted = {"name": "y", "parameters": {**given["parameters"], "shared_memory_offset": 5}}
        told = bench.ask("POST", infer_path("uint8"), json.dumps({"inputs": [given], "outputs": [wanted]}).encode())
        assert told.json["outputs"][0]["parameters"]["shared_memory_offset"] == 5
        with open(path, "rb") as file:
            assert file.read() == b"abcdeabcde"
        assert bench.ask("POST", f"{SHARED}/unregister").status == 200
        assert bench.ask("GET", f"{SHARED}/status").json == []
    finally:
        os.unlink(path)
    assert bench.ask("GET", "/v2/cudasharedmemory/status").json == []
    assert bench.ask("POST", "/v2/cudasharedmemory/unregister").status == 200
