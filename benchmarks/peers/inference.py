"""Inference servers: our gateway before a server, and MLServer; the same ONNX file on each, called in the same ways.

The model returns its input, float32 [n, 16]. A call takes so many rows; one over raw HTTP is a socket that sends and
receives whole buffers, with JSON where the server takes no binary data.
"""

from __future__ import annotations

import contextlib
import json
import os
import re
import shutil
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path

import numpy as np

import rpcsys
from benchmarks.models import written_identity
from benchmarks.peers import memory_use
from benchmarks.peers.ours import SERVER
from benchmarks.peers.raw import receive_into, send_both
from benchmarks.peers.subject import Once, Place, Subject, Trial, announce, serve_until_told
from rpcsys.client.deploying import Deployment
from rpcsys.link.tcp import tune

NAME = "same"
WIDTH = 16
START_S = 50.0
LOAD_S = 2  # whole seconds, as wrk and h2load have them
UNDER_WAY = 32
#: Of wrk: one body, over and over.
_SCRIPT = """
wrk.method = "POST"
local file = io.open("{body}", "rb")
wrk.body = file:read("*a")
file:close()
{fields}
"""


def rows(count: int) -> np.ndarray:
    """Numbers whose text is short, as in JSON that people write."""
    return (np.arange(count * WIDTH, dtype="float32") % 1000 / 8).reshape(count, WIDTH)


def as_binary(array: np.ndarray) -> tuple[dict[str, str], bytes]:
    """The fields and the body of a request with binary data, for an answer with binary data."""
    parameters = {"binary_data_size": array.nbytes}
    given = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "parameters": parameters}
    head = json.dumps({"inputs": [given], "parameters": {"binary_data_output": True}}).encode()
    return {"Inference-Header-Content-Length": str(len(head))}, head + array.tobytes()


def as_json(array: np.ndarray) -> tuple[dict[str, str], bytes]:
    given = {"name": "x", "shape": list(array.shape), "datatype": "FP32", "data": array.ravel().tolist()}
    return {"Content-Type": "application/json"}, json.dumps({"inputs": [given]}).encode()


