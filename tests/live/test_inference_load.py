"""A gateway under load: modules replaced, hosts, servers and the tracker killed, crowds, slow readers, garbage."""

from __future__ import annotations

import asyncio
import json
import os
import random
import signal
import socket
import time
from pathlib import Path
from typing import Any

import numpy as np
import psutil
import pytest

import rpcsys
from rpcsys import module
from tests.live import deployed, gateways
from tests.live.daemons import START_S, Daemon, Daemons, free_port, wait_until
from tests.live.inference_load import GrpcCaller, HttpCaller, InferenceLoad, Refused

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

GONE_S = 6.0  # within that a client is told that no server is left
CROWD = 800
GROWTH_MB = 40.0
X = np.arange(64, dtype="float32")


def who(path: Path) -> Path:
    """A library whose ``main`` takes ``x`` and gives ``y``, the number of the process that runs it."""

    def number(x: Any) -> Any:
        import numpy as np

        from rpcsys.server.sandbox import processes

        return np.array([processes.number()], "float64")

    stage = module.Stage("main", module.python({"main": number}), ["x"], ["y"])
    inputs = [{"name": "x", "dtype": "float32", "shape": ["n"]}]
    module.export_library(module.graph([stage], inputs, [{"name": "y", "dtype": "float64", "shape": [1]}]), path)
    return path


