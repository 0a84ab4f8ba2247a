"""An inference server in this process, over HTTP, whose answers a test chooses; real sockets."""

from __future__ import annotations

import contextlib
import json
import socket
import threading
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

WAIT_S = 30.0


class Asked(NamedTuple):
    """A request: its first line without the version, its fields, its JSON (None: no body) and the bytes behind it."""

    line: str
    fields: dict[str, str]
    value: Any
    binary: bytes


Answer = Callable[[Asked], "bytes | None"]  # all of an answer; None: the connection is closed without one


def reply(value: Any, status: int = 200, binary: bytes = b"", **fields: Any) -> bytes:
    """An answer with a Content-Length."""
    text = value if isinstance(value, bytes) else json.dumps(value).encode()
    more = {"Inference-Header-Content-Length": len(text)} if binary else {}
    return head(status, **{"Content-Length": len(text) + len(binary), **more, **fields}) + text + binary


def head(status: int = 200, **fields: Any) -> bytes:
    lines = [f"HTTP/1.1 {status} Said", *(f"{name.replace('_', '-')}: {value}" for name, value in fields.items())]
    return "\r\n".join([*lines, "", ""]).encode()


def doubled(asked: Asked) -> bytes:
    """The answer of a model that gives its one FP32 input twice as large, as binary data or not, as it was asked."""
    import numpy as np

    (given,) = asked.value["inputs"]
    x = np.frombuffer(asked.binary, "f4") if asked.binary else np.array(given["data"], "f4")
    output = {"name": "y", "datatype": "FP32", "shape": given["shape"]}
    if not asked.value["parameters"]["binary_data_output"]:
        return reply({"model_name": "m", "outputs": [{**output, "data": (2 * x).tolist()}]})
    output["parameters"] = {"binary_data_size": x.nbytes}
    return reply({"model_name": "m", "outputs": [output]}, binary=(2 * x).tobytes())


SERVER = {"name": "triton", "version": "1", "extensions": ["binary_tensor_data"]}
MODEL = {
    "name": "m",
    "versions": ["1"],
    "platform": "x",
    "inputs": [{"name": "x", "datatype": "FP32", "shape": [-1, 4]}],
    "outputs": [{"name": "y", "datatype": "FP32", "shape": [-1, 4]}],
}


class ScriptedServer:
    """Answers `SERVER` and `MODEL` where they are asked for, and calls by ``infer``."""

    def __init__(self, infer: Answer = doubled, *, server: Any = SERVER, model: Any = MODEL, tls: Any = None) -> None:
        self.infer, self.server, self.model = infer, server, model
        self.asked: list[Asked] = []
        self.connections = 0
        self._tls = tls  # an SSLContext
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self.url = f"http{'s' if tls else ''}://127.0.0.1:{self.port}/v2/models/m"
        self._open: set[socket.socket] = set()
        threading.Thread(target=self._accept, daemon=True).start()

    def calls(self) -> list[Asked]:
        return [asked for asked in self.asked if asked.line.startswith("POST")]

    def close(self) -> None:
        """Stop listening, and end all connections."""
        with contextlib.suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for sock in list(self._open):
            with contextlib.suppress(OSError):
                sock.shutdown(socket.SHUT_RDWR)

    def __enter__(self) -> ScriptedServer:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def _accept(self) -> None:
        with contextlib.suppress(OSError):
            while True:
                sock, _ = self._listener.accept()
                self.connections += 1
                sock.settimeout(WAIT_S)
                threading.Thread(target=self._serve, args=(sock,), daemon=True).start()

    def _serve(self, sock: socket.socket) -> None:
        if self._tls is not None:
            try:
                sock = self._tls.wrap_socket(sock, server_side=True)
            except OSError:
                return
        self._open.add(sock)
        try:
            with sock, sock.makefile("rb") as file, contextlib.suppress(OSError):
                for asked in requests(file):
                    self.asked.append(asked)
                    answer = self._answer(asked)
                    if answer is None:
                        return
                    sock.sendall(answer)
                    if b"Connection: close" in answer or (
                        b"\r\nContent-Length" not in answer and b"hunked" not in answer
                    ):
                        return
        finally:
            self._open.discard(sock)

    def _answer(self, asked: Asked) -> bytes | None:
        if asked.line.startswith("POST"):
            return self.infer(asked)
        said = self.server if asked.line == "GET /v2" else self.model
        return said(asked) if callable(said) else reply(said)


def requests(file: Any) -> Iterator[Asked]:
    """The requests of one connection."""
    while line := file.readline():
        fields = {}
        while (field := file.readline().strip()) != b"":
            name, _, value = field.decode().partition(": ")
            fields[name.lower()] = value
        body = file.read(int(fields["content-length"]))
        size = int(fields.get("inference-header-content-length", len(body)))
        value = json.loads(body[:size]) if body else None
        yield Asked(line.decode().rsplit(" ", 1)[0], fields, value, body[size:])
