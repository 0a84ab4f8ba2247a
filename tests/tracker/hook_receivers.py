"""A receiver of webhooks in threads of this process, which does with each request what it is told."""

from __future__ import annotations

import contextlib
import json
import ssl
import threading
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

HANG, CLOSE, ENDLESS, REDIRECT, LONG_HEAD = "hang", "close", "endless", "redirect", "long head"


class Told(NamedTuple):
    path: str
    headers: dict[str, str]  # by their names in small letters
    body: bytes

    @property
    def event(self) -> dict[str, Any]:
        return json.loads(self.body)


class HookReceiver:
    """``acts``: what is done with each request, a status or one of the words above; the last one for all others.

    ``pem``: a file with a certificate and its key, for HTTPS.
    """

    def __init__(self, *acts: int | str, pem: Path | None = None) -> None:
        self.acts = list(acts) or [204]
        self.told: list[Told] = []
        self.over = threading.Event()
        receiver = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["content-length"]))
                fields = {name.lower(): value for name, value in self.headers.items()}
                receiver.told.append(Told(self.path, fields, body))
                act = receiver.acts.pop(0) if len(receiver.acts) > 1 else receiver.acts[0]
                with contextlib.suppress(OSError):
                    self.answer(act)

            def answer(self, act: int | str) -> None:
                self.close_connection = True
                if act == HANG:
                    receiver.over.wait(30)
                elif act == ENDLESS:
                    self.send_response(200)
                    self.send_header("transfer-encoding", "chunked")
                    self.end_headers()
                    while not receiver.over.is_set():
                        self.wfile.write(b"1000\r\n" + bytes(0x1000) + b"\r\n")
                elif act == REDIRECT:
                    self.send_response(307)
                    self.send_header("location", f"{receiver.url}/elsewhere")
                    self.send_header("content-length", "0")
                    self.end_headers()
                elif act == LONG_HEAD:
                    self.wfile.write(b"HTTP/1.1 200 OK\r\nset-cookie: " + bytes(1 << 20) + b"\r\n\r\n")
                elif act != CLOSE:
                    self.send_response(act)
                    self.send_header("content-length", "0")
                    self.end_headers()

            def log_message(self, *_: object) -> None:
                pass

        self._server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self._server.daemon_threads = True
        self._server.handle_error = lambda *_: None  # such as a handshake that failed
        if pem is not None:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(pem)
            # Each connection's thread does its handshake: a client may give up within it.
            options = {"server_side": True, "do_handshake_on_connect": False}
            self._server.socket = context.wrap_socket(self._server.socket, **options)
        self.where = f"127.0.0.1:{self._server.server_port}"
        self.url = f"http{'s' if pem else ''}://{self.where}"
        self._thread = threading.Thread(target=self._server.serve_forever, args=(0.05,))
        self._thread.start()

    @property
    def ids(self) -> list[str]:
        return [told.headers["webhook-id"] for told in self.told]

    @property
    def types(self) -> list[str]:
        return [told.event["type"] for told in self.told]

    def __enter__(self) -> HookReceiver:
        return self

    def __exit__(self, *_: object) -> None:
        self.over.set()
        self._server.shutdown()
        self._thread.join()
        self._server.server_close()