class InferenceServer(Subject):
    """What both are measured in: calls over raw HTTP, by NVIDIA's clients, and under load."""

    grpc_port = 0

    def __init__(self, place: Place) -> None:
        super().__init__(place)
        self.folder = Path(tempfile.mkdtemp(dir=place.folder))  # there may be another one of this kind

    def request(self, array: np.ndarray) -> tuple[dict[str, str], bytes]:
        """The fields and the body of a request in the best form that the server takes."""
        raise NotImplementedError

    @property
    def path(self) -> str:
        return f"/v2/models/{NAME}/infer"

    def model(self) -> Path:
        return written_identity(self.folder / "model.onnx", WIDTH)

    def http(self, count: int) -> contextlib.AbstractContextManager[Trial]:
        return self._raw(*self.request(rows(count)))

    def json(self, count: int) -> contextlib.AbstractContextManager[Trial]:
        return self._raw(*as_json(rows(count)))

    @contextmanager
    def _raw(self, fields: Mapping[str, str], body: bytes) -> Iterator[Trial]:
        lines = [f"POST {self.path} HTTP/1.1", "Host: bench", f"Content-Length: {len(body)}"]
        head = "\r\n".join([*lines, *(f"{name}: {value}" for name, value in fields.items()), "", ""]).encode()
        with socket.create_connection(("127.0.0.1", self.port)) as sock:
            tune(sock)
            send_both(sock, head, memoryview(body))
            answer = memoryview(bytearray(_length_of_answer(sock)))

            def run() -> None:
                send_both(sock, head, memoryview(body))
                receive_into(sock, answer)

            yield Trial(run)

    @contextmanager
    def triton_http(self, count: int) -> Iterator[Trial]:
        from tritonclient.http import InferenceServerClient, InferInput, InferRequestedOutput

        binary = "Content-Type" not in self.request(rows(1))[0]
        with InferenceServerClient(f"127.0.0.1:{self.port}") as client:
            given = InferInput("x", [count, WIDTH], "FP32").set_data_from_numpy(rows(count), binary_data=binary)
            wanted = [InferRequestedOutput("y", binary_data=binary)]
            assert client.infer(NAME, [given], outputs=wanted).as_numpy("y").shape == (count, WIDTH)
            yield Trial(lambda: client.infer(NAME, [given], outputs=wanted).as_numpy("y"))

    @contextmanager
    def triton_grpc(self, count: int) -> Iterator[Trial]:
        from tritonclient.grpc import InferenceServerClient, InferInput

        with InferenceServerClient(f"127.0.0.1:{self.grpc_port}") as client:
            given = InferInput("x", [count, WIDTH], "FP32").set_data_from_numpy(rows(count))
            assert client.infer(NAME, [given]).as_numpy("y").shape == (count, WIDTH)
            yield Trial(lambda: client.infer(NAME, [given]).as_numpy("y"))

    @contextmanager
    def http_load(self) -> Iterator[Trial]:
        """Calls of one row with `UNDER_WAY` at once, by wrk."""
        fields, body = self.request(rows(1))
        script = self._script(fields, body)
        url = f"http://127.0.0.1:{self.port}{self.path}"
        command = ["wrk", "-t1", f"-c{UNDER_WAY}", f"-d{LOAD_S}s", "-s", str(script), url]
        yield Once(lambda: _load(command, "Non-2xx"))

    @contextmanager
    def grpc_load(self) -> Iterator[Trial]:
        """The same over gRPC, by h2load."""
        from tritonclient.grpc import service_pb2

        request = service_pb2.ModelInferRequest(model_name=NAME, raw_input_contents=[rows(1).tobytes()])
        request.inputs.add(name="x", datatype="FP32", shape=[1, WIDTH])
        text = request.SerializeToString()
        body = self.folder / "message"
        body.write_bytes(b"\0" + len(text).to_bytes(4, "big") + text)
        fields = [word for field in ("content-type: application/grpc", "te: trailers") for word in ("-H", field)]
        url = f"http://127.0.0.1:{self.grpc_port}/inference.GRPCInferenceService/ModelInfer"
        amount = ["-c8", f"-m{UNDER_WAY // 8}", f"-D{LOAD_S}"]
        yield Once(lambda: _load(["h2load", *amount, "-d", str(body), *fields, url], "5xx, none"))

    def _script(self, fields: Mapping[str, str], body: bytes) -> Path:
        path = self.folder / "body"
        path.write_bytes(body)
        lines = "\n".join(f'wrk.headers["{name}"] = "{value}"' for name, value in fields.items())
        script = path.with_suffix(".lua")
        script.write_text(_SCRIPT.format(body=path, fields=lines))
        return script


class Gateway(InferenceServer):
    """Our gateway before a server with one worker."""

    flags: tuple[str, ...] = ()

    def start(self) -> None:
        folder = self.folder / "deployed"
        server = self.start_server((*SERVER, "--deploy", str(folder), "--deploy-workers", "1"))
        with Deployment(("127.0.0.1", server)) as deployment:
            deployment.put(self.model(), NAME)
        self.direct_port = server
        self.grpc_port = free_port()
        where = ("--host", "127.0.0.1", "--port", "0", "--grpc-port", str(self.grpc_port))
        flags = (*where, "--server", f"127.0.0.1:{server}", "--module", NAME, *self.flags)
        self.port = self.start_server(("-m", "rpcsys.gateway", *flags))
        deadline = time.monotonic() + START_S
        while not _answers(self.port, "/v2/health/ready"):
            assert time.monotonic() < deadline, "the gateway does not find the model"
            time.sleep(0.05)

    def request(self, array: np.ndarray) -> tuple[dict[str, str], bytes]:
        return as_binary(array)

    @contextmanager
    def direct(self, count: int) -> Iterator[Trial]:
        """The same model by our own protocol, without the gateway."""
        with rpcsys.connect("127.0.0.1", self.direct_port, serve=NAME) as model:
            array = rows(count)
            yield Trial(lambda: model(array))

    @contextmanager
    def idle(self) -> Iterator[Trial]:
        """The memory of the gateway's process."""
        yield Once(lambda: memory_use.used([self._servers[-1].pid]))


