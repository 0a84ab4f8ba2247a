"""A gateway in a thread of this process, before hosts that are played; and a client's raw connection to it."""

from __future__ import annotations

import asyncio
import json
import socket
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple

import pytest

from rpcsys.daemon.acceptor import Acceptor
from rpcsys.gateway import backend as backends
from rpcsys.gateway.actions import ReplicaPlace
from rpcsys.gateway.config import GatewayConfig
from rpcsys.gateway.grpc_server import GrpcServer
from rpcsys.gateway.replicas import ReplicaHello
from rpcsys.gateway.service import GatewayService
from rpcsys.gateway.settings import GatewaySettings
from rpcsys.gateway.state import ServedRow
from rpcsys.serve import bind
from rpcsys.stream import Stream
from tests.gateway.test_backend import Hosts
from tests.gateway.test_discovery import Source
from tests.gateway.transcripts import VERSION, place, said, tensor

WAIT_S = 30.0
#: The name of each model is that of its only input's dtype; it gives back what it gets.
MODELS = ("uint8", "float32", "int64", "strings", "bfloat16")


class EchoHosts(Hosts):
    """Hosts of `MODELS`."""

    def open_host(self, model: str, where: ReplicaPlace) -> tuple[Stream, ReplicaHello | None]:
        described = {"inputs": [tensor("x", model, ("n", "w"))], "outputs": [tensor("y", model, ("n", "w"))]}
        return self.open(where), said(workers=2, **described)


class GatewayBench:
    """A gateway that runs. ``service`` is its own thread's: use `run` for what touches it."""

    def __init__(self, hosts: EchoHosts, config: GatewayConfig, settings: GatewaySettings) -> None:
        self.hosts = hosts
        self._config = config
        self._settings = settings
        self._ready = threading.Event()
        self._thread = threading.Thread(target=lambda: asyncio.run(self._main()), daemon=True)
        self._thread.start()
        assert self._ready.wait(WAIT_S)

    async def _main(self) -> None:
        self.loop = asyncio.get_running_loop()
        self._stop = asyncio.Event()
        self.service = service = GatewayService(self._config, self._settings)
        acceptor = Acceptor(bind("127.0.0.1", 0, 1), service.accept)
        self.port = acceptor.port
        self.grpc = GrpcServer(service.methods, service.admission, self._config)
        await self.grpc.open("127.0.0.1", 0, 1)
        state = service.backend.state
        while state.replicas < len(MODELS):  # noqa: ASYNC110 - nobody tells of it
            await asyncio.sleep(0.005)
        self._ready.set()
        await self._stop.wait()
        acceptor.close()
        await self.grpc.stop(0)
        service.close()

    def run(self, function: Callable[[], Any]) -> Any:
        """The result of a function that is called in the gateway's thread."""

        async def called() -> Any:
            return function()

        return asyncio.run_coroutine_threadsafe(called(), self.loop).result(WAIT_S)

    def await_true(self, holds: Callable[[], bool]) -> None:
        """Wait until something holds in the gateway's thread."""
        pause = threading.Event()
        for _ in range(int(WAIT_S / 0.01)):
            if self.run(holds):
                return
            pause.wait(0.01)
        raise AssertionError("it never held")

    def close(self) -> None:
        self.loop.call_soon_threadsafe(self._stop.set)
        self._thread.join(WAIT_S)
        assert not self._thread.is_alive()

    def connect(self) -> HttpClient:
        return HttpClient(self.port)

    def ask(self, method: str, path: str, body: bytes = b"", *fields: str) -> HttpReply:
        """The answer to one request on a connection of its own."""
        with self.connect() as client:
            return client.ask(method, path, body, *fields)


class HttpReply(NamedTuple):
    """An answer: its status, fields by names in lower case, body."""

    status: int
    fields: dict[str, str]
    body: bytes

    @property
    def json(self) -> Any:
        return json.loads(self.body)


class HttpClient:
    """A connection over HTTP, byte by byte as a test wants it."""

    def __init__(self, port: int) -> None:
        self.sock = socket.create_connection(("127.0.0.1", port), WAIT_S)
        self._file = self.sock.makefile("rb")

    def __enter__(self) -> HttpClient:
        return self

    def __exit__(self, *_: object) -> None:
        self._file.close()
        self.sock.close()

    def ask(self, method: str, path: str, body: bytes = b"", *fields: str) -> HttpReply:
        self.sock.sendall(request(method, path, body, *fields))
        return self.reply(method)

    def reply(self, method: str = "GET") -> HttpReply:
        """The next answer."""
        status = int(self._line().split()[1])
        fields = {}
        while line := self._line():
            name, _, value = line.partition(":")
            fields[name.lower()] = value.strip()
        size = 0 if method == "HEAD" or status == 100 else int(fields["content-length"])
        return HttpReply(status, fields, self._file.read(size))

    def _line(self) -> str:
        line = self._file.readline()
        assert line.endswith(b"\r\n"), f"the connection ended after {line!r}"
        return line.decode().rstrip("\r\n")

    def ended(self) -> bool:
        """Whether the gateway has hung up."""
        return self._file.read(1) == b""


def request(method: str, path: str, body: bytes = b"", *fields: str) -> bytes:
    """The bytes of a request."""
    lines = [f"{method} {path} HTTP/1.1", "Host: gateway", *fields]
    if body:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join([*lines, "", ""]).encode() + body


def infer_path(model: str) -> str:
    return f"/v2/models/{model}/infer"


def in_json(datatype: str, shape: Sequence[int], data: Any, **more: Any) -> bytes:
    """A request in JSON with one input."""
    given = {"name": "x", "datatype": datatype, "shape": list(shape), "data": data}
    return json.dumps({"inputs": [given], **more}).encode()


def in_binary(datatype: str, shape: Sequence[int], data: bytes, **more: Any) -> tuple[bytes, str]:
    """The body of a request with binary data both ways, and the field that says where they begin."""
    given = {"name": "x", "datatype": datatype, "shape": list(shape), "parameters": {"binary_data_size": len(data)}}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}, **more}).encode()
    return head + data, f"Inference-Header-Content-Length: {len(head)}"


def gateway_before(
    monkeypatch: pytest.MonkeyPatch, config: GatewayConfig, settings: GatewaySettings
) -> Iterator[GatewayBench]:
    """For a fixture: a gateway with `MODELS`."""
    hosts = EchoHosts()
    source = Source([ServedRow(name, VERSION, place(number)) for number, name in enumerate(MODELS)])
    monkeypatch.setattr(backends, "open_host", hosts.open_host)
    monkeypatch.setattr(backends, "ServerSource", lambda where: source)
    bench = GatewayBench(hosts, config, settings)
    yield bench
    bench.close()
