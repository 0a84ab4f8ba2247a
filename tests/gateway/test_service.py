"""The gateway as a process: its ready line, its ports, who is served, and its end."""

from __future__ import annotations

import json
import signal
import socket
import subprocess
import sys
from collections.abc import Iterator

import pytest

from rpcsys.errors import ModelError, UsageError
from rpcsys.gateway.config import GatewayConfig, PoolFlag
from rpcsys.gateway.service import bind_http, settings_of
from tests.gateway.running import GatewayBench, HttpClient, in_json, infer_path, request

START_S = 60.0


@pytest.fixture
def nowhere() -> Iterator[str]:
    """An address where nothing listens."""
    with socket.socket() as held:
        held.bind(("127.0.0.1", 0))
        yield f"127.0.0.1:{held.getsockname()[1]}"


def started(*flags: str) -> subprocess.Popen[str]:
    command = [sys.executable, "-m", "rpcsys.gateway", "--host", "127.0.0.1", "--port", "0", *flags]
    return subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def test_it_is_ready_before_its_server_is_there_and_ends_at_a_signal(nowhere: str) -> None:
    with started("--server", nowhere, "--grpc-port", "0") as process:
        assert process.stdout is not None
        ready = json.loads(process.stdout.readline())
        assert (ready["ready"], ready["grpc_port"], ready["pid"]) == ("gateway", None, process.pid)
        with HttpClient(ready["port"]) as client:
            assert client.ask("GET", "/v2/health/live").json == {"live": True}
            told = client.ask("GET", "/v2/health/ready")
            assert (told.status, told.json) == (503, {"ready": False})
            process.send_signal(signal.SIGTERM)
            assert client.ended()
        assert process.wait(START_S) == 0


def test_a_flag_that_is_wrong_is_one_line(nowhere: str) -> None:
    for flags, status, words in (
        (("--batch", "m"), 2, "NAME=MAX"),
        (("--tracker", nowhere, "--pool", "m=k:/nothing.onnx"), 2, "/nothing.onnx"),
    ):
        with started("--server", nowhere, *flags) as process:
            said = process.communicate(timeout=START_S)[1]
        assert (process.returncode, said.count("\n")) == (status, 1)
        assert words in said


def test_calls_end_before_the_gateway_does(bench: GatewayBench) -> None:
    bench.hosts.mute = True
    body = in_json("UINT8", (1, 1), [1], parameters={"timeout": 300_000})
    with bench.connect() as client, bench.connect() as idle:
        client.sock.sendall(request("POST", infer_path("uint8"), body))
        bench.await_true(lambda: not bench.service.backend.state.idle)
        for connection in bench.run(bench.service.crowd.all):
            bench.run(connection.finish)
        assert idle.ended()
        told = client.reply()
        assert (told.status, told.fields["connection"]) == (504, "close")
        assert client.ended()


def test_strangers_are_refused_in_a_sentence(bench: GatewayBench) -> None:
    ours, theirs = socket.socketpair()
    bench.run(lambda: bench.service.accept(ours, ("203.0.113.9", 1)))
    said = theirs.recv(10_000)
    assert said.startswith(b"HTTP/1.1 403 ")
    assert b"--admit 203.0.113.9" in said
    theirs.close()


def test_the_port_for_http_is_not_that_for_grpc() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, socket.socket() as held:
        port = taken.getsockname()[1]
        try:
            held.bind(("127.0.0.1", port + 1))
        except OSError:
            pytest.skip("the port behind a free one is taken")
        held.close()
        config = GatewayConfig(host="127.0.0.1", port=port, port_end=min(port + 50, 65536), grpc_port=port + 1)
        with bind_http(config) as listener:
            assert listener.getsockname()[1] not in (port, port + 1)


def test_a_pools_file_is_read_at_the_start(tmp_path: pytest.TempPathFactory) -> None:
    path = f"{tmp_path}/model.onnx"
    config = GatewayConfig(tracker=("lab", 9190), pools={"m": PoolFlag("key", path, 2)})
    with pytest.raises(UsageError):
        settings_of(config)
    with open(path, "wb") as file:
        file.write(b"\xff")
    with pytest.raises(ModelError):
        settings_of(config)