class BatchingGateway(Gateway):
    flags = ("--batch", f"{NAME}=32")


class UnusedGateway(Gateway):
    """One that has served nothing."""


class MLServer(InferenceServer):
    """MLServer with the model in its own process, without a line for each call."""

    def start(self) -> None:
        ports = (free_port(), free_port())
        folder = self.folder / "mlserver"
        words = ("-m", "benchmarks.peers.inference", str(folder), str(self.model()), *map(str, ports))
        self.port, self.grpc_port = self.start_server(words), ports[1]

    def request(self, array: np.ndarray) -> tuple[dict[str, str], bytes]:
        return as_json(array)

    @contextmanager
    def idle(self) -> Iterator[Trial]:
        child = int((self.folder / "mlserver" / "pid").read_text())
        yield Once(lambda: memory_use.used([child]))


def free_port() -> int:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        return listener.getsockname()[1]


def _length_of_answer(sock: socket.socket) -> int:
    """Receive one answer; the bytes that it has."""
    data = b""
    while b"\r\n\r\n" not in data:
        more = sock.recv(1 << 16)
        if not more:
            raise ConnectionError(f"the connection ended after {data[:200]!r}")
        data += more
    head, _, body = data.partition(b"\r\n\r\n")
    if b" 200 " not in head.partition(b"\r\n")[0]:
        raise RuntimeError(f"the server says {data[:300]!r}")
    (length,) = re.findall(rb"(?i)\r\ncontent-length: *(\d+)", head)
    left = int(length) - len(body)
    while left:
        left -= len(sock.recv(min(left, 1 << 16)))
    return len(head) + 4 + int(length)


def _load(command: list[str], wrong: str) -> dict[str, float]:
    """Run a load generator; the seconds for each call."""
    if shutil.which(command[0]) is None:
        raise FileNotFoundError(f"{command[0]} is not installed")
    said = subprocess.run(command, capture_output=True, text=True, timeout=60, check=True).stdout
    found = re.search(r"Requests/sec: +([\d.]+)|, ([\d.]+) req/s", said)
    assert found, said
    assert wrong not in said, said
    return {"seconds": 1 / float(found[1] or found[2])}


def _answers(port: int, path: str) -> bool:
    try:
        with socket.create_connection(("127.0.0.1", port), timeout=5) as sock:
            sock.sendall(f"GET {path} HTTP/1.1\r\nHost: bench\r\nConnection: close\r\n\r\n".encode())
            return b" 200 " in sock.recv(1 << 16).partition(b"\r\n")[0]
    except OSError:
        return False


def main(folder: str, model: str, http_port: str, grpc_port: str) -> None:
    """Serve the model by MLServer until standard input ends."""
    from tests.live import mlservers

    place = Path(folder)
    mlservers.write_repository(place, {NAME: Path(model)}, int(http_port), int(grpc_port))
    command, environment = mlservers.program(place)
    server = subprocess.Popen(command, cwd=place, env={**os.environ, **environment}, stdout=2)
    (place / "pid").write_text(str(server.pid))
    while not mlservers.is_ready(int(http_port)):
        if server.poll() is not None:
            sys.exit(f"MLServer ended with status {server.returncode}")
        time.sleep(0.1)
    announce(int(http_port))
    serve_until_told()


if __name__ == "__main__":
    main(*sys.argv[1:])