class Replicas:
    """A tracker, servers that have the same modules, and a gateway that finds them there."""

    def __init__(self, daemons: Daemons, folder: Path, count: int = 2) -> None:
        self.daemons = daemons
        self.tracker = daemons.tracker()
        self.files = {"who": who(folder / "who.so"), "scale": deployed.onnx_model(folder / "scale.onnx", 2.0)}
        self.servers = [self.server(folder / f"deploy-{number}") for number in range(count)]
        self.gateway = daemons.gateway("--tracker", self.tracker.where, "--module", "who", "--module", "scale")
        gateways.wait_ready(self.gateway)

    def server(self, root: Path, port: int = 0) -> Daemon:
        if not root.exists():
            for name, file in self.files.items():
                deployed.put(root, name, file)
        flags = (*deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", "2", "--tracker", self.tracker.where)
        return self.daemons.server("edge", *flags, port=port)

    def load(self, model: str, check: Any, dtype: str = "float32") -> InferenceLoad:
        load = InferenceLoad(check)
        for _ in range(3):
            load.start(HttpCaller(self.gateway, model, X, dtype))
        for _ in range(2):
            load.start(GrpcCaller(self.gateway, model, X))
        return load


@pytest.fixture
def replicas(daemons: Daemons, tmp_path: Path) -> Replicas:
    return Replicas(daemons, tmp_path)


def more(load: InferenceLoad, count: int = 200) -> None:
    """Wait until so many more calls are answered."""
    target = load.calls + count
    wait_until(lambda: load.calls >= target or load.errors, START_S, f"{count} more calls")
    assert not load.errors, load.errors[:3]


def ended(load: InferenceLoad, record_property: Any) -> None:
    load.stop()
    record_property("calls, failed, longest in s", f"{load.calls}, {len(load.errors)}, {load.longest:.2f}")
    assert not load.errors, load.errors[:3]


def test_a_module_is_replaced_six_times(replicas: Replicas, tmp_path: Path, record_property: Any) -> None:
    load = replicas.load("scale", lambda y: any(np.array_equal(y, X * factor) for factor in (2.0, 3.0)))
    with rpcsys.connect_tracker(replicas.tracker.where) as tracker:
        names = [server["name"] for server in tracker.summary()["servers"]]
        assert len(names) == 2
        for turn in range(3):
            path = deployed.onnx_model(tmp_path / f"other-{turn}.onnx", 3.0 - turn % 2)
            for name in names:
                with tracker.deployment(name) as deployment:
                    deployment.put(path, "scale")
                more(load)
    ended(load, record_property)


def test_each_replicas_host_is_killed_three_times(replicas: Replicas, record_property: Any) -> None:
    seen: set[int] = set()

    def check(y: np.ndarray) -> bool:
        seen.add(int(y[0]))
        return True

    load = replicas.load("who", check, "float64")
    for _ in range(3):
        for server in replicas.servers:
            seen.clear()
            host = wait_until(lambda server=server: seen & below(server), START_S, "this server's host answers")
            os.kill(host.pop(), signal.SIGKILL)
            more(load)
    ended(load, record_property)


def below(server: Daemon) -> set[int]:
    """The processes of a server."""
    return {process.pid for process in psutil.Process(server.pid).children(recursive=True)}


def test_a_server_and_the_tracker_are_killed(replicas: Replicas, record_property: Any) -> None:
    load = replicas.load("scale", lambda y: np.array_equal(y, X * 2))
    more(load)
    replicas.tracker.destroy()
    more(load, 1000)
    replicas.servers[0].destroy()
    more(load, 1000)
    ended(load, record_property)


def test_the_only_server_goes_and_comes_back(daemons: Daemons, tmp_path: Path) -> None:
    port, root = free_port(), tmp_path / "deploy"
    deployed.put(root, "scale", deployed.onnx_model(tmp_path / "scale.onnx", 2.0))
    flags = (*deployed.WITH_NUMPY, "--deploy", str(root))
    server = daemons.server("edge", *flags, port=port)
    gateway = gateways.before(daemons, server, ["scale"])
    call = HttpCaller(gateway, "scale", X)
    assert np.array_equal(call(), X * 2)
    server.destroy()
    began = time.monotonic()
    with pytest.raises(Refused, match=r"503: .*no server serves 'scale' now; call again in a moment"):
        call()
    assert time.monotonic() - began < GONE_S + 1  # and what a busy machine adds
    with pytest.raises(Exception, match="no server serves 'scale' now"):
        GrpcCaller(gateway, "scale", X)()
    daemons.server("edge", *flags, port=port)

    def back() -> bool:
        try:
            return np.array_equal(call(), X * 2)
        except Refused as refused:
            if refused.status != 503:
                raise
            return False

    wait_until(back, START_S, "it is served again")
    call.close()


# --- crowds -------------------------------------------------------------------------------------------


@pytest.fixture
def gateway(daemons: Daemons, tmp_path: Path) -> Daemon:
    """A gateway before a server with fp32, nap and scale."""
    root = tmp_path / "deploy"
    deployed.put(root, "scale", deployed.onnx_model(tmp_path / "scale.onnx", 2.0))
    deployed.put(root, "fp32", gateways.identity(tmp_path / "fp32.onnx", ["FP32"]))
    deployed.put(root, "nap", gateways.sleeping(tmp_path / "nap.so"))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", "64")
    return gateways.before(daemons, server, ["scale", "fp32", "nap"], "--queue", "2000")


def resident_mb(gateway: Daemon) -> float:
    return psutil.Process(gateway.pid).memory_info().rss / 1e6


def comes_back(gateway: Daemon, before_mb: float, descriptors: int) -> None:
    """Its memory and its descriptors are those of before."""
    process = psutil.Process(gateway.pid)
    wait_until(lambda: process.num_fds() <= descriptors + 4, START_S, "its descriptors come back")
    wait_until(lambda: resident_mb(gateway) < before_mb + GROWTH_MB, START_S, "its memory comes back")


def warmed(gateway: Daemon) -> tuple[float, int]:
    """Call it both ways; its memory in MB and its descriptors then."""
    for kind in (HttpCaller, GrpcCaller):
        call = kind(gateway, "scale", X)
        for _ in range(50):
            assert np.array_equal(call(), X * 2)
        call.close()
    return resident_mb(gateway), psutil.Process(gateway.pid).num_fds()


def test_800_connections(gateway: Daemon) -> None:
    before = warmed(gateway)
    calls = [HttpCaller(gateway, "scale", X) for _ in range(CROWD)]
    for _ in range(3):
        for call in calls:
            assert np.array_equal(call(), X * 2)
    for call in calls:
        call.close()
    comes_back(gateway, *before)


def test_readers_that_stop_cost_their_own_connections_only(gateway: Daemon) -> None:
    """Memory of large bodies is kept for the next ones for some seconds."""
    before = warmed(gateway)
    readers_stop(gateway)
    comes_back(gateway, *before)


def readers_stop(gateway: Daemon) -> None:
    """Clients ask for 16 MB each and read nothing; others are served meanwhile. Then they hang up."""
    before = resident_mb(gateway)
    count = 4_000_000
    described = {"name": "FP32", "shape": [count], "datatype": "FP32", "parameters": {"binary_data_size": 4 * count}}
    head = json.dumps({"inputs": [described], "parameters": {"binary_data_output": True}}).encode()
    fields = f"Content-Length: {len(head) + 4 * count}\r\nInference-Header-Content-Length: {len(head)}"
    request = f"POST /v2/models/fp32/infer HTTP/1.1\r\nHost: a\r\n{fields}\r\n\r\n".encode() + head + bytes(4 * count)
    stopped = [socket.create_connection(gateway.address, timeout=START_S) for _ in range(4)]
    for sock in stopped:
        sock.sendall(request)
        sock.sendall(request[:200_000] if sock is stopped[0] else b"")
    call = HttpCaller(gateway, "scale", X)
    for _ in range(500):
        assert np.array_equal(call(), X * 2)
    assert resident_mb(gateway) < before + len(stopped) * 2 * 16 + GROWTH_MB
    call.close()
    for sock in stopped:
        sock.close()


def test_garbage_at_both_ports(gateway: Daemon) -> None:
    before = warmed(gateway)
    chance = random.Random(18)
    starts = [
        b"",
        b"GET ",
        b"POST /v2/models/scale/infer HTTP/1.1\r\n",
        b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n",
        b"\x16\x03\x01",
    ]
    for port in (gateway.address[1], gateway.ready["grpc_port"]):
        for _ in range(150):
            with socket.create_connection(("127.0.0.1", port), timeout=START_S) as sock:
                try:
                    sock.sendall(chance.choice(starts) + chance.randbytes(chance.randrange(5000)))
                    if chance.random() < 0.5:
                        sock.shutdown(socket.SHUT_WR)
                        sock.recv(100)
                except OSError:
                    pass  # it was cut off
    for kind in (HttpCaller, GrpcCaller):
        call = kind(gateway, "scale", X)
        assert np.array_equal(call(), X * 2)
        call.close()
    assert "Traceback" not in gateway.stderr()
    comes_back(gateway, *before)


def test_1500_calls_of_two_seconds_at_once(gateway: Daemon) -> None:
    from tritonclient.grpc.aio import InferenceServerClient as OverGrpc
    from tritonclient.http.aio import InferenceServerClient as OverHttp

    before = warmed(gateway)
    client = gateways.Triton("http", gateway)
    http_input = client.inputs({"x": ("FP32", np.array([2.0], "f4"))})
    client.close()
    client = gateways.Triton("grpc", gateway)
    grpc_input = client.inputs({"x": ("FP32", np.array([2.0], "f4"))})
    client.close()

    async def called() -> list[Any]:
        over_http = OverHttp(gateway.where, conn_limit=750, conn_timeout=300.0)
        async with over_http, OverGrpc(gateways.grpc_of(gateway)) as over_grpc:
            calls = [over_http.infer("nap", http_input) for _ in range(750)]
            calls += [over_grpc.infer("nap", grpc_input) for _ in range(750)]
            return await asyncio.gather(*calls)

    answers = asyncio.run(called())
    assert {float(answer.as_numpy("y")[0]) for answer in answers} == {2.0}
    comes_back(gateway, *before)


def test_what_more_than_the_queue_holds_is_refused_at_once(daemons: Daemons, tmp_path: Path) -> None:
    root = tmp_path / "deploy"
    deployed.put(root, "nap", gateways.sleeping(tmp_path / "nap.so"))
    server = daemons.server("edge", *deployed.WITH_NUMPY, "--deploy", str(root), "--deploy-workers", "1")
    gateway = gateways.before(daemons, server, ["nap"], "--queue", "5")
    client = gateways.Triton("grpc", gateway)
    inputs = client.inputs({"x": ("FP32", np.array([0.1], "f4"))})
    done: list[Any] = []
    for _ in range(200):
        client.async_infer("nap", inputs, callback=lambda result, error: done.append(error))
    wait_until(lambda: len(done) == 200, START_S, "all are answered")
    refusals = [str(error) for error in done if error is not None]
    assert 0 < len(refusals) < 200
    assert all("5 calls wait for 'nap' already; call again in a moment" in text for text in refusals), refusals[0]
    client.close()
